"""Experiments that reuse a trained network: transfer to other data, and object detection."""

from __future__ import annotations

from dsnet.experiments.catalogue.networks import MBNET, RESNET, SUPERNET
from dsnet.experiments.catalogue.routers import CORRECTNESS, PAPER_GATES
from dsnet.experiments.layout import Claim, Column, Row, Table
from dsnet.experiments.measures import as_trained, at_budget, slimmest, widest, widest_madds
from dsnet.experiments.recipe import Recipe, Scale


def transfer_tables(scale: Scale) -> tuple[Table, ...]:
    tables = []
    columns = (
        Column("slimmest", slimmest),
        Column("widest", widest),
        Column("gates as trained", as_trained("score")),
        Column("MAdds", as_trained("madds"), "madds"),
        Column("middle budget", at_budget(2, "score")),
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
