"""Configs: the flags of a record, text of flags, layers, and what is wrong in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml

from dsnet.config import config_file, flat, from_text, merged, nested, packaged, read_run, read_yaml, resolve
from dsnet.models import list_models, model_spec
from dsnet.schema import Flag, Typed, flags
from dsnet.tasks import config_from, read_config
from dsnet.training.sgs_config import BEFORE


@dataclass(frozen=True)
class Colour(Typed):
    """How colours change.

    Args:
        strength: How strong the changes are,
            from 0 to 1.
        names: Names of the colours.
        range: Lowest and highest value.
    """

    strength: float = 0.5
    names: list[str] = field(default_factory=lambda: ["red"])
    range: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError(f"strength is {self.strength}; it must be at least 0")


@dataclass(frozen=True)
class Settings(Typed):
    """All of them.

    Args:
        size: Size in pixels.
        mode: How it works.
        place: Where it is.
        colour: How colours change.
        steps: Steps, or lists of them.
    """

    BASIC: ClassVar[tuple[str, ...]] = ("size",)

    size: int = 3
    mode: Literal["slow", "fast"] | None = None
    place: str | None = None
    colour: Colour = field(default_factory=lambda: Colour(strength=0.25))
    steps: list[int] | list[list[int]] | None = None


def test_flags_know_what_a_command_line_shows() -> None:
    found = {flag.name: flag for flag in flags(Settings)}
    assert list(found) == [
        "size",
        "mode",
        "place",
        "colour.strength",
        "colour.names",
        "colour.range",
        "steps",
    ]
    assert found["size"] == Flag("size", int, "Size in pixels.", 3, True)
    assert found["colour.strength"].help == "How strong the changes are, from 0 to 1."
    assert found["colour.strength"].group == "How colours change."
    assert found["colour.strength"].default == 0.25
    shown = {name: flag.metavar for name, flag in found.items()}
    assert shown == {
        "size": "N",
        "mode": "{slow,fast}",
        "place": "PLACE",
        "colour.strength": "X",
        "colour.names": "[a, b]",
        "colour.range": "[0.5, 1.0]",
        "steps": "[0, 2]",
    }


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("size", "5", 5),
        ("mode", "null", None),
        ("mode", "fast", "fast"),
        ("place", "123", "123"),
        ("place", "null", None),
        ("place", "a: [b", "a: [b"),
        ("colour.strength", "1e-3", 0.001),
        ("colour.names", "[2007, yes]", ["2007", "yes"]),
        ("colour.range", "[0, 0.5]", [0, 0.5]),
        ("steps", "[[0, 1], [2]]", [[0, 1], [2]]),
        ("steps", "null", None),
        ("size", "[", "["),
    ],
)
def test_text_is_read_by_the_type_of_its_field(name: str, text: str, value: Any) -> None:
    kinds = {flag.name: flag.type for flag in flags(Settings)}
    assert from_text(kinds[name], text) == value


def test_a_later_layer_overrides_an_earlier_one_key_by_key() -> None:
    file = {"size": 4, "colour": {"strength": 1}}
    said = nested({"colour.names": ["blue"], "size": 5})
    assert resolve(Settings, file, said) == Settings(size=5, colour=Colour(1.0, ["blue"]))
    assert resolve(Settings, {"colour": {"names": []}}).colour.strength == 0.25, (
        "the default of the field, not the type"
    )
    assert merged({"a": {"b": 1}}, {"a": {"c": 2}}, {"a": {"b": 3}}) == {"a": {"b": 3, "c": 2}}
    assert flat(nested({"a.b": 1, "a.c": 2})) == {"a.b": 1, "a.c": 2}
    assert file == {"size": 4, "colour": {"strength": 1}}


def test_a_layer_that_gives_one_of_a_pair_unsets_the_other() -> None:
    long, short = {"optim": {"epochs": 9, "warmup_epochs": 1.0}}, {"optim": {"steps": 50, "warmup_steps": 5}}
    assert flat(merged(long, short)) == {
        "optim.epochs": None,
        "optim.warmup_epochs": None,
        "optim.steps": 50,
        "optim.warmup_steps": 5,
    }
    assert merged(long, short, long)["optim"]["steps"] is None
    assert merged({"optim": {"epochs": None, "steps": 3}}, {"optim": {"lr": 1}})["optim"]["steps"] == 3


def test_an_optimiser_brings_its_usual_learning_rate() -> None:
    default = {"optim": {"name": "sgd", "lr": 0.1, "weight_decay": 0.0}}
    assert merged(default, {"optim": {"name": "adamw"}})["optim"] == {
        "name": "adamw",
        "lr": 0.001,
        "weight_decay": 0.01,
    }
    assert merged(default, {"optim": {"name": "adamw", "lr": 0.5}})["optim"]["lr"] == 0.5
    assert merged(default, {"optim": {"name": "adamw"}}, {"optim": {"lr": 0.5}})["optim"]["lr"] == 0.5
    assert merged({"model": {"name": "a"}}, {"model": {"name": "adamw"}}) == {"model": {"name": "adamw"}}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"size": "5"}, "size is '5'; it must be a whole number"),
        ({"size": True}, "size is True; it must be a whole number"),
        ({"size": 2.0}, "size is 2.0; it must be a whole number"),
        ({"size": None}, "size is None; it must be a whole number"),
        ({"mode": "quick"}, "mode is 'quick'; it must be one of slow, fast or null"),
        ({"place": 3}, "place is 3; it must be text or null"),
        ({"steps": "a"}, "steps is 'a'; it must be a list like [0, 2] or a list like [[0, 2], [0, 2]] or null"),
        ({"colour": 3}, "colour is 3; it must be a group of keys"),
        ({"colour": {"range": 1}}, "colour.range is 1; it must be a list like [0.5, 1.0]"),
        ({"colour": {"strength": -1}}, "strength is -1.0; it must be at least 0"),
        ({"colour": {"strenght": 1}}, "'colour.strenght' is unknown; did you mean colour.strength?"),
        ({"colour": {"x": 1}}, "'colour.x' is unknown; known are colour.strength, colour.names, colour.range"),
        ({"siz": 1}, "'siz' is unknown; did you mean size?"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="is") as error:
        resolve(Settings, keys)
    assert str(error.value) == message


def test_files_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("size: 7\ncolour: {strength: 1e-2}\n")
    assert read_run(Settings, file) == Settings(size=7, colour=Colour(0.01))
    for text, message in (
        ("hello", "the config is 'hello'"),
        ("a: [", "is not a YAML file"),
        ("1: 2", "the config is"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message) as error:
            read_yaml(file)
        assert "\n" not in str(error.value)
    file.write_text("")
    assert read_yaml(file) == {}
    file.write_text("sise: 3")
    with pytest.raises(
        ValueError, match="is not a config of this version of dsnet: 'sise' is unknown; did you mean size"
    ):
        read_run(Settings, file)
    with pytest.raises(ValueError, match="was not written by `dsnet train`"):
        read_run(Settings, tmp_path / "none.yaml")


def test_maps_of_networks_with_group_norm_are_contiguous() -> None:
    """Torch's group norm for CUDA copies others, and on a CPU they are slower."""
    found = set()
    for file in packaged().values():
        keys = read_yaml(file)
        model = keys.get("model", {}).get("name")
        if model in list_models() and model_spec(model).norm.kind == "group":
            config = config_from(keys)
            assert not config.optim.channels_last
            assert not config.sgs_optim.channels_last
            found.add(model)
    assert found == {"ds_resnet50", "ds_resnet_tiny"}


