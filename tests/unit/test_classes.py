"""Precision, recall, confusions, and what budgets cost each class; measures and remedies that fit the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

import dsnet
from dsnet.report.classes import losses_table, matrices, pairs_table, scores_table, worst
from dsnet.report.figures import draw
from dsnet.results import ClassRow, ClassScore, Evaluation, Metric, Stat
from dsnet.routers import Router, RouterSpec
from dsnet.runs.dynamic import health
from dsnet.runs.routes import judged
from dsnet.space import WidthSpace
from dsnet.tasks.classification.accuracy import AccuracyScorer
from support.results import budget, compared


def told(classes: int, images: int = 400) -> tuple[Evaluation, np.ndarray, np.ndarray]:
    """An evaluation of the full network and of a budget, with the labels and the full network's answers."""
    rng = np.random.default_rng(classes)
    labels = rng.integers(classes, size=images)
    answers = np.where(rng.random(images) < 0.7, labels, rng.integers(classes, size=images))
    other = np.where(rng.random(images) < 0.6, labels, rng.integers(classes, size=images))
    result = compared([-0.1])
    assert result.dynamic is not None
    names = tuple(f"class {number}" for number in range(classes))
    rows = tuple(
        ClassRow(
            name,
            int((labels == k).sum()),
            tuple(float((each == labels)[labels == k].mean()) for each in (other, labels)),
            (1.0, 2.0),
        )
        if (labels == k).any()
        else ClassRow(name, 0, (None, None), (None, None))
        for k, name in enumerate(names)
    )
    both = judged(labels, answers, classes, None), judged(labels, other, classes, 0)
    dynamic = replace(result.dynamic, classes=rows, best=0)
    return replace(result, classes=names, dynamic=dynamic, answers=both), labels, answers


def test_scores_of_classes_are_those_of_scikit_learn() -> None:
    result, labels, answers = told(7)
    precision, recall, f1, images = precision_recall_fscore_support(labels, answers, labels=range(7))
    for row, *expected in zip(result.answers[0].classes, precision, recall, f1, images, strict=True):
        assert (row.precision, row.recall, row.f1, row.images) == pytest.approx(expected, abs=1e-4)
    figure, _ = matrices(result)
    assert np.array_equal(figure.counts, confusion_matrix(labels, answers, labels=range(7)))
    table = scores_table(result)
    assert table is not None
    assert (table.rows[-1][0], table.rows[-1][1]) == ("mean of classes", "400")
    assert table.rows[-1][4] == f"{np.mean(f1):.1%}"


def test_a_class_without_images_or_answers_has_no_scores() -> None:
    found = judged(np.array([0, 0, 1]), np.array([0, 0, 0]), 3, None)
    assert found.classes == (
        ClassScore(2, 0.6667, 1.0, 0.8),
        ClassScore(1, None, 0.0, 0.0),
        ClassScore(0, None, None, None),
    )
    assert found.wrong == ((1, 0, 1),)


@pytest.mark.parametrize(("classes", "drawn"), [(2, True), (30, True), (31, False), (1000, False)])
def test_of_many_classes_the_most_confused_pairs_are_listed(classes: int, drawn: bool) -> None:
    result, *_ = told(classes, 3000)
    figures, pairs = matrices(result), pairs_table(result)
    assert (len(figures), pairs is None) == (2 if drawn else 0, drawn)
    for figure in figures[:1]:
        assert draw(figure, to="page").count(b'class="part"') == sum(
            count > 0 for row in figure.counts for count in row
        )
    if pairs is not None:
        counts = [int(row[3]) + int(row[4]) for row in pairs.rows]
        assert counts == sorted(counts, reverse=True)
        assert len(counts) == 20
    assert len(result.answers[0].wrong) <= 1000


def test_classes_of_a_detector_lose_precision() -> None:
    result, *_ = told(2)
    rows = tuple(replace(row, more={"class 0": Stat(0.5), "class 1": Stat(0.25)}) for row in result.rows)
    assert result.dynamic is not None
    classes = (ClassRow("class 0", 3, (0.4, 0.5), (None, None)), ClassRow("class 1", 4, (0.05, None), (None, None)))
    dynamic = replace(result.dynamic, classes=classes)
    found = replace(result, metric=Metric("mAP", ".3f"), objects=7, answers=(), rows=rows, dynamic=dynamic)
    table = losses_table(found)
    assert table is not None
    assert table.rows == (("class 0", "3", "0.500", "-0.100", "+0.000"),)  # without the class that has no score
    assert worst(found).endswith("the class class 0 loses most against the full network: -0.100 on 3 objects.")


def test_the_class_that_loses_most_comes_first() -> None:
    result, *_ = told(5)
    table = losses_table(result)
    assert table is not None
    assert table.columns[:4] == ("<class", "images", "full network", "600 (best)")
    lost = [float(row[3]) for row in table.rows]
    assert lost == sorted(lost)
    assert f"the class {table.rows[0][0]} loses most" in worst(result)


@pytest.mark.parametrize(("classes", "measures"), [(2, ["loss"]), (5, ["loss"]), (6, ["top-5", "loss"])])
def test_top_5_is_left_out_where_it_says_nothing(classes: int, measures: list[str]) -> None:
    net = dsnet.create_model("ds_mobilenet_v1_tiny", num_classes=classes)
    scorer = AccuracyScorer(net.manifest())
    labels = torch.arange(4) % classes
    scorer.add((0,), np.arange(4), scorer.take({"logits": torch.randn(4, classes)}, labels), labels.numpy())
    assert list(scorer.of((0,))) == ["top-1", *measures]
    assert [measure.name for measure in scorer.metric.more] == measures


@pytest.mark.parametrize(
    ("spec", "remedy", "absent"),
    [
        (RouterSpec("cheap_first", "correctness"), "train the router longer", "cheap_first"),
        (RouterSpec("gate", "try_best"), "use sgs.router cheap_first", "nothing"),
        (RouterSpec("gate", "kl"), "use sgs.router cheap_first", "temperature"),
        (RouterSpec("threshold"), "Ask for another budget", "train"),
    ],
)
def test_a_collapsed_gate_has_remedies_that_its_router_lacks(spec: RouterSpec, remedy: str, absent: str) -> None:
    row = budget(100, 0.5)
    collapsed = replace(row, gates=(replace(row.gates[0], shares=(0.0, 1.0)),))
    (warning,) = health(Router(spec, WidthSpace(((0, 1),))), collapsed, "at the middle budget")
    assert remedy in warning
    assert absent not in warning
    assert health(Router(spec, WidthSpace(((0, 1),))), row, "") == []
