"""Plain networks of torchvision and timm, recognised by the names of their tensors.

A scheme knows the names of one family. The sizes of the static network are read from the shapes of the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.models import ModelSpec, StageSpec
from dsnet.models.efficientnet import SQUEEZE_EXCITE

Tensors = Mapping[str, Tensor]
Names = dict[str, str]
"""Maps a layer of our static network to the prefix of its tensors in the file."""


@dataclass(frozen=True)
class Scheme:
    """The names that one library gives a family of networks.

    marks: Tensors that are always there. never: Tensors that are never there.
    read: Returns the spec and the names of the layers. limits: Assumptions that the tensors cannot confirm.
    """

    title: str
    marks: tuple[str, ...]
    never: tuple[str, ...]
    read: Callable[[Tensors], tuple[ModelSpec, Names]]
    limits: tuple[str, ...]

    def fits(self, tensors: Tensors) -> bool:
        return all(name in tensors for name in self.marks) and not any(name in tensors for name in self.never)


def shape(tensors: Tensors, name: str, dims: int = 4) -> tuple[int, ...]:
    if name not in tensors:
        raise CheckpointError(f"tensor {name!r} is missing; the file is incomplete")
    if tensors[name].dim() != dims:
        raise CheckpointError(f"tensor {name!r} has {tensors[name].dim()} dimensions instead of {dims}")
    return tuple(tensors[name].shape)


def count(tensors: Tensors, pattern: str) -> int:
    """The number of blocks: one more than the largest number that the pattern matches in a name."""
    return max((int(hit[1]) + 1 for name in tensors if (hit := re.match(pattern, name))), default=0)


def layers(ours: str, theirs: str, pairs: Names) -> Names:
    """The names of the layers of one block."""
    return {f"{ours}.{mine}": f"{theirs}.{its}" for mine, its in pairs.items()}


_BOTTLENECK = {f"{ours}{k}": f"{theirs}{k}" for k in (1, 2, 3) for ours, theirs in (("conv", "conv"), ("norm", "bn"))}
_PROJECTION = {"shortcut": "downsample.0", "shortcut_norm": "downsample.1"}
_SEPARABLE = {"depthwise": "conv_dw", "norm1": "bn1", "pointwise": "conv_pw", "norm2": "bn2"}


def read_resnet(tensors: Tensors) -> tuple[ModelSpec, Names]:
    stem, channels, kernel, _ = shape(tensors, "conv1.weight")
    stages = [StageSpec("conv", stem, stride=2, kernel=kernel), StageSpec("max_pool", stem, stride=2)]
    names = {"front.blocks.0.conv": "conv1", "front.blocks.0.norm": "bn1", "head.classifier": "fc"}
    block = len(stages)
    for stage in range(1, 5):
        repeats = count(tensors, rf"layer{stage}\.(\d+)\.")
        inner = shape(tensors, f"layer{stage}.0.conv2.weight")[0]
        out = shape(tensors, f"layer{stage}.0.conv3.weight")[0]
        stages.append(StageSpec("bottleneck", out, repeats, 1 if stage == 1 else 2, expansion=out // inner))
        for number in range(repeats):
            kinds = _BOTTLENECK | (_PROJECTION if number == 0 else {})
            names |= layers(f"front.blocks.{block}", f"layer{stage}.{number}", kinds)
            block += 1
    classes = shape(tensors, "fc.weight", dims=2)[0]
    return ModelSpec("resnet", tuple(stages), num_classes=classes, in_channels=channels), names


def read_mobilenet(tensors: Tensors) -> tuple[ModelSpec, Names]:
    stem, channels, kernel, _ = shape(tensors, "conv_stem.weight")
    stages = [StageSpec("conv", stem, stride=2, kernel=kernel)]
    names = {"front.blocks.0.conv": "conv_stem", "front.blocks.0.norm": "bn1", "head.classifier": "classifier"}
    block = len(stages)
    for stage in range(count(tensors, r"blocks\.(\d+)\.")):
        repeats = count(tensors, rf"blocks\.{stage}\.(\d+)\.")
        out = shape(tensors, f"blocks.{stage}.0.conv_pw.weight")[0]
        side = shape(tensors, f"blocks.{stage}.0.conv_dw.weight")[-1]
        stages.append(StageSpec("depthwise", out, repeats, stride=1 if stage == 0 else 2, kernel=side))
        for number in range(repeats):
            names |= layers(f"front.blocks.{block}", f"blocks.{stage}.{number}", _SEPARABLE)
            block += 1
    features = None
    if "conv_head.weight" in tensors:
        features = shape(tensors, "conv_head.weight")[0]
        names |= {"head.conv.conv": "conv_head", "head.conv.norm": "bn2"}
    spec = ModelSpec(
        "mobilenet_v1",
        tuple(stages),
        activation="relu6",
        features=features,
        num_classes=shape(tensors, "classifier.weight", dims=2)[0],
        in_channels=channels,
    )
    return spec, names


@dataclass(frozen=True)
class _Inverted:
    """One library's names for the layers of inverted residual blocks, with and without expansion, and for the ends."""

    expanded: Names
    plain: Names
    ends: Names


