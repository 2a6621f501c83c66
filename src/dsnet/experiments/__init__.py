"""The paper's experiments, declared as data, and the code that runs them."""

from dsnet.experiments.catalogue import EXPERIMENTS
from dsnet.experiments.recipe import SCALES
from dsnet.experiments.run import progress, reproduce

__all__ = ["EXPERIMENTS", "SCALES", "progress", "reproduce"]
