"""Experiments that reuse a trained network: transfer to other data, and object detection."""

from __future__ import annotations

from pathlib import Path

from dsnet.experiments.catalogue.networks import MBNET, RESNET, SUPERNET, static_madds
from dsnet.experiments.catalogue.routers import one_by_one
from dsnet.experiments.catalogue.starts import NARROW_FIRST, convert
from dsnet.experiments.layout import Claim, Column, Measure, Row, Table
from dsnet.experiments.measures import (
    as_trained,
    at_budget,
    dynamic_at,
    mean_gain,
    router_auc,
    slimmest,
    widest,
    widest_madds,
)
from dsnet.experiments.recipe import Recipe, Scale


def transfer_tables(scale: Scale) -> tuple[Table, ...]:
    tables = []
    trained, equal = "gates as trained", "at the MAdds of the static network"
    for name, supernet in (("DS-ResNet", RESNET), ("DS-MBNet", MBNET)):
        base, static, full = f"{supernet.base}_target", f"static_{supernet.base}_target", {"model.width": 1.0}
        cost = static_madds(scale, static, 1.0)
        columns = (
            Column("slimmest", slimmest),
            Column("widest", widest),
            Column(trained, as_trained("score")),
            Column("MAdds", as_trained("madds"), "madds"),
            Column("over uniform, as trained", as_trained("gain"), "points"),
            Column("middle budget", at_budget(2, "score")),
            Column(equal, dynamic_at(cost)),
        )
        rate = {"optim.lr": 0.1} if scale.name == "cpu" else {}
        paper = name == "DS-ResNet"
        plain, scratch, without, with_ = (
            f"{name}: {how}"
            for how in ("the static network", "from scratch", "without gate transfer", "with gate transfer")
        )
        alone: dict[str, Measure | None] = {
            "slimmest": None,
            trained: widest,
            "MAdds": widest_madds,
            "over uniform, as trained": None,
            "middle budget": None,
            equal: widest,
        }
        unrouted: dict[str, Measure | None] = {column.name: None for column in columns[2:]}
        fine_tuned = Recipe(static, full, source=Recipe("static" if supernet is MBNET else "static_resnet", full))
        gates = one_by_one(scale)
        source = supernet.gates(gates)
        target = Recipe(base, SUPERNET, source=source)
        rows = (
            Row(plain, fine_tuned, {trained: "96.8", "MAdds": "4.1B"} if paper else {}, alone),
            Row(scratch, Recipe(base, {**SUPERNET, **rate}), {}, unrouted),
            Row(without, target.gates(gates), {trained: "97.4", "MAdds": "1.7B"} if paper else {}),
            Row(with_, target.gates(gates, gate_from=source), {trained: "97.8", "MAdds": "1.6B"} if paper else {}),
        )
        text, over = f"{name}: with over without gate transfer", f"{name}: with gate transfer over the static network"
        claims = (
            Claim(f"{text}, as trained", trained, with_, without, 0.4 if paper else None),
            Claim(f"{text}, at equal MAdds", "over uniform, as trained", with_, without),
            Claim(f"{text}, middle budget", "middle budget", with_, without),
            Claim(f"{over}, as trained", trained, with_, plain, 1.0 if paper else None),
            Claim(f"{over}, at equal MAdds", equal, with_, plain),
            Claim(f"{name}: transfer over scratch, widest", "widest", without, scratch),
        )
        note = (
            "The static network was trained on the first data and fine-tuned on the second, as the supernets were. At "
            "its MAdds, dynamic accuracies are interpolated between the slimmest path, budgets and the widest path."
        )
        tables.append(Table(f"Transfer of {name} to other data", columns, rows, claims, note))
    return tuple(tables)


def prepare_slim(scale: Scale, out: Path, root: str | None) -> None:
    """Convert the network that `slim_transfer` starts from, unless it is there."""
    convert(scale, out, root, (NARROW_FIRST,))


def slim_transfer_tables(scale: Scale) -> tuple[Table, ...]:
    """The same with a pretrained network that `dsnet slim` converted. Its front is frozen, so a gate reads the same
    features of both data."""
    trained, source = "gate as trained", Recipe("slim_source", start=NARROW_FIRST)
    columns = (
        Column("slimmest", slimmest),
        Column("widest", widest),
        Column(trained, as_trained("score")),
        Column("MAdds", as_trained("madds"), "madds"),
        Column("over uniform, as trained", as_trained("gain"), "points"),
        Column("over uniform, five budgets", mean_gain(), "points"),
        Column("AUC", router_auc, "number"),
    )
    target, rows, claims = Recipe("slim_target", source=source), [], []
    for targets in ("try_best", "correctness"):
        gate, words = {"sgs.router": "gate", "sgs.targets": targets}, targets.replace("_", " ")
        without, with_ = f"without gate transfer ({words})", f"with gate transfer ({words})"
        rows.append(Row(without, target.gates(gate)))
        rows.append(Row(with_, target.gates(gate, gate_from=source.gates(gate, start=None))))
        for column in (trained, "over uniform, as trained", "over uniform, five budgets"):
            claims.append(Claim(f"with over without gate transfer ({words}), {column}", column, with_, without))
    note = "The gate decides once. Its features come from a front that both data share, as ImageNet trained it."
    title = "Transfer of a pretrained network, with and without its gate"
    return (Table(title, columns, tuple(rows), tuple(claims), note),)


def detection_tables(scale: Scale) -> tuple[Table, ...]:
    dynamic = Recipe("detector", backbone=Recipe("backbone"))
    static = Recipe("detector", backbone=Recipe("static_backbone"))
    madds, precision = "MAdds", "mAP"
    paper = [("2.3B", "70.7"), ("2.7B", "72.8"), ("3.2B", "73.7")]
    rows = [Row("static MobileNetV1 + FSSD", static, {madds: "4.3B", precision: "71.9"})]
    for budget, (name, (cost, score)) in enumerate(zip("SML", paper, strict=True)):
        measures = {madds: at_budget(budget, "madds"), precision: at_budget(budget, "score")}
        rows.append(Row(f"DS-MBNet-{name} + FSSD", dynamic, {madds: cost, precision: score}, measures))
    claims = tuple(
        Claim(f"{row.label} over static", precision, row.label, rows[0].label, float(row.paper[precision]) - 71.9)
        for row in rows[1:]
    )
    columns = Column(madds, widest_madds, "madds"), Column(precision, widest)
    if scale.keys("detector").get("rule") == "11point":
        how = "VOC 2007's 11-point rule, as the paper's"
    else:
        how = "the area rule; the paper's is by VOC 2007's 11-point rule, on other data"
    note = (
        f"Mean average precision at an overlap of 0.5 by {how}. S, M and L are budgets of one gate. A minus of the "
        "paper is a claim, too: S is worse than static."
    )
    return (Table("FSSD detectors on a dynamic and on a static backbone", columns, tuple(rows), claims, note),)
