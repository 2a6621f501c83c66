"""Training: the two stages, the loop, the moving average, recalibration."""

from dsnet.training.average import EMA, recalibrate
from dsnet.training.ieb import IEB, IEBConfig, Stage
from dsnet.training.loop import Interrupted, Loop
from dsnet.training.optim import OptimConfig, learning_rate, make_optimizer
from dsnet.training.sgs import SGS, SGSConfig, with_fresh_router

__all__ = [
    "EMA",
    "IEB",
    "SGS",
    "IEBConfig",
    "Interrupted",
    "Loop",
    "OptimConfig",
    "SGSConfig",
    "Stage",
    "learning_rate",
    "make_optimizer",
    "recalibrate",
    "with_fresh_router",
]
