"""Experiments on stage II: targets and losses of the gates, their design and their choices, and what routers gain."""

from __future__ import annotations

from dsnet.experiments.catalogue.networks import AUTO, CHEAP_FIRST, MBNET, RESNET, TOP1
from dsnet.experiments.layout import Claim, Column, Measure, Plot, Row, Table
from dsnet.experiments.measures import (
    as_trained,
    at_budget,
    constant,
    gap_closed,
    gate_shares,
    mean_gain,
    mean_width,
    operating_points,
    over_lottery,
    router_auc,
    share_at,
    smallest_entropy,
    tradeoff,
    trained_over_lottery,
    wider_auc,
)
from dsnet.experiments.recipe import Keys, Recipe, Scale

GATE = {"sgs.router": "gate"}
TRAINED, FIVE = "over uniform, as trained", "over uniform, five budgets"
DYNAMIC = (
    Column("MAdds", as_trained("madds"), "madds"),
    Column(TOP1, as_trained("score")),
    Column(TRAINED, as_trained("gain"), "points"),
    Column(FIVE, mean_gain(), "points"),
)
KNOWING = (
    Column("AUC", router_auc, "number"),
    Column("AUC, wider", wider_auc, "number"),
    Column("entropy", smallest_entropy, "number"),
)
GAIN_NOTE = (
    "Over uniform: points above the concave hull of the supernet's own uniform sub-networks at the same average MAdds; "
    "as trained (lambda 0; the mean over its windows, if the router has any) and, by the budget knob, as the mean of "
    "five budgets."
)
KNOWING_NOTE = (
    "AUC: how well the router's score tells whether the slimmest candidate is right; wider: whether the widest is "
    "right and the slimmest is not. Entropy: of the widths that a gate chooses as trained, in bits; the smallest of "
    "all gates and windows."
)


def one_by_one(scale: Scale, targets: str = "try_best") -> Keys:
    """The paper's gates: each decides by itself, among all widths."""
    return {**GATE, "sgs.targets": targets, "sgs.bound": False, "sgs.windows": 0, **scale.one_by_one}


def both(text: str, row: str, over: str, paper: float | None = None) -> tuple[Claim, ...]:
    """A claim about top-1 as trained, and the same at equal MAdds."""
    return (
        Claim(f"{text}, top-1 as trained", TOP1, row, over, paper),
        Claim(f"{text}, at equal MAdds", TRAINED, row, over),
    )


def losses(
    scale: Scale, classification: float, complexity: float, guidance: float, targets: str = "try_best"
) -> Recipe:
    """Gates that decide one by one, trained with these weights of the losses. 1 is the default of each."""
    weights = {"sgs.classification": classification, "sgs.complexity": complexity, "sgs.guidance": guidance}
    if (classification, complexity, guidance) == (1.0, 1.0, 1.0):
        weights = {}
    return RESNET.gates({**one_by_one(scale, targets), **weights})


LARGE, MIDDLE, SMALL = "L: SGS (try best)", "M: target + complexity + SGS (try best)", "S: complexity + SGS (try best)"


def losses_rows(scale: Scale) -> tuple[Row, ...]:
    return (
        Row("target", losses(scale, 1.0, 0.0, 0.0), {"MAdds": "3.6B", TOP1: "76.8"}),
        Row("complexity", losses(scale, 0.0, 1.0, 0.0), {"MAdds": "0.3B", TOP1: "66.2"}),
        Row("SGS (give up)", losses(scale, 0.0, 0.0, 1.0, "give_up"), {"MAdds": "1.5B", TOP1: "73.7"}),
        Row(LARGE, losses(scale, 0.0, 0.0, 1.0), {"MAdds": "3.1B", TOP1: "76.6"}),
        Row("target + complexity", losses(scale, 1.0, 1.0, 0.0), {"MAdds": "2.0B", TOP1: "75.0"}),
        Row(SMALL, losses(scale, 0.0, 1.0, 1.0), {"MAdds": "1.2B", TOP1: "74.6"}),
        Row(MIDDLE, losses(scale, 1.0, 1.0, 1.0), {"MAdds": "2.2B", TOP1: "76.1"}),
    )


