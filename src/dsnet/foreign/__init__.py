"""Weights that other programs wrote, mapped by name onto dsnet's networks."""

from dsnet.foreign.files import Weights, read_tensors
from dsnet.foreign.released import ImportReport, import_released

__all__ = ["ImportReport", "Weights", "import_released", "read_tensors"]
