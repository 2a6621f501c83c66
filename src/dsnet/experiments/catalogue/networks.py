"""Experiments on stage I (teachers and distillation temperature), and dynamic against static and slimmable networks."""

from __future__ import annotations

from dataclasses import replace
from math import nan

from dsnet.experiments.layout import Claim, Column, Plot, Row, Table
from dsnet.experiments.measures import (
    all_widths,
    constant,
    dynamic_at,
    dynamic_share,
    slimmest,
    tradeoff,
    training_curve,
    uniform_at,
    widest,
    widest_madds,
)
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.models import model_spec
from dsnet.models.count import count

SUPERNET = {"stage": "supernet"}
MBNET, RESNET, EFFNET, US = (Recipe(base, SUPERNET) for base in ("mbnet", "resnet", "effnet", "us"))
CHEAP_FIRST = {"sgs.router": "cheap_first"}
AUTO = {"sgs.router": "auto"}  # what a network gets by default
TOP1 = "top-1"
BEFORE = {"optim.lr": 0.05, "ieb.weight": 1.0}  # of the small networks, before the sweep in docs/results/widest.md
WIDTHS = Column("slimmest", slimmest), Column("widest", widest), Column("mean of all widths", all_widths)


def training_plots(scale: Scale) -> tuple[Plot, ...]:
    return (training_curve("The slimmest sub-network during training", "calibration/slimmest"),)


def ieb_tables(scale: Scale) -> tuple[Table, ...]:
    us = US.but({"optim.epochs": 8}, unsaid=BEFORE) if scale.name == "cpu" else US  # six supernets, an expensive table
    rows = (
        Row("in-place distillation", us.but({"ieb.teacher": "inplace"}), {"slimmest": "66.5", "widest": "74.0"}),
        Row("EMA target", us.but({"ieb.teacher": "ema"}), {"slimmest": "68.1", "widest": "74.3"}),
        Row("IEB", us, {"slimmest": "68.3", "widest": "74.6"}),
    )
    claims = (
        Claim("IEB over in-place distillation, slimmest", "slimmest", "IEB", "in-place distillation", 1.8),
        Claim("IEB over in-place distillation, widest", "widest", "IEB", "in-place distillation", 0.6),
        Claim(
            "EMA target over in-place distillation, slimmest", "slimmest", "EMA target", "in-place distillation", 1.6
        ),
        Claim("EMA target over in-place distillation, widest", "widest", "EMA target", "in-place distillation", 0.3),
        Claim("IEB over EMA target, slimmest", "slimmest", "IEB", "EMA target", 0.2),
        Claim("IEB over EMA target, widest", "widest", "IEB", "EMA target", 0.3),
    )
    note = (
        "The paper does not say which slimmable MobileNetV1 it trained; its figures point to a narrower range of "
        "widths than this network's 0.25 to 1.0."
    )
    return (Table("In-place Ensemble Bootstrapping on a slimmable MobileNetV1", WIDTHS, rows, claims, note),)


def temperature_tables(scale: Scale) -> tuple[Table, ...]:
    short = {"optim.epochs": 40} if scale.name == "paper" else {}  # as in the paper
    warm = MBNET.but(short, unsaid=BEFORE if scale.name == "cpu" else {})
    hot = warm.but({"ieb.temperature": 4.0})
    rows = (
        Row("temperature 1", warm, {"slimmest": "59.2", "widest": "65.6"}),
        Row("temperature 4", hot, {"slimmest": "49.0", "widest": "67.6"}),
    )
    claims = (
        Claim("temperature 1 over 4, slimmest", "slimmest", "temperature 1", "temperature 4", 10.2),
        Claim("temperature 4 over 1, widest", "widest", "temperature 4", "temperature 1", 2.0),
    )
    return (Table("Distillation temperature on DS-MBNet", WIDTHS, rows, claims),)


def static_madds(scale: Scale, base: str, width: float) -> float:
    keys = scale.keys(base)
    size = keys.get("data.image_size") or {"digits": 16, "cifar10": 32}[keys["data.dataset"]]
    channels = 1 if keys["data.dataset"] in ("digits", "fashion_mnist") else 3
    spec = model_spec(keys["model.name"], width=width, image_size=size, in_channels=channels)
    return float(count(spec, size).madds(()))


