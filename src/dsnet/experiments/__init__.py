"""The paper's experiments as data, and what runs them."""

from dsnet.experiments.catalogue import EXPERIMENTS
from dsnet.experiments.recipe import SCALES
from dsnet.experiments.run import progress, reproduce

__all__ = ["EXPERIMENTS", "SCALES", "progress", "reproduce"]
