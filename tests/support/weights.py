"""State dicts as other programs write them: random tensors under their names, in their shapes."""

from __future__ import annotations

import torch
from torch import Tensor

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


def released_shapes() -> dict[str, list[int]]:
    """Names and shapes of the released state dict: a front of two widths, then 14 widths."""
    shapes: dict[str, list[int]] = {}

    def norm(name: str, counts: list[int]) -> None:
        for width, count in enumerate(counts):
            last = width == len(counts) - 1
            for kind in (["weight", "bias"] if last else []) + ["running_mean", "running_var"]:
                shapes[f"{name}.aux_bn.{width}.{kind}"] = [count]

    def block(name: str, cin: list[int], cout: list[int], candidates: int = 0) -> None:
        hidden = cin[-1] // 4
        shapes[f"{name}.conv_dw.weight"] = [cin[-1], 1, 3, 3]
        norm(f"{name}.bn1", cin)
        shapes[f"{name}.gate.conv_reduce.weight"] = [hidden, cin[-1], 1, 1]
        shapes[f"{name}.gate.conv_reduce.bias"] = [hidden]
        shapes[f"{name}.gate.conv_expand.weight"] = [cin[-1], hidden, 1, 1]
        shapes[f"{name}.gate.conv_expand.bias"] = [cin[-1]]
        if candidates:
            shapes[f"{name}.gate.gate.0.weight"] = [candidates, hidden, 1, 1]
        shapes[f"{name}.conv_pw.weight"] = [cout[-1], cin[-1], 1, 1]
        norm(f"{name}.bn2", cout)

    middle, last = [224 + 32 * k for k in range(14)], [736 + 32 * k for k in range(14)]
    shapes["conv_stem.weight"] = [24, 3, 3, 3]
    norm("bn1", [16, 24])
    block("blocks.0.first_block", [16, 24], [32, 88])
    block("blocks.1.first_block", [32, 88], [48, 168])
    block("blocks.1.residual_blocks.0", [48, 168], [48, 168])
    block("blocks.2.first_block", [48, 168], [96, 264])
    block("blocks.2.residual_blocks.0", [96, 264], [96, 264])
    block("blocks.3.first_block", [96, 264], middle, candidates=4)
    for k in range(5):
        block(f"blocks.3.residual_blocks.{k}", middle, middle)
    block("blocks.4.first_block", middle, last)
    block("blocks.4.residual_blocks.0", last, last)
    shapes["classifier.weight"] = [1000, 1152]
    shapes["classifier.bias"] = [1000]
    return shapes


def released_tensors() -> Tensors:
    """Random tensors under the names of the released state dict, with the counters that it may hold."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.rand(shape, generator=generator) + 0.1 for name, shape in released_shapes().items()}
    means = [name for name in tensors if name.endswith("running_mean")]
    return tensors | {name.replace("running_mean", "num_batches_tracked"): torch.tensor(5) for name in means}
