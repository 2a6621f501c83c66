"""Import of plain networks of torchvision and timm, by names and shapes.

The references are written from the libraries' descriptions with plain functions over state dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import assert_close
from torch import Tensor

from dsnet.checkpoint import load, save
from dsnet.errors import CheckpointError
from dsnet.models import create_model, list_models, model_spec
from dsnet.training import uncalibrated
from dsnet.weights.plain import Source, read_plain
from dsnet.weights.transfer import import_as, transfer

Tensors = dict[str, Tensor]


class Maker:
    """Random tensors under the names of a plain network; signed weights, so that activations stay alive."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.tensors: Tensors = {}
        self.generator, self.dtype = torch.Generator().manual_seed(0), dtype

    def random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=self.dtype)

    def conv(self, name: str, cout: int, cin: int, kernel: int = 1, *, bias: bool = False) -> None:
        self.tensors[f"{name}.weight"] = self.random(cout, cin, kernel, kernel) * (2 / (cin * kernel**2)) ** 0.5
        if bias:
            self.tensors[f"{name}.bias"] = self.random(cout) * 0.5

    def norm(self, name: str, count: int) -> None:
        self.tensors[f"{name}.weight"] = self.random(count).abs() * 0.5 + 0.5
        self.tensors[f"{name}.bias"] = self.random(count) * 0.3
        self.tensors[f"{name}.running_mean"] = self.random(count) * 0.3
        self.tensors[f"{name}.running_var"] = self.random(count).abs() + 0.5
        self.tensors[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def linear(self, name: str, cout: int, cin: int) -> None:
        self.tensors[f"{name}.weight"] = self.random(cout, cin) * cin**-0.5
        self.tensors[f"{name}.bias"] = self.random(cout)


def normed(t: Tensors, x: Tensor, name: str) -> Tensor:
    mean, var, weight, bias = (t[f"{name}.{kind}"] for kind in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, mean, var, weight, bias, eps=1e-5)


def conv(t: Tensors, x: Tensor, name: str, stride: int = 1) -> Tensor:
    weight = t[f"{name}.weight"]
    return F.conv2d(
        x, weight, t.get(f"{name}.bias"), stride, weight.shape[-1] // 2, groups=x.shape[1] // weight.shape[1]
    )


def resnet50(classes: int = 7, width: float = 1, dtype: torch.dtype = torch.float64) -> Tensors:
    m = Maker(dtype)
    cin = int(64 * width)
    m.conv("conv1", cin, 3, 7)
    m.norm("bn1", cin)
    for stage, repeats in enumerate((3, 4, 6, 3)):
        inner = int(64 * 2**stage * width)
        for number in range(repeats):
            name = f"layer{stage + 1}.{number}"
            m.conv(f"{name}.conv1", inner, cin)
            m.norm(f"{name}.bn1", inner)
            m.conv(f"{name}.conv2", inner, inner, 3)
            m.norm(f"{name}.bn2", inner)
            m.conv(f"{name}.conv3", 4 * inner, inner)
            m.norm(f"{name}.bn3", 4 * inner)
            if number == 0:
                m.conv(f"{name}.downsample.0", 4 * inner, cin)
                m.norm(f"{name}.downsample.1", 4 * inner)
            cin = 4 * inner
    m.linear("fc", classes, cin)
    return m.tensors


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


def mobilenet(classes: int = 7, width: float = 1, dtype: torch.dtype = torch.float64, head: int = 0) -> Tensors:
    m = Maker(dtype)
    cin = int(32 * width)
    m.conv("conv_stem", cin, 3, 3)
    m.norm("bn1", cin)
    for stage, (out, repeats) in enumerate(((64, 1), (128, 2), (256, 2), (512, 6), (1024, 2))):
        cout = int(out * width)
        for number in range(repeats):
            name = f"blocks.{stage}.{number}"
            m.conv(f"{name}.conv_dw", cin, 1, 3)
            m.norm(f"{name}.bn1", cin)
            m.conv(f"{name}.conv_pw", cout, cin)
            m.norm(f"{name}.bn2", cout)
            cin = cout
    if head:
        m.conv("conv_head", head, cin)
        m.norm("bn2", head)
    m.linear("classifier", classes, head or cin)
    return m.tensors


def mobilenet_forward(t: Tensors, x: Tensor) -> Tensor:
    x = F.relu6(normed(t, conv(t, x, "conv_stem", 2), "bn1"))
    for stage, repeats in enumerate((1, 2, 2, 6, 2)):
        for number in range(repeats):
            name, stride = f"blocks.{stage}.{number}", 2 if stage and number == 0 else 1
            x = F.relu6(normed(t, conv(t, x, f"{name}.conv_dw", stride), f"{name}.bn1"))
            x = F.relu6(normed(t, conv(t, x, f"{name}.conv_pw"), f"{name}.bn2"))
    return F.linear(x.mean((2, 3)), t["classifier.weight"], t["classifier.bias"])


# out, repeats, stride, kernel, expansion
B0 = (
    (16, 1, 1, 3, 1),
    (24, 2, 2, 3, 6),
    (40, 2, 2, 5, 6),
    (80, 3, 2, 3, 6),
    (112, 3, 1, 5, 6),
    (192, 4, 2, 5, 6),
    (320, 1, 1, 3, 6),
)


def efficientnet_names(library: str, stage: int, number: int, expansion: int) -> tuple[str, ...]:
    """Expand, its norm, depthwise, its norm, reduce, excite, project, its norm."""
    if library == "timm":
        name = f"blocks.{stage}.{number}"
        first = ("conv_pw", "bn1", "conv_dw", "bn2") if expansion > 1 else ("", "", "conv_dw", "bn1")
        last = ("conv_pwl", "bn3") if expansion > 1 else ("conv_pw", "bn2")
        return tuple(f"{name}.{part}" for part in (*first, "se.conv_reduce", "se.conv_expand", *last))
    name = f"features.{stage + 1}.{number}.block"
    k = 1 if expansion > 1 else 0
    parts = ("0.0", "0.1", f"{k}.0", f"{k}.1", f"{k + 1}.fc1", f"{k + 1}.fc2", f"{k + 2}.0", f"{k + 2}.1")
    return tuple(f"{name}.{part}" for part in parts)


ENDS = {
    "timm": ("conv_stem", "bn1", "conv_head", "bn2", "classifier"),
    "torchvision": ("features.0.0", "features.0.1", "features.8.0", "features.8.1", "classifier.1"),
}


def efficientnet(library: str, classes: int = 7, dtype: torch.dtype = torch.float64) -> Tensors:
    m = Maker(dtype)
    stem, stem_norm, head, head_norm, classifier = ENDS[library]
    m.conv(stem, 32, 3, 3)
    m.norm(stem_norm, 32)
    cin = 32
    for stage, (out, repeats, _, kernel, expansion) in enumerate(B0):
        for number in range(repeats):
            expand, norm0, depthwise, norm1, reduce, excite, project, norm2 = efficientnet_names(
                library, stage, number, expansion
            )
            inner = cin * expansion
            if expansion > 1:
                m.conv(expand, inner, cin)
                m.norm(norm0, inner)
            m.conv(depthwise, inner, 1, kernel)
            m.norm(norm1, inner)
            m.conv(reduce, cin // 4, inner, bias=True)
            m.conv(excite, inner, cin // 4, bias=True)
            m.conv(project, out, inner)
            m.norm(norm2, out)
            cin = out
    m.conv(head, 1280, cin)
    m.norm(head_norm, 1280)
    m.linear(classifier, classes, 1280)
    return m.tensors


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


@pytest.mark.parametrize(("key", "name"), [(key, name) for key, row in EXACT.items() for name in row[2]])
@pytest.mark.parametrize("sort", [None, "l1"])
def test_the_widest_path_computes_what_the_source_computes(key: str, name: str, sort: str | None) -> None:
    make, forward, _ = EXACT[key]
    tensors = make()
    source = read_plain(tensors)
    net, report = import_as(name, Source(source.net.double(), source.scheme, source.names), sort=sort)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert_close(net.double()(x, net.space.widest), forward(tensors, x), 1e-5)
    assert report.limits == []
    assert [report.cut, report.widened, report.unused, report.fresh] == [{}] * 4
    counters = [key for key in tensors if key.endswith("num_batches_tracked")]
    assert sorted(report.whole + counters) == sorted(tensors)
    assert uncalibrated(net, [net.space.widest]) == []
    slimmer = net.space.uniform[:-1]
    assert uncalibrated(net, slimmer) == slimmer


DYNAMIC = [
    (resnet50, "ds_resnet50"),
    (mobilenet, "ds_mobilenet_v1"),
    (mobilenet, "ds_mobilenet_v1_18"),
    (lambda: efficientnet("timm"), "ds_efficientnet_b0"),
]


@pytest.mark.parametrize(("make", "name"), DYNAMIC)
def test_every_tensor_of_both_sides_is_accounted_for(make: Callable[[], Tensors], name: str, tmp_path: Path) -> None:
    tensors = make()
    torch.manual_seed(3)
    net, report = import_as(name, read_plain(tensors))
    counters = {key for key in tensors if key.endswith("num_batches_tracked")}
    assert {*report.whole, *report.cut, *report.unused} == set(tensors) - counters
    assert report.limits
    assert report.cut
    for before, after in [*report.cut.values(), *report.widened.values()]:
        assert before != after
    torch.manual_seed(3)
    initial = create_model(name, num_classes=7).state_dict()
    parts = {key: tuple(slice(n) for n in shapes[0]) for key, shapes in report.widened.items()}
    for key, tensor in net.state_dict().items():
        if "running" in key or "tracked" in key:
            continue
        untouched = torch.equal(tensor, initial[key])
        assert untouched == (key in report.fresh), key
        if key in parts:  # only the loaded corner differs from the initial values
            tensor, begun = tensor.clone(), initial[key].clone()
            tensor[parts[key]] = begun[parts[key]] = 0
            assert torch.equal(tensor, begun)
    save(net, tmp_path)
    assert load(tmp_path).spec == net.spec


def test_cutting_takes_leading_slices_and_what_is_wider_stays_fresh() -> None:
    tensors = mobilenet(dtype=torch.float32)
    net, report = import_as("ds_mobilenet_v1", read_plain(tensors))
    stem, block = net.front.blocks[0], net.chain[0].rest.blocks[0]
    assert torch.equal(stem.conv.weight, tensors["conv_stem.weight"][:16])
    assert report.cut["conv_stem.weight"] == ((32, 3, 3, 3), (16, 3, 3, 3))
    assert torch.equal(block.pointwise.weight[:512, :512], tensors["blocks.3.1.conv_pw.weight"])
    assert report.widened["segments.0.rest.blocks.0.pointwise.weight"] == ((512, 512, 1, 1), (640, 640, 1, 1))
    assert net.spec.activation == "relu6"
    assert any("relu6" in note for note in report.notes)
    assert any("sigmoid" in limit for limit in report.limits)
    assert "the source has no attention; sigmoid" in report.fresh.values()
    assert uncalibrated(net, net.space) == list(net.space)


def test_group_norm_takes_the_affine_and_says_what_is_lost() -> None:
    tensors = resnet50(dtype=torch.float32)
    net, report = import_as("ds_resnet50", read_plain(tensors), num_classes=5)
    assert torch.equal(net.chain[0].first.norm1.weight, tensors["layer1.0.bn1.weight"])
    assert report.unused["bn1.running_mean"] == "group norm keeps no statistics"
    assert report.unused["fc.weight"] == "it has 7 classes, 5 were asked for"
    assert report.fresh["head.classifier.weight"] == "the source has 7 classes instead of 5"
    assert any("statistics are lost" in limit and "s_resnet50" in limit for limit in report.limits)


def test_other_classes_leave_everything_else_exact() -> None:
    _, report = import_as("mobilenet_v1", read_plain(mobilenet(dtype=torch.float32)), num_classes=10)
    assert report.exact
    assert report.new_classifier
    assert set(report.fresh) == {"head.classifier.weight", "head.classifier.bias"}


def test_sorting_the_source_keeps_the_most_important_channels() -> None:
    tensors = mobilenet(dtype=torch.float32)
    importance = tensors["conv_stem.weight"].abs().sum((1, 2, 3))
    net, _ = import_as("ds_mobilenet_v1", read_plain(tensors), sort="l1")
    kept = net.front.blocks[0].conv.weight.abs().sum((1, 2, 3))
    assert_close(kept, importance.sort(descending=True).values[:16], 1e-5)


def test_a_head_convolution_without_a_place_is_a_limit() -> None:
    _, report = import_as("mobilenet_v1", read_plain(mobilenet(head=1024)))
    assert report.unused["conv_head.weight"] == "mobilenet_v1 has no such layer"
    assert any("lacks are left out" in limit for limit in report.limits)


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
def test_other_networks_are_refused(change: dict[str, Tensor | None], message: str) -> None:
    tensors = {key: value for key, value in {**resnet50(dtype=torch.float32), **change}.items() if value is not None}
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
    moved, report = transfer(net, model_spec(name))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(moved(x, net.space.widest), net(x, net.space.widest))
    assert report.limits == []