def losses_tables(scale: Scale) -> tuple[Table, ...]:
    claims = (
        Claim("the target loss alone spends more than all three", "MAdds", "target", MIDDLE, 1.4e9),
        Claim("L spends more than M", "MAdds", LARGE, MIDDLE, 0.9e9),
        Claim("M spends more than S", "MAdds", MIDDLE, SMALL, 1.0e9),
        *both("all three over the complexity loss alone", MIDDLE, "complexity", 9.9),
        *both("SGS added to target + complexity", MIDDLE, "target + complexity", 1.1),
        *both("try best over give up", LARGE, "SGS (give up)", 2.9),
    )
    note = (
        f"{GAIN_NOTE} {KNOWING_NOTE} L, M and S are the paper's three networks: all four ratios at every gate, and "
        "other losses. Guidance is balanced between easy and hard images."
    )
    return (Table("Losses of gate training on DS-ResNet", (*DYNAMIC, *KNOWING), losses_rows(scale), claims, note),)


def losses_plots(scale: Scale) -> tuple[Plot, ...]:
    labels = tuple(row.label for row in losses_rows(scale))
    return (operating_points("Losses of gate training: where the gates end up", labels),)


def guided(scale: Scale, targets: str, *, balanced: bool, windows: bool) -> tuple[str, Keys]:
    """A gate on DS-MBNet, by its label and its keys."""
    words = (
        targets.replace("_", " "),
        "balanced" if balanced else "unbalanced",
        "windows" if windows else "all widths",
    )
    size = {} if windows and scale.window == 3 else {"sgs.windows": scale.window if windows else 0}
    return ", ".join(words), {**GATE, "sgs.targets": targets, **size, **({} if balanced else {"sgs.balanced": False})}


def sgs_rows(scale: Scale) -> dict[str, Keys]:
    return dict(
        guided(scale, targets, balanced=balanced, windows=windows)
        for targets in ("try_best", "give_up")
        for windows in (False, True)
        for balanced in (False, True)
    )


def sgs_tables(scale: Scale) -> tuple[Table, ...]:
    rows = tuple(Row(label, MBNET.gates(keys)) for label, keys in sgs_rows(scale).items())
    best, lazy = "try best, balanced, windows", "give up, balanced, windows"
    plain, unbalanced = "try best, balanced, all widths", "try best, unbalanced, windows"
    claims = (
        *both("try best over give up", best, lazy, 2.9),
        Claim("try best over give up, five budgets", FIVE, best, lazy),
        Claim("windows over all widths, as trained at equal MAdds", TRAINED, best, plain),
        Claim("windows over all widths, five budgets", FIVE, best, plain),
        Claim("balanced over unbalanced, as trained at equal MAdds", TRAINED, best, unbalanced),
        Claim("balanced over unbalanced, five budgets", FIVE, best, unbalanced),
    )
    note = (
        f"{GAIN_NOTE} {KNOWING_NOTE} Windows: the gate chooses among {scale.window} adjacent widths, and the budget "
        "picks the window. Balanced: easy and hard images have the same weight in the guidance. The paper's figure for "
        "try best over give up is of DS-ResNet."
    )
    return (Table("Guidance of the gate on DS-MBNet", (*DYNAMIC, *KNOWING), rows, claims, note),)


def sgs_plots(scale: Scale) -> tuple[Plot, ...]:
    names = {label: label for label in sgs_rows(scale) if label.startswith("try best")}
    first = next(iter(names))
    return (tradeoff("Gates on one DS-MBNet supernet", {first: "uniform sub-networks"}, names, {}),)


