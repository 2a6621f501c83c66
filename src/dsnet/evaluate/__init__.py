"""How good a model is: every width, and the dynamic network."""

from dsnet.evaluate.dynamic import RunnerTraces, evaluate_dynamic, examples, router_auc
from dsnet.evaluate.uniform import accuracy, evaluate, paths_to_evaluate

__all__ = ["RunnerTraces", "accuracy", "evaluate", "evaluate_dynamic", "examples", "paths_to_evaluate", "router_auc"]
