"""Experiments on stage II: targets and losses of the gates, their design, their choices and the resulting gain."""

from __future__ import annotations

from dsnet.experiments.catalogue.networks import MBNET, RESNET, SLIM_FIRST, TOP1
from dsnet.experiments.layout import Claim, Column, Plot, Row, Table
from dsnet.experiments.measures import (
    as_trained,
    at_budget,
    constant,
    gate_shares,
    mean_gain,
    operating_points,
    over_lottery,
    router_auc,
    tradeoff,
)
from dsnet.experiments.recipe import Recipe, Scale

PAPER_GATES = {"sgs.router": "gate", "sgs.targets": "try_best"}
CORRECTNESS = {"sgs.router": "gate", "sgs.targets": "correctness"}
DYNAMIC = (
    Column("MAdds", as_trained("madds"), "madds"),
    Column(TOP1, as_trained("score")),
    Column("over uniform, as trained", as_trained("gain"), "points"),
    Column("over uniform, five budgets", mean_gain, "points"),
)
GAIN_NOTE = (
    "Over uniform: points above the concave hull of the supernet's own uniform sub-networks at the same average MAdds; "
    "as trained (lambda 0) and, by the budget knob, as the mean of five budgets."
)


def losses(classification: float, complexity: float, guidance: float, targets: str = "try_best") -> Recipe:
    weights = {"sgs.classification": classification, "sgs.complexity": complexity, "sgs.guidance": guidance}
    if (classification, complexity, guidance) == (1.0, 0.5, 1.0):
        weights = {}  # the paper's weights are the default
    return RESNET.gates({"sgs.router": "gate", "sgs.targets": targets, **weights})


LOSSES = (
    Row("target", losses(1.0, 0.0, 0.0), {"MAdds": "3.6B", TOP1: "76.8"}),
    Row("complexity", losses(0.0, 0.5, 0.0), {"MAdds": "0.3B", TOP1: "66.2"}),
    Row("SGS (give up)", losses(0.0, 0.0, 1.0, "give_up"), {"MAdds": "1.5B", TOP1: "73.7"}),
    Row("SGS (try best)", losses(0.0, 0.0, 1.0), {"MAdds": "3.1B", TOP1: "76.6"}),
    Row("target + complexity", losses(1.0, 0.5, 0.0), {"MAdds": "2.0B", TOP1: "75.0"}),
    Row("complexity + SGS (try best)", losses(0.0, 0.5, 1.0), {"MAdds": "1.2B", TOP1: "74.6"}),
    Row("target + complexity + SGS (try best)", losses(1.0, 0.5, 1.0), {"MAdds": "2.2B", TOP1: "76.1"}),
)


def losses_tables(scale: Scale) -> tuple[Table, ...]:
    full = LOSSES[-1].label
    claims = (
        Claim("the target loss alone spends more than all three", "MAdds", "target", full, 1.4e9),
        Claim("all three over the complexity loss alone", TOP1, full, "complexity", 9.9),
        Claim("SGS adds accuracy to target + complexity", TOP1, full, "target + complexity", 1.1),
        Claim("try best over give up", TOP1, "SGS (try best)", "SGS (give up)", 2.9),
    )
    return (Table("Losses of gate training on DS-ResNet", DYNAMIC, LOSSES, claims, GAIN_NOTE),)


def losses_plots(scale: Scale) -> tuple[Plot, ...]:
    return (operating_points("Losses of gate training: where the gates end up", tuple(row.label for row in LOSSES)),)


def sgs_rows() -> tuple[Row, ...]:
    return (
        Row("gate, give up, SGS loss only", losses(0.0, 0.0, 1.0, "give_up"), {"MAdds": "1.5B", TOP1: "73.7"}),
        Row("gate, try best, SGS loss only", losses(0.0, 0.0, 1.0), {"MAdds": "3.1B", TOP1: "76.6"}),
        Row("gate, try best", RESNET.gates(PAPER_GATES), {"MAdds": "2.2B", TOP1: "76.1"}),
        Row("gate, correctness (ours)", RESNET.gates(CORRECTNESS)),
        Row("threshold on the slimmest's confidence", RESNET.gates({"sgs.router": "threshold"})),
        Row("slim-first (ours)", RESNET.gates(SLIM_FIRST)),
    )


def sgs_tables(scale: Scale) -> tuple[Table, ...]:
    columns = (*DYNAMIC, Column("AUC", router_auc, "number"))
    best, lazy = "gate, try best, SGS loss only", "gate, give up, SGS loss only"
    claims = (
        Claim("try best over give up, top-1", TOP1, best, lazy, 2.9),
        Claim("try best over give up, five budgets", DYNAMIC[3].name, best, lazy),
        Claim("slim-first over the paper's gate, five budgets", DYNAMIC[3].name, "slim-first (ours)", "gate, try best"),
    )
    note = GAIN_NOTE + " AUC: how well the router's score tells whether the slimmest sub-network is right."
    return (Table("What the router learns, on DS-ResNet", columns, sgs_rows(), claims, note),)


