"""Datasets, splits and augmentation. Knows nothing of networks."""
