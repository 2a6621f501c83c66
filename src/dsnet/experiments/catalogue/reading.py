"""What limits gates with the paper's targets: what they read, how many widths a window has, and who decides."""

from __future__ import annotations

from dsnet.experiments.catalogue.routers import (
    AS_TRAINED,
    FIVE,
    GAIN_NOTE,
    GATE,
    KNOWING,
    KNOWING_NOTE,
    one_by_one,
)
from dsnet.experiments.layout import Claim, Column, Measure, Row, Table
from dsnet.experiments.measures import as_trained, at_budget, constant, mean_gain
from dsnet.experiments.recipe import Keys, Recipe, Scale

CODE, WIDTHS = "the gate's code", "its own widths"


def readings(scale: Scale, *, several: bool) -> dict[str, Keys]:
    """Gates that choose within windows. several: whether the network has several gates."""
    gate: Keys = {**GATE, "sgs.targets": "try_best"}
    windows: Keys = {} if scale.window == 3 else {"sgs.windows": scale.window}
    wider = 4 if scale.window == 3 else scale.window + 1
    each = {"one by one, within windows": {**one_by_one(scale), "sgs.windows": scale.window}} if several else {}
    return {
        CODE: {**gate, **windows},
        "its code, windows of two": {**gate, "sgs.windows": 2},
        f"its code, windows of {'four' if wider == 4 else wider}": {**gate, "sgs.windows": wider},
        **each,
        "a code of its own": {**gate, "model.shared": False, **windows},
        "early classifier, linear": {**gate, "sgs.early": 0, **windows},
        "early classifier, linear, windows of two": {**gate, "sgs.early": 0, "sgs.windows": 2},
        "early classifier, 64": {**gate, "sgs.early": 64, **windows},
        "early classifier, 128": {**gate, "sgs.early": 128, **windows},
    }


def reading_tables(scale: Scale, name: str, supernet: Recipe) -> tuple[Table, ...]:
    kinds = readings(scale, several=supernet.base == "resnet")
    columns = (
        Column(AS_TRAINED, as_trained("gain"), "points"),
        *(Column(f"budget {budget + 1}", at_budget(budget, "gain"), "points") for budget in range(5)),
        Column(FIVE, mean_gain(), "points"),
        *KNOWING,
    )
    level: dict[str, Measure | None] = {column.name: constant(0.0) for column in columns[:7]}
    level |= dict.fromkeys([column.name for column in KNOWING])
    rows = (
        Row(WIDTHS, supernet.gates(kinds[CODE]), {}, level),
        *(Row(label, supernet.gates(keys)) for label, keys in kinds.items()),
    )
    claims = tuple(Claim(f"{label}: five budgets", FIVE, label, WIDTHS) for label in kinds)
    note = (
        f"{GAIN_NOTE} {KNOWING_NOTE} All gates learn the paper's target (try best) with balanced guidance, and choose "
        f"within windows of {scale.window} adjacent widths where the row does not say otherwise. The gate's code is "
        "the hidden layer that it shares with the attention; a code of its own is a hidden layer that only the "
        "slimming head uses. The early classifier has no hidden layer (linear) or so many hidden units."
    )
    title = f"{name}: gates with the paper's targets, points over its own widths at equal MAdds"
    return (Table(title, columns, rows, claims, note),)
