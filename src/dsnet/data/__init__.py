"""Datasets, splits and augmentation. Knows nothing of networks."""

from dsnet.data.augment import AugmentConfig
from dsnet.data.batches import TrainBatches, plain_batches, seed_of
from dsnet.data.dataset import Batch, DataConfig, Dataset, Split, open_dataset
from dsnet.data.images import read_image

__all__ = [
    "AugmentConfig",
    "Batch",
    "DataConfig",
    "Dataset",
    "Split",
    "TrainBatches",
    "open_dataset",
    "plain_batches",
    "read_image",
    "seed_of",
]