def design_tables(scale: Scale) -> tuple[Table, ...]:
    alone = {**one_by_one(scale), "sgs.classification": 0.0, "sgs.complexity": 0.0, "sgs.guidance": 1.0}
    scalar, own, usual = "shared, scalar", "own first layer, one-hot", "shared, one-hot"
    rows = (
        Row(scalar, RESNET.gates({**alone, "model.slimming": "scalar"}), {"MAdds": "2.3B", TOP1: "73.6"}),
        Row(own, RESNET.gates({**alone, "model.shared": False}), {"MAdds": "3.0B", TOP1: "72.7"}),
        Row(usual, losses(scale, 0.0, 0.0, 1.0), {"MAdds": "3.1B", TOP1: "76.6"}),
    )
    claims = (
        *both("one-hot over scalar", usual, scalar, 3.0),
        Claim("one-hot over scalar, five budgets", FIVE, usual, scalar),
        *both("shared over own first layer", usual, own, 3.9),
        Claim("shared over own first layer, five budgets", FIVE, usual, own),
    )
    note = f"{GAIN_NOTE} {KNOWING_NOTE}"
    return (Table("Design of the gate on DS-ResNet, SGS loss only", (*DYNAMIC, *KNOWING), rows, claims, note),)


def distribution_tables(scale: Scale) -> tuple[Table, ...]:
    """One row per gate of DS-ResNet-M and DS-ResNet-L."""
    columns = (
        Column("mean width", mean_width(0), "number"),
        *(Column(f"at {ratio}", share_at(0, width)) for width, ratio in enumerate(("0.25", "0.5", "0.75", "1"))),
    )
    rows, claims = [], []
    for name, recipe in (("M", losses(scale, 1.0, 1.0, 1.0)), ("L", losses(scale, 0.0, 0.0, 1.0))):
        for gate in range(4):
            measures = {column.name: share_at(gate, width) for width, column in enumerate(columns[1:])}
            rows.append(Row(f"{name}, gate {gate + 1}", recipe, {}, {**measures, "mean width": mean_width(gate)}))
        first, last = f"{name}, gate 1", f"{name}, gate 4"
        claims.append(Claim(f"{name}: the last gate chooses wider than the first", "mean width", last, first))
        claims.append(Claim(f"{name}: the last gate sends more images to the widest", "at 1", last, first))
        claims.append(Claim(f"{name}: the first gate sends more images to the slimmest", "at 0.25", first, last))
    note = (
        "As trained. Mean width: 0 if a gate always chooses the slimmest and 1 if it always chooses the widest; then "
        "the shares of the images at each ratio. In the paper's figure of M, gates 1 and 2 send about half of the "
        "images to the slimmest width, gates 3 and 4 about half to the widest."
    )
    return (Table("Gate distribution of DS-ResNet", columns, tuple(rows), tuple(claims), note),)


def distribution_plots(scale: Scale) -> tuple[Plot, ...]:
    title = "Widths chosen by the gates of DS-ResNet-{} (first seed)"
    return tuple(gate_shares(title.format(name), f"{name}, gate 1") for name in "ML")


def routers(scale: Scale, *, several: bool) -> dict[str, Keys]:
    """The routers that are compared on one supernet. several: whether it has several gates."""
    gates = {**GATE, "sgs.targets": "try_best"}
    windows = {} if scale.window == 3 else {"sgs.windows": scale.window}
    exit_first = {"sgs.router": "exit_first"}
    each = {ONE_BY_ONE: one_by_one(scale)} if several else {}
    return {
        **each,
        "gate, try best, all widths": {**gates, "sgs.windows": 0},
        "gate, try best, windows": {**gates, **windows},
        EARLY_GATE: {**gates, "sgs.early": 0, **windows},
        "early gate, correctness": {**GATE, "sgs.targets": "correctness", "sgs.early": 0},
        "cheap-first, margin": {"sgs.router": "margin"},
        "cheap-first": CHEAP_FIRST,
        "exit-first, linear": {**exit_first, "sgs.early": 0},
        "exit-first, 64": {**exit_first, "sgs.early": 64},
        "exit-first, 128": {**exit_first, "sgs.early": 128},
        "auto": AUTO,
    }


EARLY_GATE, ONE_BY_ONE = "early gate, try best, windows", "gates, try best, one by one"
TRAINED_LOTTERY = "its lottery, as trained"
AS_TRAINED, MEAN, WITH_EXIT, ITS_LOTTERY = "as trained", "mean", "mean, hull with the exit", "over its lottery"
SUPERNET_NOTE = (
    "Mean: of the five budgets. Hull with the exit: the early classifier's own answers are one more point of the hull. "
    "Over its lottery: points above choosing at random with the same shares, mean of five budgets; as trained: the "
    "smallest of its windows. Oracle gap: the mean gain over the hull as a share of what a router gains that knows the "
    "narrowest right width. Early gate: the gate reads an early classifier on the map in front of it, which is linear. "
    "Windows: {window} adjacent widths, picked by the budget. Margin: nothing is trained. Exit-first: the early "
    "classifier answers easy images; linear, or with 64 or 128 hidden units; its answer is combined with that of the "
    "width that runs after it. auto: exit-first with 128, or the margin if that is better on calibration images."
)


