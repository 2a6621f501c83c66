"""Stage I: who teaches the sub-networks, and how softly."""

from __future__ import annotations

from dsnet.experiments.catalogue.common import MBNET, US
from dsnet.experiments.declare import Claim, Column, Row, Table
from dsnet.experiments.measures import all_widths, slimmest, widest
from dsnet.experiments.recipe import Scale


def ieb_tables(scale: Scale) -> tuple[Table, ...]:
    columns = Column("slimmest", slimmest), Column("widest", widest), Column("mean of all widths", all_widths)
    us = US.but({"optim.epochs": 8} if scale.name == "cpu" else {})  # six supernets, the dearest of all tables
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
