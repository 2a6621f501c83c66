"""The paper's experiments."""

from __future__ import annotations

from dsnet.cost import CostTable
from dsnet.experiments.declare import Claim, Column, Experiment, Plot, Row, Table
from dsnet.experiments.measures import (
    all_widths,
    as_trained,
    at_budget,
    average_precision,
    constant,
    detector_madds,
    dynamic_at,
    dynamic_precision,
    gate_shares,
    mean_gain,
    operating_points,
    router_auc,
    slimmest,
    tradeoff,
    training_curve,
    uniform_at,
    widest,
    widest_madds,
)
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.experiments.simulated import latency, motivation
from dsnet.models import model_spec

SUPERNET = {"stage": "supernet"}
PAPER_GATES = {"sgs.router": "gate", "sgs.targets": "try_best"}
MBNET, RESNET, EFFNET, US = (Recipe(base, SUPERNET) for base in ("mbnet", "resnet", "effnet", "us"))
SLIM_FIRST = {"sgs.router": "slim_first"}
CORRECTNESS = {"sgs.router": "gate", "sgs.targets": "correctness"}

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


def static_madds(scale: Scale, base: str, width: float) -> float:
    keys = scale.bases[base]
    size = keys.get("data.image_size") or {"digits": 16, "cifar10": 32}[keys["data.dataset"]]
    channels = 1 if keys["data.dataset"] == "digits" else 3
    spec = model_spec(keys["model.name"], width=width, image_size=size, in_channels=channels)
    return float(CostTable(spec, size).madds(()))


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
        "Dynamic accuracies are interpolated between the slimmest path, five calibrated budgets, and the widest path.",
    )


def main_tables(scale: Scale) -> tuple[Table, ...]:
    paper = {0.5: ("70.1", "63.3"), 0.75: ("72.8", "68.4"), 1.0: ("74.5", "70.9")}
    return (against_static(scale, MBNET.gates(SLIM_FIRST), "static", paper),)


def main_plots(scale: Scale) -> tuple[Plot, ...]:
    dynamic = f"dynamic at the MAdds of x{scale.widths[0]:g}"
    static = {f"static x{width:g}": f"static x{width:g}" for width in scale.widths}
    title = "One dynamic network against separately trained static ones"
    return (tradeoff(title, {dynamic: "its uniform sub-networks"}, {dynamic: "dynamic, router slim_first"}, static),)


def us_tables(scale: Scale) -> tuple[Table, ...]:
    labels = {"us": "US network, in-place distillation", "ds": "DS-Net, dynamic", "uniform": "DS-Net, uniform"}
    columns, rows, claims = [], [], []
    paper = {0.5: ("64.2", "70.1"), 0.75: ("69.5", "72.8"), 1.0: ("71.8", "74.5")}
    dynamic = MBNET.gates(SLIM_FIRST)
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


def ieb_tables(scale: Scale) -> tuple[Table, ...]:
    columns = Column("slimmest", slimmest), Column("widest", widest), Column("mean of all widths", all_widths)
    rows = (
        Row("in-place distillation", US.but({"ieb.teacher": "inplace"}), {"slimmest": "66.5", "widest": "74.0"}),
        Row("EMA target", US.but({"ieb.teacher": "ema"}), {"slimmest": "68.1", "widest": "74.3"}),
        Row("IEB", US, {"slimmest": "68.3", "widest": "74.6"}),
    )
    claims = (
        Claim("IEB over in-place distillation, slimmest", "slimmest", "IEB", "in-place distillation", 1.8),
        Claim("IEB over in-place distillation, widest", "widest", "IEB", "in-place distillation", 0.6),
        Claim(
            "EMA target over in-place distillation, slimmest", "slimmest", "EMA target", "in-place distillation", 1.6
        ),
        Claim("EMA target over in-place distillation, widest", "widest", "EMA target", "in-place distillation", 0.3),
    )
    note = (
        "The paper does not say which slimmable MobileNetV1 it trained; its figures point to a narrower range of "
        "widths than this network's 0.25 to 1.0."
    )
    return (Table("In-place Ensemble Bootstrapping on a slimmable MobileNetV1", columns, rows, claims, note),)


