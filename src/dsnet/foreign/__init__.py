"""Weights that other programs wrote, mapped by name onto dsnet's networks."""

from dsnet.foreign.files import Weights, read_tensors
from dsnet.foreign.plain import Source, read_plain
from dsnet.foreign.released import ImportReport, import_released
from dsnet.foreign.schemes import find_scheme
from dsnet.foreign.sorting import sort_channels
from dsnet.foreign.transfer import TransferReport, import_as, transfer

__all__ = [
    "ImportReport",
    "Source",
    "TransferReport",
    "Weights",
    "find_scheme",
    "import_as",
    "import_released",
    "read_plain",
    "read_tensors",
    "sort_channels",
    "transfer",
]
