"""Training: the two stages, the loop, the moving average, recalibration."""

from dsnet.training.average import EMA
from dsnet.training.ieb import IEB, Drawn, IEBConfig, Stage, balanced
from dsnet.training.interruption import Interrupted
from dsnet.training.loop import Loop
from dsnet.training.optim import OptimConfig, learning_rate, make_optimizer
from dsnet.training.recalibration import recalibrate
from dsnet.training.sgs import SGS, with_fresh_router
from dsnet.training.sgs_config import SGSConfig

__all__ = [
    "EMA",
    "IEB",
    "SGS",
    "Drawn",
    "IEBConfig",
    "Interrupted",
    "Loop",
    "OptimConfig",
    "SGSConfig",
    "Stage",
    "balanced",
    "learning_rate",
    "make_optimizer",
    "recalibrate",
    "with_fresh_router",
]
