from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsnet.models import create_model, list_models
from dsnet.space import Channels, WidthSpace

spaces = st.lists(st.integers(1, 5), max_size=4).map(WidthSpace.full)


@given(spaces, st.integers())
def test_samples_are_members(space: WidthSpace, seed: int) -> None:
    path = space.sample(random.Random(seed))
    assert path in space
    assert space.validate(list(path)) == path
    assert path == space.sample(random.Random(seed))


@given(spaces)
def test_enumeration_is_complete_and_ordered(space: WidthSpace) -> None:
    paths = list(space)
    assert len(paths) == len(set(paths)) == space.size
    assert paths[0] == space.slimmest
    assert paths[-1] == space.widest
    assert set(space.uniform) <= set(paths)


def test_restriction() -> None:
    space = WidthSpace.full([4, 4])
    assert space.restrict([0, 2]).choices == ((0, 2), (0, 2))
    assert space.restrict([[1], [0, 3]]).widest == (1, 3)
    assert space.restrict(None) is space
    assert space.restrict([[1], [0, 3]]).size == 2


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ([0, 9], r"routing \[0, 9\] at choice point 0 goes beyond its widths; choose from 0 to 3"),
        ([[0]], "has 1 lists but the network has 2 choice points"),
        ([0, [1]], "is not understood"),
        ([2, 1], "rising width indices"),
        ([[], [0]], "rising width indices"),
        (5, "is not understood"),
        ([0.0, 1.0], "is not understood"),
        ([None], "is not understood"),
        ([False, True], "is not understood"),
    ],
)
def test_bad_routing_is_refused(routing: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WidthSpace.full([4, 4]).restrict(routing)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            (0,),
            r"has 1 entries but the network has 2 choice points; give one width index for each, for example 3,3",
        ),
        ((0, 4), "width 4 at choice point 1; allowed are 0, 1, 2, 3"),
        ((0, -1), "width -1 at choice point 1"),
        ((0, True), "not a tuple of width indices"),
        ((0.0, 1), "not a tuple of width indices"),
        (3, "not a tuple of width indices"),
        (None, "not a tuple of width indices"),
        ({0, 1}, "not a tuple of width indices"),
        ("01", "not a tuple of width indices"),
    ],
)
def test_bad_paths_are_refused(path: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WidthSpace.full([4, 4]).validate(path)


def test_channels() -> None:
    channels = Channels((8, 16))
    assert (channels[0], channels.max, len(channels * 3), (channels * 3)[1]) == (8, 16, 2, 48)
    assert Channels.of(5, 3).counts == (5, 5, 5)
    with pytest.raises(ValueError, match="width index 2 is out of range: this layer has 2 widths, 0 to 1"):
        channels[2]
    for wrong in ((), (0, 8), (16, 8)):
        with pytest.raises(ValueError, match="must be positive"):
            Channels(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "ds_mobilnet_v1"}, "did you mean .*ds_mobilenet_v1"),
        ({"name": "ds_resnet50", "num_classes": 0}, "num_classes is 0"),
        ({"name": "ds_resnet50", "in_channels": -1}, "in_channels is -1"),
        ({"name": "ds_resnet50", "image_size": 16}, "image size 16 is too small for 'ds_resnet50', .* at least 32"),
        ({"name": "ds_resnet50", "routing": [4]}, "choose from 0 to 3"),
        ({"name": "ds_resnet50", "width": 0.5}, "takes no width multiplier; only efficientnet_b0, efficientnet_tiny"),
        ({"name": "mobilenet_v1", "width": -1}, r"width multiplier is -1; it must lie in \(0, 4\]"),
        ({"name": "mobilenet_v1", "slimming": "scalar"}, "has no gates"),
        ({"name": "mobilenet_v1", "routing": [0, 1]}, "has no choice points"),
        ({"name": "mobilenet_v1", "width": "0.5"}, "width multiplier is 0.5"),
        ({"name": None}, "model None is unknown"),
        ({"name": "resnet50", "num_classes": True}, "num_classes is True"),
        ({"name": "resnet50", "image_size": 224.0}, "image_size is 224.0; give the side in whole pixels"),
        ({"name": "ds_resnet_tiny", "slimming": "both"}, "slimming 'both' is unknown; choose from 'one_hot'"),
    ],
)
def test_bad_wishes_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model(**options)


def test_registry_names_are_the_names_of_specs() -> None:
    from dsnet.models import describe, model_spec

    for name in list_models():
        assert model_spec(name).name == name
        assert describe(name)
