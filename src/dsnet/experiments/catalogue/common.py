"""What several experiments share: the supernets, the routers, the columns of dynamic networks."""

from __future__ import annotations

from dsnet.experiments.declare import Column
from dsnet.experiments.measures import as_trained, mean_gain
from dsnet.experiments.recipe import Recipe

SUPERNET = {"stage": "supernet"}
MBNET, RESNET, EFFNET, US = (Recipe(base, SUPERNET) for base in ("mbnet", "resnet", "effnet", "us"))
PAPER_GATES = {"sgs.router": "gate", "sgs.targets": "try_best"}
CORRECTNESS = {"sgs.router": "gate", "sgs.targets": "correctness"}
SLIM_FIRST = {"sgs.router": "slim_first"}

TOP1 = "top-1"
DYNAMIC = (
    Column("MAdds", as_trained("madds"), "madds"),
    Column(TOP1, as_trained("top1")),
    Column("over uniform, as trained", as_trained("gain"), "points"),
    Column("over uniform, five budgets", mean_gain, "points"),
)
GAIN_NOTE = (
    "Over uniform: points above the concave hull of the supernet's own uniform sub-networks at the same average MAdds; "
    "as trained (lambda 0) and, by the budget knob, as the mean of five budgets."
)
