"""Runs: from a config to a folder, and from a folder to its evaluation."""

from dsnet.config import CONFIG, read_config
from dsnet.pipeline.assess import calibrate_budgets, calibration_images, evaluate_split, open_data, record, traces_of
from dsnet.pipeline.folder import GATE, SPLITS, check_data, prepare_folder
from dsnet.pipeline.latency import bench_runs
from dsnet.pipeline.run import train

__all__ = [
    "CONFIG",
    "GATE",
    "SPLITS",
    "bench_runs",
    "calibrate_budgets",
    "calibration_images",
    "check_data",
    "evaluate_split",
    "open_data",
    "prepare_folder",
    "read_config",
    "record",
    "traces_of",
    "train",
]
