"""Import of plain networks of torchvision and timm, by names and shapes.

The references are written from the libraries' descriptions with plain functions over state dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.models import create_model, list_models, model_spec
from dsnet.models.parts import uncalibrated
from dsnet.tasks import load, save
from dsnet.weights.plain import Source, read_plain
from dsnet.weights.transfer import import_as, transfer
from support.networks import assert_close
from support.weights import B0, ENDS, Tensors, efficientnet, efficientnet_names, mobilenet, resnet50


def normed(t: Tensors, x: Tensor, name: str) -> Tensor:
    mean, var, weight, bias = (t[f"{name}.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, mean, var, weight, bias, eps=1e-5)


def conv(t: Tensors, x: Tensor, name: str, stride: int = 1) -> Tensor:
    weight = t[f"{name}.weight"]
    return F.conv2d(
        x, weight, t.get(f"{name}.bias"), stride, weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1]
    )


def resnet_forward(t: Tensors, x: Tensor) -> Tensor:
    x = F.max_pool2d(F.relu(normed(t, conv(t, x, "conv1", 2), "bn1")), 3, 2, 1)
    for stage in range(1, 5):
        for number in range((3, 4, 6, 3)[stage - 1]):
            name, stride = f"layer{stage}.{number}", 2 if stage > 1 and number == 0 else 1
            y = F.relu(normed(t, conv(t, x, f"{name}.conv1"), f"{name}.bn1"))
            y = F.relu(normed(t, conv(t, y, f"{name}.conv2", stride), f"{name}.bn2"))
            y = normed(t, conv(t, y, f"{name}.conv3"), f"{name}.bn3")
            if number == 0:
                x = normed(t, conv(t, x, f"{name}.downsample.0", stride), f"{name}.downsample.1")
            x = F.relu(x + y)
    return F.linear(x.mean((2, 3)), t["fc.weight"], t["fc.bias"])


def mobilenet_forward(t: Tensors, x: Tensor) -> Tensor:
    x = F.relu6(normed(t, conv(t, x, "conv_stem", 2), "bn1"))
    for stage, repeats in enumerate((1, 2, 2, 6, 2)):
        for number in range(repeats):
            name, stride = f"blocks.{stage}.{number}", 2 if stage and number == 0 else 1
            x = F.relu6(normed(t, conv(t, x, f"{name}.conv_dw", stride), f"{name}.bn1"))
            x = F.relu6(normed(t, conv(t, x, f"{name}.conv_pw"), f"{name}.bn2"))
    return F.linear(x.mean((2, 3)), t["classifier.weight"], t["classifier.bias"])


def efficientnet_forward(library: str) -> Callable[[Tensors, Tensor], Tensor]:
    def forward(t: Tensors, x: Tensor) -> Tensor:
        stem, stem_norm, head, head_norm, classifier = ENDS[library]
        x = F.silu(normed(t, conv(t, x, stem, 2), stem_norm))
        for stage, (out, repeats, stride, _, expansion) in enumerate(B0):
            for number in range(repeats):
                expand, norm0, depthwise, norm1, reduce, excite, project, norm2 = efficientnet_names(
                    library, stage, number, expansion
                )
                step = stride if number == 0 else 1
                y = F.silu(normed(t, conv(t, x, expand), norm0)) if expansion > 1 else x
                y = F.silu(normed(t, conv(t, y, depthwise, step), norm1))
                scale = conv(t, F.silu(conv(t, y.mean((2, 3), keepdim=True), reduce)), excite).sigmoid()
                y = normed(t, conv(t, y * scale, project), norm2)
                x = x + y if step == 1 and x.shape[1] == out else y
        x = F.silu(normed(t, conv(t, x, head), head_norm)).mean((2, 3))
        return F.linear(x, t[f"{classifier}.weight"], t[f"{classifier}.bias"])

    return forward


EXACT = {
    "resnet50": (resnet50, resnet_forward, ["resnet50", "s_resnet50"]),
    "mobilenet": (mobilenet, mobilenet_forward, ["mobilenet_v1", "us_mobilenet_v1"]),
    "timm": (lambda: efficientnet("timm"), efficientnet_forward("timm"), ["efficientnet_b0"]),
    "torchvision": (lambda: efficientnet("torchvision"), efficientnet_forward("torchvision"), ["efficientnet_b0"]),
}


# Sorted sources are quick for one network only: test_sorting holds the law for every family.
EXACT_CASES = [(key, name, None) for key, row in EXACT.items() for name in row[2]]
SORTED_CASES = [
    pytest.param(key, name, "l1", marks=() if name == "us_mobilenet_v1" else pytest.mark.slow)
    for key, name, _ in EXACT_CASES
]


@pytest.mark.parametrize(("key", "name", "sort"), [*EXACT_CASES, *SORTED_CASES])
def test_the_widest_path_computes_what_the_source_computes(key: str, name: str, sort: str | None) -> None:
    make, forward, _ = EXACT[key]
    tensors = make()
    source = read_plain(tensors)
    net, account = import_as(name, Source(source.net.double(), source.scheme, source.names), sort=sort)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert_close(net.double()(x, net.space.widest), forward(tensors, x), 1e-5)
    assert account.limits == []
    assert [account.cut, account.widened, account.unused, account.fresh] == [{}] * 4
    counters = [key for key in tensors if key.endswith("num_batches_tracked")]
    assert sorted(account.whole + counters) == sorted(tensors)
    assert uncalibrated(net, [net.space.widest]) == []
    slimmer = net.space.uniform[:-1]
    assert uncalibrated(net, slimmer) == slimmer


DYNAMIC = [
    (resnet50, "ds_resnet50"),
    (mobilenet, "ds_mobilenet_v1"),
    (mobilenet, "ds_mobilenet_v1_18"),
    (partial(efficientnet, "timm"), "ds_efficientnet_b0"),
]


@pytest.mark.parametrize(("make", "name"), DYNAMIC)
def test_every_tensor_of_both_sides_is_accounted_for(make: Callable[..., Tensors], name: str, tmp_path: Path) -> None:
    tensors = make(dtype=torch.float32)
    torch.manual_seed(3)
    net, account = import_as(name, read_plain(tensors))
    counters = {key for key in tensors if key.endswith("num_batches_tracked")}
    assert {*account.whole, *account.cut, *account.unused} == set(tensors) - counters
    assert account.limits
    assert account.cut
    for before, after in [*account.cut.values(), *account.widened.values()]:
        assert before != after
    torch.manual_seed(3)
    initial = create_model(name, num_classes=7).state_dict()
    parts = {key: tuple(slice(n) for n in shapes[0]) for key, shapes in account.widened.items()}
    for key, tensor in net.state_dict().items():
        if "running" in key or "tracked" in key:
            continue
        untouched = torch.equal(tensor, initial[key])
        assert untouched == (key in account.fresh), key
        if key in parts:  # only the loaded corner differs from the initial values
            tensor, begun = tensor.clone(), initial[key].clone()
            tensor[parts[key]] = begun[parts[key]] = 0
            assert torch.equal(tensor, begun)
    save(net, tmp_path)
    assert load(tmp_path).spec == net.spec


def test_depthwise_activations_are_those_of_the_weights() -> None:
    net, account = import_as("ds_mobilenet_v1_fast", read_plain(mobilenet(dtype=torch.float32)))
    assert net.spec.depthwise_activation
    assert any("activation follows depthwise convolutions" in note for note in account.notes)
    _, account = transfer(net, model_spec("ds_mobilenet_v1_fast"))
    assert any("behind depthwise convolutions" in limit for limit in account.limits)


def test_cutting_takes_leading_slices_and_what_is_wider_stays_fresh() -> None:
    tensors = mobilenet(dtype=torch.float32)
    net, account = import_as("ds_mobilenet_v1", read_plain(tensors))
    stem, block = net.front.blocks[0], net.chain[0].rest.blocks[0]
    assert torch.equal(stem.conv.weight, tensors["conv_stem.weight"][:16])
    assert account.cut["conv_stem.weight"] == ((32, 3, 3, 3), (16, 3, 3, 3))
    assert torch.equal(block.pointwise.weight[:512, :512], tensors["blocks.3.1.conv_pw.weight"])
    assert account.widened["segments.0.rest.blocks.0.pointwise.weight"] == ((512, 512, 1, 1), (640, 640, 1, 1))
    assert net.spec.activation == "relu6"
    assert any("relu6" in note for note in account.notes)
    assert any("sigmoid" in limit for limit in account.limits)
    assert "the source has no attention; sigmoid" in account.fresh.values()
    assert uncalibrated(net, net.space) == list(net.space)


def test_group_norm_takes_the_affine_and_says_what_is_lost() -> None:
    tensors = resnet50(dtype=torch.float32)
    net, account = import_as("ds_resnet50", read_plain(tensors), num_classes=5)
    assert torch.equal(net.chain[0].first.norm1.weight, tensors["layer1.0.bn1.weight"])
    assert account.unused["bn1.running_mean"] == "group norm keeps no statistics"
    assert account.unused["fc.weight"] == "it has 7 classes, 5 were asked for"
    assert account.fresh["head.classifier.weight"] == "the source has 7 classes instead of 5"
    assert any("statistics are lost" in limit and "s_resnet50" in limit for limit in account.limits)


def test_other_classes_leave_everything_else_exact() -> None:
    _, account = import_as("mobilenet_v1", read_plain(mobilenet(dtype=torch.float32)), num_classes=10)
    assert account.exact
    assert account.new_classifier
    assert set(account.fresh) == {"head.classifier.weight", "head.classifier.bias"}


def test_sorting_the_source_keeps_the_most_important_channels() -> None:
    tensors = mobilenet(dtype=torch.float32)
    importance = tensors["conv_stem.weight"].abs().sum((1, 2, 3))
    net, _ = import_as("ds_mobilenet_v1", read_plain(tensors), sort="l1")
    kept = net.front.blocks[0].conv.weight.abs().sum((1, 2, 3))
    assert_close(kept, importance.sort(descending=True).values[:16], 1e-5)


def test_a_head_convolution_without_a_place_is_a_limit() -> None:
    _, account = import_as("mobilenet_v1", read_plain(mobilenet(head=1024)))
    assert account.unused["conv_head.weight"] == "mobilenet_v1 has no such layer"
    assert any("lacks are left out" in limit for limit in account.limits)


@pytest.fixture(scope="module")
def plain_resnet50() -> Tensors:
    return resnet50(dtype=torch.float32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer1.0.conv2.weight": torch.zeros(64, 2, 3, 3)}, r"\(64, 2, 3, 3\) where \(64, 64, 3, 3\) is needed"),
        ({"layer5.0.conv1.weight": torch.zeros(1)}, "have no place there, the first is 'layer5.0.conv1.weight'"),
        ({"layer1.0.conv3.weight": torch.zeros(4)}, "'layer1.0.conv3.weight' has 1 dimensions instead of 4"),
        ({"layer1.0.conv3.weight": torch.zeros(0, 64, 1, 1)}, "do not fit together|where"),
        ({"fc.weight": torch.zeros(0, 2048)}, "num_classes is 0"),
        ({"bn1.running_var": -torch.ones(64)}, "negative variance"),
        ({"layer2.0.bn1.weight": None}, "'layer2.0.bn1.weight' is missing"),
        ({"layer4.0.conv2.weight": None}, "'layer4.0.conv2.weight' is missing"),
        ({"conv1.weight": None}, "follow no scheme that dsnet knows; with --as it knows a ResNet"),
        ({"layer1.0.conv2.weight": torch.zeros(10**6, 1, 1, 1)}, "sizes do not fit|where|not multiples"),
    ],
)
def test_other_networks_are_refused(plain_resnet50: Tensors, change: dict[str, Tensor | None], message: str) -> None:
    tensors = {key: value for key, value in {**plain_resnet50, **change}.items() if value is not None}
    with pytest.raises(CheckpointError, match=message):
        read_plain(tensors)


def test_targets_of_another_layout_are_refused_and_the_fitting_ones_named() -> None:
    source = read_plain(resnet50(width=0.125, dtype=torch.float32))
    with pytest.raises(ValueError, match=r"ds_resnet_tiny has .* choose ds_resnet50 or resnet50 or s_resnet50"):
        import_as("ds_resnet_tiny", source)
    with pytest.raises(ValueError, match=r"1 \+ 3 \+ 4|3 \+ 4 \+ 6 \+ 3 bottleneck blocks"):
        import_as("mobilenet_v1", source)


@pytest.mark.parametrize("name", [name for name in list_models() if name.endswith("tiny")])
def test_a_network_moves_onto_its_own_spec_bit_for_bit(name: str) -> None:
    torch.manual_seed(0)
    net = create_model(name).eval()
    moved, account = transfer(net, model_spec(name))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(moved(x, net.space.widest), net(x, net.space.widest))
    assert account.limits == []