def temperature_tables(scale: Scale) -> tuple[Table, ...]:
    short = {"optim.epochs": 40} if scale.name == "paper" else {}  # as in the paper
    warm, hot = MBNET.but(short), MBNET.but({"ieb.temperature": 4.0, **short})
    rows = (
        Row("temperature 1", warm, {"slimmest": "59.2", "widest": "65.6"}),
        Row("temperature 4", hot, {"slimmest": "49.0", "widest": "67.6"}),
    )
    claims = (
        Claim("temperature 1 over 4, slimmest", "slimmest", "temperature 1", "temperature 4", 10.2),
        Claim("temperature 4 over 1, widest", "widest", "temperature 4", "temperature 1", 2.0),
    )
    columns = Column("slimmest", slimmest), Column("widest", widest), Column("mean of all widths", all_widths)
    return (Table("Distillation temperature on DS-MBNet", columns, rows, claims),)


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


def supernet_tables(scale: Scale) -> tuple[Table, ...]:
    tables = []
    for name, supernet, paper in (("DS-MBNet", MBNET, 0.8), ("DS-ResNet", RESNET, 1.2)):
        columns, rows, claims = [], [], []
        for budget in range(5):
            columns.append(Column(f"budget {budget + 1}", at_budget(budget, "gain"), "points"))
        columns.append(Column("mean", mean_gain, "points"))
        zero = {column.name: constant(0.0) for column in columns}
        routers = {
            "gate, try best": PAPER_GATES,
            "gate, correctness (ours)": CORRECTNESS,
            "slim-first (ours)": SLIM_FIRST,
        }
        rows.append(Row(f"{name}: uniform sub-networks", supernet.gates(PAPER_GATES), {}, zero))
        for label, keys in routers.items():
            rows.append(Row(f"{name}: {label}", supernet.gates(keys)))
            both = f"{name}: {label}", f"{name}: uniform sub-networks"
            slim = paper if keys is PAPER_GATES else None
            claims.append(Claim(f"{name}, {label}: over the supernet, slimmest budget", "budget 1", *both, slim))
            claims.append(Claim(f"{name}, {label}: over the supernet, mean of five budgets", "mean", *both))
        title = f"{name} with a router against its supernet at equal MAdds, points"
        note = "The paper compares its S models with a sub-network of 8 to 9 % fewer MAdds; here both cost the same."
        tables.append(Table(title, tuple(columns), tuple(rows), tuple(claims), f"{GAIN_NOTE} {note}"))
    return tuple(tables)


def supernet_plots(scale: Scale) -> tuple[Plot, ...]:
    plots = []
    for name in ("DS-MBNet", "DS-ResNet"):
        routers = ("gate, try best", "gate, correctness (ours)", "slim-first (ours)")
        dynamic = {f"{name}: {label}": label for label in routers}
        uniform = {f"{name}: uniform sub-networks": "uniform sub-networks"}
        plots.append(tradeoff(f"{name}: routers and uniform sub-networks", uniform, dynamic, {}))
    return tuple(plots)


def transfer_tables(scale: Scale) -> tuple[Table, ...]:
    tables = []
    columns = (
        Column("slimmest", slimmest),
        Column("widest", widest),
        Column("gates as trained", as_trained("top1")),
        Column("MAdds", as_trained("madds"), "madds"),
        Column("middle budget", at_budget(2, "top1")),
    )
    for name, supernet in (("DS-ResNet", RESNET), ("DS-MBNet", MBNET)):
        rows, claims = [], []
        base = f"{supernet.base}_target"
        rate = {"optim.lr": 0.1} if scale.name == "cpu" else {}
        for words, gates in (("try best", PAPER_GATES), ("correctness", CORRECTNESS)):
            source = supernet.gates(gates)
            first = supernet.gates(PAPER_GATES)  # one fine-tuned supernet serves both
            target = Recipe(base, SUPERNET, source=first)
            fresh, kept = target.gates(gates), target.gates(gates, gate_from=source)
            without, with_ = (f"{name}: {how} gate transfer ({words})" for how in ("without", "with"))
            paper = {"gates as trained": "97.4", "MAdds": "1.7B"}, {"gates as trained": "97.8", "MAdds": "1.6B"}
            shown = name == "DS-ResNet" and words == "try best"
            if words == "try best":
                scratch = Recipe(base, {"stage": "both", **gates, **rate})
                rows.append(Row(f"{name}: from scratch", scratch))
            rows.append(Row(without, fresh, paper[0] if shown else {}))
            rows.append(Row(with_, kept, paper[1] if shown else {}))
            text = f"{name}: with over without gate transfer ({words})"
            claims.append(Claim(f"{text}, as trained", "gates as trained", with_, without, 0.4 if shown else None))
            claims.append(Claim(f"{text}, middle budget", "middle budget", with_, without))
        better = f"{name}: without gate transfer (try best)"
        claims.append(Claim(f"{name}: transfer over scratch, widest", "widest", better, f"{name}: from scratch"))
        tables.append(Table(f"Transfer of {name} to other data", columns, tuple(rows), tuple(claims)))
    return tuple(tables)