def sgs_plots(scale: Scale) -> tuple[Plot, ...]:
    names = {row.label: row.label for row in sgs_rows()}
    return (tradeoff("Routers on one DS-ResNet supernet", {"gate, try best": "uniform sub-networks"}, names, {}),)


def design_tables(scale: Scale) -> tuple[Table, ...]:
    guided = {"sgs.router": "gate", "sgs.targets": "try_best", "sgs.classification": 0.0, "sgs.complexity": 0.0}
    rows = (
        Row(
            "shared, scalar",
            RESNET.gates({**guided, "sgs.guidance": 1.0, "model.slimming": "scalar"}),
            {"MAdds": "2.3B", TOP1: "73.6"},
        ),
        Row(
            "own first layer, one-hot",
            RESNET.gates({**guided, "sgs.guidance": 1.0, "model.shared": False}),
            {"MAdds": "3.0B", TOP1: "72.7"},
        ),
        Row("shared, one-hot", losses(0.0, 0.0, 1.0), {"MAdds": "3.1B", TOP1: "76.6"}),
    )
    five = DYNAMIC[3].name
    claims = (
        Claim("one-hot over scalar, top-1", TOP1, "shared, one-hot", "shared, scalar", 3.0),
        Claim("shared over own first layer, top-1", TOP1, "shared, one-hot", "own first layer, one-hot", 3.9),
        Claim("one-hot over scalar at five budgets", five, "shared, one-hot", "shared, scalar"),
        Claim("shared over own first layer at five budgets", five, "shared, one-hot", "own first layer, one-hot"),
    )
    return (Table("Design of the gate on DS-ResNet, SGS loss only", DYNAMIC, rows, claims, GAIN_NOTE),)


def distribution_tables(scale: Scale) -> tuple[Table, ...]:
    rows = (Row("gate, try best", RESNET.gates(PAPER_GATES)), Row("slim-first (ours)", RESNET.gates(SLIM_FIRST)))
    return (Table("Gate distribution of DS-ResNet", DYNAMIC, rows, (), GAIN_NOTE),)


def distribution_plots(scale: Scale) -> tuple[Plot, ...]:
    return (
        gate_shares("Widths chosen by the paper's gates, DS-ResNet (first seed)", "gate, try best"),
        gate_shares("Widths chosen by the slim-first router, DS-ResNet (first seed)", "slim-first (ours)"),
    )


SMALL = "gate, try best, S"
ROUTERS = {"gate, try best": PAPER_GATES, "gate, correctness (ours)": CORRECTNESS, "slim-first (ours)": SLIM_FIRST}


def supernet_tables(scale: Scale) -> tuple[Table, ...]:
    note = (
        "Over a lottery: above one between the slimmest and the widest path of a row's own routing space, blind to the "
        "image. "
        "S: the paper's small networks, whose gates may choose among the lowest widths only; their budgets span these. "
        "The paper compares them with a sub-network of 8 to 9 % fewer MAdds; here both cost the same."
    )
    columns = (
        Column("as trained", as_trained("gain"), "points"),
        *(Column(f"budget {budget + 1}", at_budget(budget, "gain"), "points") for budget in range(5)),
        Column("mean", mean_gain, "points"),
        Column("over a lottery, mean", over_lottery("score"), "points"),
    )
    itself = {column.name: constant(0.0) for column in columns[:-1]} | {columns[-1].name: over_lottery("hull")}
    tables = []
    for name, supernet, paper in (("DS-MBNet", MBNET, 0.8), ("DS-ResNet", RESNET, 1.2)):
        uniform = f"{name}: uniform sub-networks"
        rows, claims = [Row(uniform, supernet.gates(PAPER_GATES), {}, itself)], []
        slim = {**PAPER_GATES, "model.routing": scale.slim[supernet.base]}
        rows.append(Row(f"{name}: {SMALL}", supernet.gates(slim)))
        claims.append(Claim(f"{name}, {SMALL}: as trained", "as trained", f"{name}: {SMALL}", uniform, paper))
        for label, keys in ROUTERS.items():
            row = f"{name}: {label}"
            rows.append(Row(row, supernet.gates(keys)))
            claims.append(Claim(f"{name}, {label}: slimmest budget", "budget 1", row, uniform))
            claims.append(Claim(f"{name}, {label}: mean of five budgets", "mean", row, uniform))
        title = f"{name} with a router against its supernet at equal MAdds, points"
        tables.append(Table(title, columns, tuple(rows), tuple(claims), f"{GAIN_NOTE} {note}"))
    return tuple(tables)


def supernet_plots(scale: Scale) -> tuple[Plot, ...]:
    plots = []
    for name in ("DS-MBNet", "DS-ResNet"):
        dynamic = {f"{name}: {label}": label for label in ROUTERS}
        uniform = {f"{name}: uniform sub-networks": "uniform sub-networks"}
        plots.append(tradeoff(f"{name}: routers and uniform sub-networks", uniform, dynamic, {}))
    return tuple(plots)
