"""Layout changes in a training step of DS-ResNet on CUDA, without a GPU: contiguous maps beside channels-last ones.

    python benchmarks/layouts.py [--images 64] [--export docs/results/layouts]

torch's group norm for CUDA works on contiguous maps: those in channels-last are copied, and the result is contiguous
(aten/src/ATen/native/group_norm.cpp, up to torch 2.13). A convolution whose input or weight is in channels-last works
in channels-last, and copies what is not (`meta_convolution_backward` of torch/_meta_registrations.py). A step of the
recipe runs on tensors with shapes and layouts but without values; these rules decide the layouts, and every copy that
they ask for is counted. `moments` is a group norm for channels-last maps that is written in PyTorch's operators.

`read and written` counts every tensor of an operator once, those that group norm reads twice. cuDNN may change
layouts itself, to run tensor cores on contiguous maps. `in cuDNN at most` is what that moves if it changes every map
that a convolution reads or writes, in each of the three passes.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from memory import Shapes, one_pixel, stages_of, without_values
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from turns import write_page

from dsnet.config import packaged, read_yaml
from dsnet.data.dataset import Batch
from dsnet.nn import SliceGroupNorm
from dsnet.report.tables import markdown_table
from dsnet.tasks import config_from
from dsnet.training import Loop
from dsnet.training.loop import READS

RECIPE = "imagenet_ds_resnet50"
CANDIDATES = ("contiguous", "channels_last", "channels_last, moments")
ROWS, LAST = torch.contiguous_format, torch.channels_last
UNMOVED = {"view", "slice", "alias", "detach", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select"}
UNMOVED |= {"as_strided", "split", "split_with_sizes", "_unsafe_view", "device", "empty", "empty_like", "empty_strided"}
COPIES = ("clone", "_to_copy", "copy_")


class Layouts(TorchDispatchMode):
    """Gives results the layouts that they have on CUDA, and counts what that copies."""

    def __init__(self) -> None:
        super().__init__()
        self.operators, self.moved, self.inside, self.bytes = 0, 0, 0, 0
        self.changes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, found = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        if name in UNMOVED:
            return found
        self.operators += 1
        held = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, Tensor)]
        self.moved += sum(tensor.nbytes for tensor in held)
        if name in ("convolution", "convolution_backward"):
            return self.convolution(name, args, found)
        if name in ("native_group_norm", "native_group_norm_backward"):
            maps = args[: 1 if name == "native_group_norm" else 2]
            self.moved += sum(each.nbytes for each in maps)
            self.asked(name, maps, ROWS)
            return laid_out(found, ROWS)
        if name in COPIES and len({suggest_memory_format(each) for each in held if each.dim() == 4}) > 1:
            self.note(name, held[0])
        return found

    def convolution(self, name: str, args: Any, found: Any) -> Any:
        back = name == "convolution_backward"
        maps, weight = args[: 2 if back else 1], args[2 if back else 1]
        layout = LAST if LAST in map(suggest_memory_format, (maps[-1], weight)) else ROWS
        self.asked(name, maps, layout)
        self.asked(name, [weight], layout)
        if layout == ROWS:
            made = [leaf for leaf in tree_leaves(found[:1] if back else found) if isinstance(leaf, Tensor)]
            read = [maps[0], *maps] if back and made else maps  # the gradient, for that of the map and of the weight
            self.inside += 2 * sum(each.nbytes for each in (*read, *made))
        return laid_out(found, layout)

    def asked(self, name: str, maps: Any, layout: torch.memory_format) -> None:
        """An operator copies the maps that are not in its layout."""
        for each in maps:
            if not each.is_contiguous(memory_format=layout):
                self.note(name, each)
                self.moved += 2 * each.nbytes

    def note(self, name: str, tensor: Tensor) -> None:
        self.changes[name] += 1
        self.bytes += 2 * tensor.nbytes

    def counts(self) -> dict[str, Any]:
        """What a step does, in operators and gigabytes."""
        return {
            "operators": self.operators,
            "layout changes": dict(self.changes),
            "layout changes, GB": round(self.bytes / 1e9, 1),
            "read and written, GB": round(self.moved / 1e9, 1),
            "in cuDNN at most, GB": round(self.inside / 1e9, 1),
        }


def laid_out(found: Any, layout: torch.memory_format) -> Any:
    """Results of an operator with their maps in this layout."""
    if isinstance(found, tuple):
        return tuple(laid_out(each, layout) for each in found)
    if not isinstance(found, Tensor) or found.dim() != 4 or found.is_contiguous(memory_format=layout):
        return found
    return torch.empty_like(found, memory_format=layout)


class Moments(torch.autograd.Function):
    """Group norm that keeps the layout of its map. Moments are in single precision, maps in their own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        rows = x.unflatten(1, (groups, -1))
        mean = rows.mean((2, 3, 4), dtype=weight.dtype)
        norm = torch.linalg.vector_norm(rows, dim=(2, 3, 4), dtype=weight.dtype)  # reads the map, and writes no square
        rstd = (norm.square() * (groups / x[0].numel()) - mean.square() + eps).rsqrt()[:, :, None]
        mean = mean[:, :, None]
        scale = rstd * weight.view(groups, -1)  # [B, G, C / G]
        shift = torch.addcmul(bias.view(groups, -1), mean, scale, value=-1)
        ctx.save_for_backward(x, weight, mean, rstd, scale)
        return torch.addcmul(over_map(shift), x, over_map(scale), out=torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, weight, mean, rstd, scale) = grads, ctx.saved_tensors
        sums, products = ((each.sum((2, 3), dtype=scale.dtype)).view_as(scale) for each in (grad, grad * x))
        centred = torch.addcmul(products, sums, mean, value=-1) * rstd
        count = x[0].numel() / scale.shape[1]
        by_x = -(centred * scale).sum(2, keepdim=True) * rstd / count
        constant = -(sums * scale).sum(2, keepdim=True) / count - by_x * mean
        held = torch.addcmul(over_map(constant.expand_as(scale)), x, over_map(by_x.expand_as(scale)))
        found = torch.addcmul(held, grad, over_map(scale), out=torch.empty_like(x))
        return found, centred.sum(0).view_as(weight), sums.sum(0).view_as(weight), None, None


