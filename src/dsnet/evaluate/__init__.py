"""How good a model is, in one versioned result schema: every width, and the dynamic network."""

from dsnet.evaluate.combine import combine
from dsnet.evaluate.dynamic import RunnerTraces, evaluate_dynamic, router_auc
from dsnet.evaluate.uniform import accuracy, evaluate, paths_to_evaluate

__all__ = ["RunnerTraces", "accuracy", "combine", "evaluate", "evaluate_dynamic", "paths_to_evaluate", "router_auc"]