def supernet_columns() -> tuple[Column, ...]:
    return (
        Column(AS_TRAINED, as_trained("gain"), "points"),
        *(Column(f"budget {budget + 1}", at_budget(budget, "gain"), "points") for budget in range(5)),
        Column(MEAN, mean_gain(), "points"),
        Column(WITH_EXIT, mean_gain("exit_hull"), "points"),
        Column(ITS_LOTTERY, over_lottery, "points"),
        Column(TRAINED_LOTTERY, trained_over_lottery, "points"),
        Column("oracle gap", gap_closed),
        *KNOWING,
    )


def supernet_tables(scale: Scale, name: str, supernet: Recipe, paper: float) -> tuple[Table, ...]:
    """Every kind of router on one supernet. paper: points that the paper's gates gain on it."""
    columns = supernet_columns()
    itself: dict[str, Measure | None] = {column.name: constant(0.0) for column in columns[:8]}
    itself |= dict.fromkeys([column.name for column in columns[8:]])
    kinds = routers(scale, several=supernet is RESNET)
    uniform = f"{name}: uniform sub-networks"
    rows = [Row(uniform, supernet.gates(kinds["cheap-first"]), {}, itself)]
    claims = [
        Claim(f"{name}, {label}: as trained", AS_TRAINED, f"{name}: {label}", uniform, paper)
        for label in ("gate, try best, windows", EARLY_GATE)
    ]
    for label, keys in kinds.items():
        row = f"{name}: {label}"
        unknown = dict.fromkeys((ITS_LOTTERY, TRAINED_LOTTERY)) if label == ONE_BY_ONE else {}  # many paths are rare
        rows.append(Row(row, supernet.gates(keys), {}, unknown))
        claims.append(Claim(f"{name}, {label}: mean of five budgets", MEAN, row, uniform))
        if label.startswith(("exit", "auto")):
            claims.append(Claim(f"{name}, {label}: over the hull with the exit", WITH_EXIT, row, uniform))
    auto = f"{name}: auto"
    for other in ("cheap-first", EARLY_GATE):
        claims.append(Claim(f"{name}, auto over {other}", MEAN, auto, f"{name}: {other}"))
    title = f"{name} with a router against its supernet at equal MAdds, points"
    note = f"{GAIN_NOTE} {SUPERNET_NOTE.format(window=scale.window)} {KNOWING_NOTE}"
    table = Table(title, columns, tuple(rows), tuple(claims), note)
    return table, absolute_table(name, supernet, kinds)


def absolute_table(name: str, supernet: Recipe, kinds: dict[str, Keys]) -> Table:
    """Top-1 at the five budgets."""
    columns = tuple(Column(f"budget {budget + 1}", at_budget(budget, "score")) for budget in range(5))
    hull = {column.name: at_budget(budget, "hull") for budget, column in enumerate(columns)}
    rows = [Row(f"{name}: hull of the widths", supernet.gates(kinds["cheap-first"]), {}, hull)]
    rows += [Row(f"{name}, top-1: {label}", supernet.gates(keys)) for label, keys in kinds.items()]
    note = "Budgets are spaced evenly between the MAdds of the slimmest and of the widest width."
    return Table(f"{name}: top-1 at five budgets", columns, tuple(rows), (), note)


def supernet_plots(scale: Scale, name: str) -> tuple[Plot, ...]:
    shown = ("gate, try best, all widths", "gate, try best, windows", EARLY_GATE, "cheap-first", "auto")
    dynamic = {f"{name}: {label}": label for label in shown}
    uniform = {f"{name}: uniform sub-networks": "uniform sub-networks"}
    return (tradeoff(f"{name}: routers and uniform sub-networks", uniform, dynamic, {}),)