def _inverted(*, expanded: str, plain: str, ends: str) -> _Inverted:
    block = ["expand", "norm0", "depthwise", "norm1", "gate.reduce", "gate.expand", "project", "norm2"]
    outside = ["front.blocks.0.conv", "front.blocks.0.norm", "head.conv.conv", "head.conv.norm", "head.classifier"]
    lists = ((block, expanded), (block[2:], plain), (outside, ends))
    return _Inverted(*(dict(zip(ours, theirs.split(), strict=True)) for ours, theirs in lists))


_TIMM = _inverted(
    expanded="conv_pw bn1 conv_dw bn2 se.conv_reduce se.conv_expand conv_pwl bn3",
    plain="conv_dw bn1 se.conv_reduce se.conv_expand conv_pw bn2",
    ends="conv_stem bn1 conv_head bn2 classifier",
)
_TORCHVISION = _inverted(
    expanded="block.0.0 block.0.1 block.1.0 block.1.1 block.2.fc1 block.2.fc2 block.3.0 block.3.1",
    plain="block.0.0 block.0.1 block.1.fc1 block.1.fc2 block.2.0 block.2.1",
    ends="features.0.0 features.0.1 features.8.0 features.8.1 classifier.1",
)
_EFFICIENTNET_STRIDES = (1, 2, 2, 2, 1, 2, 1)


def read_efficientnet(tensors: Tensors, kinds: _Inverted, at: Callable[[int], str]) -> tuple[ModelSpec, Names]:
    """Read an EfficientNet. kinds: Names of the layers. at(stage): Prefix of a stage."""
    ends = kinds.ends
    stem, channels, kernel, _ = shape(tensors, f"{ends['front.blocks.0.conv']}.weight")
    stages, names, block = [StageSpec("conv", stem, stride=2, kernel=kernel)], dict(ends), 1
    for stage, stride in enumerate(_EFFICIENTNET_STRIDES):
        repeats, first = count(tensors, rf"{re.escape(at(stage))}\.(\d+)\."), f"{at(stage)}.0"
        has_expansion = f"{first}.{kinds.expanded['project']}.weight" in tensors
        kind = kinds.expanded if has_expansion else kinds.plain
        inner, _, side, _ = shape(tensors, f"{first}.{kind['depthwise']}.weight")
        out = shape(tensors, f"{first}.{kind['project']}.weight")[0]
        cin = shape(tensors, f"{first}.{kind['expand']}.weight")[1] if has_expansion else inner
        stages.append(StageSpec("inverted", out, repeats, stride, kernel=side, expansion=inner // cin))
        for number in range(repeats):
            names |= layers(f"front.blocks.{block}", f"{at(stage)}.{number}", kind)
            block += 1
    spec = ModelSpec(
        "efficientnet",
        tuple(stages),
        activation="silu",
        gate=SQUEEZE_EXCITE,
        features=shape(tensors, f"{ends['head.conv.conv']}.weight")[0],
        num_classes=shape(tensors, f"{ends['head.classifier']}.weight", dims=2)[0],
        in_channels=channels,
    )
    return spec, names


_PREPROCESSING = "inputs are assumed to be normalised with ImageNet's mean and deviation; if not, change the card"

RELEASED = "bn1.aux_bn.0.running_mean"

SCHEMES = (
    Scheme(
        "a ResNet of torchvision or timm",
        ("conv1.weight", "layer1.0.conv3.weight", "fc.weight"),
        (),
        read_resnet,
        ("the stride is assumed to be in the 3x3 convolutions, as in torchvision and timm", _PREPROCESSING),
    ),
    Scheme(
        "a MobileNetV1 of timm",
        ("conv_stem.weight", "blocks.0.0.conv_dw.weight", "blocks.1.0.conv_pw.weight"),
        ("blocks.1.0.conv_pwl.weight",),
        read_mobilenet,
        ("the activation is assumed to be relu6, as in timm's mobilenetv1", _PREPROCESSING),
    ),
    Scheme(
        "an EfficientNet of timm",
        ("conv_stem.weight", "blocks.0.0.se.conv_reduce.weight", "blocks.1.0.conv_pwl.weight"),
        (),
        lambda tensors: read_efficientnet(tensors, _TIMM, "blocks.{}".format),
        (
            "padding is assumed to be symmetric and epsilon 1e-5, as in timm's efficientnet_*; its tf_efficientnet_* "
            "have the same names but another padding and epsilon, so they would compute something else here",
            _PREPROCESSING,
        ),
    ),
    Scheme(
        "an EfficientNet of torchvision",
        ("features.0.0.weight", "features.1.0.block.1.fc1.weight"),
        (),
        lambda tensors: read_efficientnet(tensors, _TORCHVISION, lambda stage: f"features.{stage + 1}"),
        (_PREPROCESSING,),
    ),
)


def find_scheme(tensors: Tensors) -> Scheme | None:
    return next((scheme for scheme in SCHEMES if scheme.fits(tensors)), None)


def unknown_names(tensors: Tensors) -> str:
    seen = ", ".join([*list(tensors)[:4], *(["..."] if len(tensors) > 4 else [])])
    known = "; ".join(f"{scheme.title} ({', '.join(scheme.marks)})" for scheme in SCHEMES)
    return (
        f"the names of its {len(tensors)} tensors ({seen}) follow no scheme that dsnet knows; "
        f"with --as it knows {known}; without, the authors' released DS-MBNet ({RELEASED})"
    )
