"""Bad input of `dsnet slim`: one clear error each, which names the operation and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.errors import CheckpointError, SlimError
from dsnet.slimming.network import slim, slim_with_report
from dsnet.slimming.sources import load_weights, model_from
from dsnet.slimming.widths import read_overrides, read_share
from support.cnns import CNNS, SIZE, Narrow, Residual

EXAMPLE = torch.zeros(1, 3, SIZE, SIZE)


class Deciding(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Summing(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.cumsum(x, 3))


class Multiplying(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.einsum("bcij,bcjk->bcik", x, x))


class Folding(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.layer_norm(x, (SIZE,)))


class Spreading(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / x.std((2, 3), keepdim=True))


class Growing(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(min=x.mean((2, 3), keepdim=True)))


class TwoStreams(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.fc = nn.Conv2d(3, 32, 3), nn.Conv2d(3, 32, 3), nn.Conv2d(64, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.cat([self.one(x), self.two(x)], 1)).mean((2, 3))


class Double(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Blending(Residual):  # type: ignore[misc, valid-type]
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean())


def needy(width: int) -> nn.Module:
    return Narrow()


def useless() -> int:
    return 3


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Deciding, "decides by the values of a tensor .in forward, test_slim_input.py line .*torch.where"),
        (Summing, "operation 'cumsum' of the network itself is aten.cumsum.default, which dsnet slim does not know"),
        (
            Multiplying,
            "operation 'einsum' .* multiplies maps as matrices, whose MAdds are not counted; replace it by",
        ),
        (Folding, r"layer norm over the last 1 axes of \[3, 16, 16\]; normalise over the channels of maps"),
        (Spreading, "divides a variance over pixels by 256 less 1; compute it with correction=0"),
        (Growing, "is aten.clamp.Tensor in a form that dsnet slim does not know"),
        (TwoStreams, "the cut is at 'cat', and behind it is fc .it is the classes.; choose an earlier --cut"),
        (Double, "returns 2 values of shapes .*one vector of class scores"),
        (Blending, "averages over the images of a batch"),
        (Narrow, "behind it is layers.2 .its 4 channels are too few for multiples of 8.* a smaller --multiple than 8"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 5)), "cannot be recorded.*must run on the example"),
        (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), "no convolution and no linear layer"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 5)), "no single map crosses any place"),
    ],
)
def test_a_network_that_cannot_be_converted(model: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(SlimError, match=words) as error:
        slim(model(), EXAMPLE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"widths": (0.5,)}, "at least two and end with 1"),
        ({"widths": (0.5, 0.75)}, "at least two and end with 1"),
        ({"widths": (0.5, 0.25, 1)}, "fall"),
        ({"widths": (0, 1)}, r"must lie in \(0, 1\]"),
        (
            {"widths": (0.5, 0.51, 1)},
            "0.5 and 0.51 give the same .*'one.1', keeps 16 of its 32 channels at both; .*--mul",
        ),
        ({"multiple": 0}, "at least 1"),
        ({"cut": "nowhere"}, "there is no such module; choose from stem"),
        ({"cut": "project"}, "several maps go on behind it"),
        ({"cut": 1.5}, "a share between 0 and 1"),
        ({"sort": "size"}, "importance 'size' is unknown"),
        ({"sort": "activation"}, "needs images"),
        ({"images": torch.zeros(2, 3, 8, 8)}, "images have shape"),
        ({"overrides": {"two.0": (0.5, 1)}}, "'two.0': there is no such layer; .* such as two.0.0, "),
        (
            {"overrides": {"two.1": (0.5, 1)}, "widths": (0.3, 0.6, 1)},
            "2 shares were given, but the network has 3 widths",
        ),
        ({"overrides": {"two.1": (1, 0.5)}, "widths": (0.5, 1)}, "'two.1': widths .* fall"),
        (
            {"overrides": {"stem.0": (0.5, 1)}, "widths": (0.5, 1)},
            "its channels keep .* it belongs to the shared front",
        ),
        (
            {"overrides": {"two.1": (0.5, 1), "project": (0.6, 1)}, "widths": (0.5, 1)},
            "shares its channels with 'two.1'",
        ),
    ],
)
def test_wrong_options(options: dict[str, object], words: str) -> None:
    with pytest.raises(SlimError, match=words):
        slim(CNNS["residual"](), EXAMPLE, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("unit", "names no network; give PACKAGE.MODULE:FACTORY"),
        ("no.such.module:x", "there is no module no.such.module"),
        ("torch.nn:Nothing", "has no 'Nothing'"),
        ("math:pi", "is a float"),
        (f"{__name__}:needy", "needs the arguments width; write a function without arguments"),
        (f"{__name__}:useless", "returns a int; it must return an nn.Module"),
    ],
)
def test_a_factory_that_gives_no_network(factory: str, words: str) -> None:
    with pytest.raises(SlimError, match=words):
        model_from(factory)


def test_weights_of_another_architecture(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 4).state_dict(), tmp_path / "other.pth")
    with pytest.raises(CheckpointError, match=r"lacks 6 tensors of Narrow, the first is .* and holds 2 that Narrow"):
        load_weights(Narrow(), tmp_path / "other.pth")
    state = {**Narrow().state_dict(), "fc.weight": torch.zeros(7, 4)}
    torch.save(state, tmp_path / "shape.pth")
    with pytest.raises(CheckpointError, match=r"'fc.weight' has shape \(7, 4\) but Narrow needs \(5, 4\)"):
        load_weights(Narrow(), tmp_path / "shape.pth")
    torch.save(Narrow(), tmp_path / "pickle.pth")
    with pytest.raises(CheckpointError, match="nothing in it was run"):
        load_weights(Narrow(), tmp_path / "pickle.pth")


def test_shares_as_users_write_them() -> None:
    assert [read_share(text) for text in ("0.5", "0.35/0.5", "1")] == [0.5, (0.35, 0.5), 1.0]
    with pytest.raises(SlimError, match="a half"):
        read_share("a half")
    assert read_overrides(["a.0=0.5,0.35/0.5,1", "b=1,1"]) == {"a.0": [0.5, (0.35, 0.5), 1.0], "b": [1.0, 1.0]}
    for texts, words in (
        (["a"], "LAYER=SHARES"),
        (["=1"], "LAYER=SHARES"),
        (["a=1", "a=1"], "twice"),
        (["a=x"], "'x'"),
    ):
        with pytest.raises(SlimError, match=words):
            read_overrides(texts)


def test_pairs_overrides_and_the_cut_decide_the_widths() -> None:
    torch.manual_seed(0)
    model = CNNS["residual"]()
    options = {"cut": "stem", "overrides": {"two.0.0": (0.5, 1)}}
    net, report = slim_with_report(model, EXAMPLE, ((0.3, 0.75), 1), **options)  # type: ignore[arg-type]
    rows = {row.layers: row for row in report.groups}
    assert report.cut.startswith("stem")
    assert rows[("one.0.0",)].channels == (8, 24)  # hidden
    assert rows[("one.1", "project", "two.1")].channels == (24, 32)  # residual
    assert rows[("two.0.0",)].channels == (8, 16)
    assert "shared front" in rows[("stem.0",)].fixed
    assert net.spec.channels((0,)) == [8, 24, 8, 24]
    assert 0.5 < report.sliceable < 1
