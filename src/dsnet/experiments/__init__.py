"""The paper's experiments, declared as data, and the code that runs them."""

from dsnet.experiments.catalogue import EXPERIMENTS
from dsnet.experiments.run import progress, reproduce
from dsnet.experiments.scales import SCALES

__all__ = ["EXPERIMENTS", "SCALES", "progress", "reproduce"]
