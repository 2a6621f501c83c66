"""The account of carried weights, in words."""

from __future__ import annotations

from dsnet.weights.account import Account


def test_every_tensor_is_named_below_its_fate_and_reason() -> None:
    account = Account(
        whole=["a", "b"],
        cut={"stem": ((24, 3), (16, 3))},
        widened={"middle": ((8,), (12,))},
        adapted={"first": "3 input channels became 1"},
        unused={
            "mean": "group norm keeps no statistics",
            "other": "it has 7 classes",
            "var": "group norm keeps no statistics",
        },
        fresh={"head.classifier.weight": "the source has 7 classes"},
        limits=["one tensor was cut"],
        notes=["recalibrate or train"],
    )
    assert account.loaded == ["a", "b", "stem"]
    assert account.lines() == [
        "  2 loaded whole",
        "  1 cut to their leading channels:",
        "    stem  [24, 3] -> [16, 3]",
        "  1 wider than in the source, the rest is fresh:",
        "    middle  [8] -> [12]",
        "  1 adapted:",
        "    3 input channels became 1:",
        "      first",
        "  3 not used:",
        "    because group norm keeps no statistics:",
        "      mean",
        "      var",
        "    because it has 7 classes:",
        "      other",
        "  1 fresh:",
        "    because the source has 7 classes:",
        "      head.classifier.weight",
        "  limit: one tensor was cut",
        "  note: recalibrate or train",
    ]


def test_only_a_source_that_is_computed_exactly_is_said_to_be() -> None:
    exact = "  the widest path computes what the source computes"
    assert Account(whole=["a"]).lines()[-1] == exact
    assert Account(fresh={"head.classifier.weight": "x"}).lines()[-1] == f"{exact}, up to the classifier"
    for account in (Account(limits=["x"]), Account(adapted={"a": "x"})):
        assert not account.exact
        assert not any(line.startswith(exact) for line in account.lines())