def over_map(rows: Tensor) -> Tensor:
    """Numbers of every channel [B, G, C / G], to be broadcast over a map."""
    return rows.flatten(1)[:, :, None, None]


def by_moments(self: SliceGroupNorm, x: Tensor, width: int) -> Tensor:
    weight, bias = self.affine(width)
    with torch.autocast(x.device.type, enabled=False):
        found: Tensor = Moments.apply(x.bfloat16(), weight, bias, weight.numel() // self.group_size, self.eps)
    return found


def check() -> None:
    """`Moments` computes group norm and its gradients, and keeps the layout."""
    torch.manual_seed(0)
    x = torch.randn(3, 32, 5, 7, dtype=torch.float64).to(memory_format=LAST).requires_grad_()
    weight, bias = (torch.randn(32, dtype=torch.float64, requires_grad=True) for _ in range(2))
    ours, torchs = Moments.apply(x, weight, bias, 4, 1e-5), F.group_norm(x, 4, weight, bias)
    grad = torch.randn_like(x)
    found = [ours, *torch.autograd.grad(ours, (x, weight, bias), grad)]
    expected = [torchs, *torch.autograd.grad(torchs, (x, weight, bias), grad)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    assert found[0].is_contiguous(memory_format=LAST)
    assert found[1].is_contiguous(memory_format=LAST)


@contextmanager
def candidate(name: str) -> Iterator[bool]:
    """Run a `with` block with a candidate's group norm. Gives whether its maps are in channels-last."""
    if name == CANDIDATES[2]:
        with patch.object(SliceGroupNorm, "sliced", by_moments):
            yield True
    else:
        yield name == CANDIDATES[1]


def counted(stage: Any, optim: Any, size: int, images: int) -> dict[str, Any]:
    """The second step of a stage, whose maps lie as `optim.channels_last` says."""
    if optim.channels_last:
        stage.to(memory_format=LAST)
    mode = Shapes()
    without_values(stage, mode)
    stage.to = lambda *where, **options: stage
    with mode, tempfile.TemporaryDirectory() as folder:
        loop: Loop[Any] = Loop(stage, one_pixel(), optim, folder=Path(folder), seed=0, momentum=0.99, reads=READS)
        loop.stage.train()
        labels = torch.zeros(images, dtype=torch.long)
        batch = Batch(torch.zeros(images, 3, size, size), labels, labels)
        loop.step(batch)
        with Layouts() as layouts:
            loop.step(batch)
    return layouts.counts()


def page(images: int, found: dict[str, dict[str, Any]]) -> list[str]:
    """The counts of all stages in words and tables."""
    lines = [
        "# Layout changes in a training step of DS-ResNet on CUDA",
        "",
        f"The recipe {RECIPE} with {images} images in a step, followed through the rules that torch",
        f"{torch.__version__} has for CUDA, without a GPU, by `python benchmarks/layouts.py`. "
        f"Its text says what is counted.",
    ]
    for stage, candidates in found.items():
        columns = [
            "<maps",
            "operators",
            "layout changes",
            *(name for name in next(iter(candidates.values())) if "GB" in name),
        ]
        cells = [
            [
                name,
                str(counts["operators"]),
                str(sum(counts["layout changes"].values())),
                *(str(counts[gb]) for gb in columns[3:]),
            ]
            for name, counts in candidates.items()
        ]
        lines += ["", f"## S{stage[1:]}", "", *markdown_table(columns, cells)]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--export", type=Path)
    args = parser.parse_args()
    check()
    config = config_from(read_yaml(packaged()[RECIPE]))
    found: dict[str, dict[str, Any]] = {}
    for name in CANDIDATES:
        for stage, (made, optim) in stages_of(config).items():
            with candidate(name) as last:
                asked = replace(optim, channels_last=last)
                found.setdefault(stage, {})[name] = counted(made, asked, config.data.image_size, args.images)
    lines = page(args.images, found)
    print("\n".join(lines))
    if args.export:
        write_page(args.export, {"recipe": RECIPE, "images": args.images, **found}, lines)


if __name__ == "__main__":
    main()
