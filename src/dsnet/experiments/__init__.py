"""The paper's experiments as data, and what runs them."""

from dsnet.experiments.catalogue import EXPERIMENTS
from dsnet.experiments.run import progress, reproduce
from dsnet.experiments.scales import SCALES

__all__ = ["EXPERIMENTS", "SCALES", "progress", "reproduce"]