def test_configs_are_files_or_names(tmp_path: Path) -> None:
    assert "digits" in packaged()
    assert config_file("digits") == packaged()["digits"]
    (tmp_path / "mine.yaml").write_text("size: 1")
    assert config_file(str(tmp_path / "mine.yaml")) == tmp_path / "mine.yaml"
    with pytest.raises(ValueError, match="config 'digit' does not exist; did you mean digits"):
        config_file("digit")


def test_runs_of_older_versions_go_on_as_they_began(tmp_path: Path) -> None:
    """A config that a run wrote in full, before stage II had some of its keys."""
    old = {"router": "gate", "targets": None, "complexity": None, "hidden": 32, "momentum": 0.99}
    file = tmp_path / "config.yaml"
    for stage, as_before in (("both", True), ("supernet", False)):
        file.write_text(yaml.safe_dump({"stage": stage, "sgs": old}))
        sgs = read_config(file).sgs
        assert sgs.weights == ((1.0, 0.5, 1.0) if as_before else (1.0, 1.0, 1.0))
        assert (sgs.cache == 0, sgs.balanced, sgs.spec.windows) == (as_before, not as_before, None if as_before else 3)
        assert sgs.spec.bound is not as_before


@pytest.mark.parametrize("name", [name for name in packaged() if name.startswith("imagenet_")])
def test_imagenet_recipes_name_the_options_of_the_papers_gates(name: str) -> None:
    """The options that a recipe names turn off all that routing.md calls ours, and nothing else."""
    text = packaged()[name].read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("# --sgs.")]
    words = line.removeprefix("# ").split()
    keys = {key.removeprefix("--"): yaml.safe_load(value) for key, value in zip(words[::2], words[1::2], strict=True)}
    recipe = read_yaml(packaged()[name])
    ours, papers = (config_from(merged(recipe, layer)).sgs for layer in ({}, nested(keys)))
    assert (papers.spec.windows, papers.spec.bound, papers.weights) == (None, False, (1.0, 0.5, 1.0))
    changed = {f"sgs.{field}" for field, value in asdict(ours).items() if value != getattr(papers, field)}
    assert changed == set(keys)
    old = {key: value for key, value in BEFORE.items() if key not in ("squares", "cache")}
    assert {key: getattr(papers, key) for key in old} == old