def against_static(scale: Scale, dynamic: Recipe, static: str, paper: dict[float, tuple[str, str]]) -> Table:
    """Dynamic and static networks at the MAdds of the static ones."""
    rows, claims = [], []
    for width in scale.widths:
        cost = static_madds(scale, static, width)
        ours, theirs = paper.get(width, ("", ""))
        one, two = f"static x{width:g}", f"dynamic at the MAdds of x{width:g}"
        rows.append(Row(one, Recipe(static, {"model.width": width}), {TOP1: theirs}))
        measures = {"MAdds": constant(cost), TOP1: dynamic_at(cost)}
        rows.append(Row(two, dynamic, {TOP1: ours}, measures))
        difference = float(ours) - float(theirs) if ours and theirs else None
        claims.append(Claim(f"dynamic over static x{width:g} at equal MAdds", TOP1, two, one, difference))
    return Table(
        "Dynamic networks against static networks of equal MAdds, trained by the same recipe",
        (Column("MAdds", widest_madds, "madds"), Column(TOP1, widest)),
        tuple(rows),
        tuple(claims),
        "Dynamic accuracies are interpolated between the slimmest path or the exit, whichever gives more, and five "
        "calibrated budgets. Beyond the last budget, a router with an exit keeps its accuracy, because it combines the "
        "answers of exit and width; without one, the widest path is the end.",
    )


def main_tables(scale: Scale) -> tuple[Table, ...]:
    paper = {0.5: ("70.1", "63.3"), 0.75: ("72.8", "68.4"), 1.0: ("74.5", "70.9")}
    return (against_static(scale, MBNET.gates(AUTO), "static", paper),)


def main_plots(scale: Scale) -> tuple[Plot, ...]:
    dynamic = f"dynamic at the MAdds of x{scale.widths[0]:g}"
    static = {f"static x{width:g}": f"static x{width:g}" for width in scale.widths}
    title = "One dynamic network against separately trained static ones"
    return (tradeoff(title, {dynamic: "its uniform sub-networks"}, {dynamic: "dynamic, router auto"}, static),)


def effnet_tables(scale: Scale) -> tuple[Table, ...]:
    paper = {1.0: ("76.7", "76.0"), 0.75: ("75.4", "74.6")}
    return (against_static(scale, EFFNET.gates(AUTO), "static_effnet", paper),)


def tiny_sizes_tables(scale: Scale) -> tuple[Table, ...]:
    """Sizes and widths of small networks that are trained from scratch."""
    columns = [
        Column("MAdds", widest_madds, "madds"),
        Column("cheapest setting", slimmest),
        Column("largest setting", widest),
        *(Column(f"routed at {share:g}", dynamic_share(share)) for share in (0.4, 0.55, 0.7)),
    ]
    names = {"static network": "static", "its sizes": "sizes", "widths": "widths", "widths and sizes": "both"}
    rows = []
    for label, name in names.items():
        recipe = Recipe(f"tiny_{name}")
        rows.append(Row(label, recipe if name == "static" else recipe.gates({"sgs.router": "margin"})))
    rows[0] = replace(rows[0], measures={column.name: constant(nan) for column in columns[3:]})  # it has no router
    note = (
        "The static network is a plain MobileNetV1, the one with widths a DS-MBNet. Routed: at a share of the MAdds of "
        "the network's own largest setting, between its budgets, by the calibrated margin of the first look."
    )
    return (Table("Sizes and widths of small networks, trained from scratch", tuple(columns), tuple(rows), (), note),)


def us_tables(scale: Scale) -> tuple[Table, ...]:
    labels = {"us": "US network, in-place distillation", "ds": "DS-Net, dynamic", "uniform": "DS-Net, uniform"}
    columns, rows, claims = [], [], []
    paper = {0.5: ("64.2", "70.1"), 0.75: ("69.5", "72.8"), 1.0: ("71.8", "74.5")}
    dynamic = MBNET.gates(AUTO)
    us, ds, uniform = {}, {}, {}
    for width in scale.widths:
        cost = static_madds(scale, "static", width)
        name = f"at the MAdds of x{width:g}"
        columns.append(Column(name, uniform_at(cost)))
        us[name], ds[name] = paper.get(width, ("", ""))
        uniform[name] = dynamic_at(cost)
        difference = float(ds[name]) - float(us[name]) if us[name] else None
        claims.append(Claim(f"DS-Net over the US network {name}", name, labels["ds"], labels["us"], difference))
    rows.append(Row(labels["us"], US.but({"ieb.teacher": "inplace"}), us))
    rows.append(Row("US network, IEB", US))
    rows.append(Row(labels["uniform"], dynamic))
    rows.append(Row(labels["ds"], dynamic, ds, uniform))
    return (Table("DS-Net against universally slimmable networks", tuple(columns), tuple(rows), tuple(claims)),)


def us_plots(scale: Scale) -> tuple[Plot, ...]:
    uniform = {
        "US network, in-place distillation": "universally slimmable, in-place distillation",
        "US network, IEB": "universally slimmable, IEB",
        "DS-Net, uniform": "DS-Net, uniform sub-networks",
    }
    return (
        tradeoff("DS-Net against universally slimmable networks", uniform, {"DS-Net, dynamic": "DS-Net, dynamic"}, {}),
    )