def detection_tables(scale: Scale) -> tuple[Table, ...]:
    dynamic = Recipe("detector", backbone=Recipe("backbone"))
    static = Recipe("detector", backbone=Recipe("static_backbone"))
    madds, precision = "MAdds", "mAP"
    paper = {0: ("2.3B", "70.7"), 1: ("2.7B", "72.8"), 2: ("3.2B", "73.7")}
    rows = [Row("static MobileNetV1 + FSSD", static, {madds: "4.3B", precision: "71.9"})]
    for budget, name in enumerate("SML"):
        measures = {madds: dynamic_precision(budget, "madds"), precision: dynamic_precision(budget, "map")}
        rows.append(
            Row(f"DS-MBNet-{name} + FSSD", dynamic, dict(zip((madds, precision), paper[budget], strict=True)), measures)
        )
    claims = tuple(
        Claim(f"{row.label} over static", precision, row.label, rows[0].label, float(row.paper[precision]) - 71.9)
        for row in rows[1:]
    )
    columns = Column(madds, detector_madds, "madds"), Column(precision, average_precision)
    note = (
        "Mean average precision at an overlap of 0.5 by the area rule; the paper's is by VOC 2007's 11-point rule, on "
        "other data. S, M and L are budgets of one gate. A minus of the paper is a claim, too: S is worse than static."
    )
    return (Table("FSSD detectors on a dynamic and on a static backbone", columns, tuple(rows), claims, note),)


def effnet_tables(scale: Scale) -> tuple[Table, ...]:
    paper = {1.0: ("76.7", "76.0"), 0.75: ("75.4", "74.6")}
    return (against_static(scale, EFFNET.gates(SLIM_FIRST), "static_effnet", paper),)


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("motivation", "Why dynamic networks", "A simulation; nothing is trained.", measure=motivation),
        Experiment(
            "main",
            "Dynamic against static networks",
            "One network with a router against static networks of equal MAdds, each trained by itself.",
            main_tables,
            main_plots,
        ),
        Experiment(
            "universal",
            "DS-Net against universally slimmable networks",
            "A universally slimmable network narrows every layer; DS-Net keeps a fixed front and routes each image.",
            us_tables,
            us_plots,
        ),
        Experiment(
            "ieb",
            "In-place Ensemble Bootstrapping",
            "Who teaches the narrow sub-networks: the online widest, its moving average, or the average's ensemble.",
            ieb_tables,
            lambda scale: (training_curve("The slimmest sub-network during training", "calibration/slimmest"),),
        ),
        Experiment(
            "temperature",
            "Distillation temperature",
            "A higher temperature softens what the sub-networks teach each other.",
            temperature_tables,
            lambda scale: (training_curve("The slimmest sub-network during training", "calibration/slimmest"),),
        ),
        Experiment(
            "losses",
            "Losses of gate training",
            "Each of the three losses of stage II with and without the others.",
            losses_tables,
            losses_plots,
        ),
        Experiment("sgs", "What the router learns", "The paper's targets and ours.", sgs_tables, sgs_plots),
        Experiment("gate_design", "Design of the gate", "What slimming heads read and say.", design_tables),
        Experiment(
            "gate_distribution",
            "Gate distribution",
            "Which widths the gates choose.",
            distribution_tables,
            distribution_plots,
        ),
        Experiment(
            "supernet",
            "Routers against their own supernet",
            "What is gained by choosing the width for each image instead of one width for all.",
            supernet_tables,
            supernet_plots,
        ),
        Experiment(
            "latency", "Latency", "Ways to run a part of the channels, and milliseconds of each width.", measure=latency
        ),
        Experiment("transfer", "Transfer", "A supernet and its gates go to other data.", transfer_tables),
        Experiment("detection", "Object detection", "FSSD on a dynamic backbone.", detection_tables),
        Experiment("efficientnet", "EfficientNet", "DS-EffNet against static EfficientNets.", effnet_tables),
    )
}
