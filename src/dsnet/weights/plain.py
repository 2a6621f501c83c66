"""State dicts of other programs as networks of ours: every tensor has its place, or the file is refused.

`read_plain` takes plain networks of torchvision and timm, `import_released` the DS-MBNet of the paper's authors.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.models import ModelSpec, Supernet, create_model
from dsnet.nn import RouterSpec, Sliceable, SliceBatchNorm2d
from dsnet.weights.account import Account
from dsnet.weights.schemes import Names, Scheme, Tensors, find_scheme, unknown_names


@dataclass(frozen=True)
class Source:
    """A trained network of ours, and where it is one of another program: how that names things, and our layers."""

    net: Supernet
    scheme: Scheme | None = None
    names: Names = field(default_factory=dict)


def read_plain(tensors: Tensors) -> Source:
    """The static network that a state dict of torchvision or timm describes, with its weights, in eval mode."""
    scheme = find_scheme(tensors)
    if scheme is None:
        raise CheckpointError(unknown_names(tensors))
    try:
        spec, names = scheme.read(tensors)
        placed = place(spec, tensors, names)
    except CheckpointError as error:
        raise CheckpointError(f"this looks like {scheme.title}, but {error}") from error
    except (ValueError, RuntimeError, IndexError, ZeroDivisionError) as error:
        raise CheckpointError(f"this looks like {scheme.title}, but its sizes do not fit together: {error}") from error
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; reading must not move the generator
        net = Supernet(spec).eval()
    net.load_state_dict(placed)
    return Source(net, scheme, names)


def place(spec: ModelSpec, tensors: Tensors, names: Names) -> dict[str, Tensor]:
    """The state dict of our network; what is missing, left over or of another shape is an error."""
    with torch.device("meta"):  # costs nothing, whatever sizes the file asks for
        expected = Supernet(spec).state_dict()
    placed: dict[str, Tensor] = {}
    used: set[str] = set()
    for ours, target in expected.items():
        layer, _, kind = ours.rpartition(".")
        theirs = f"{names[layer]}.{kind}"
        used.add(theirs)
        if kind == "num_batches_tracked":
            placed[ours] = torch.ones(1, dtype=torch.long)  # trained, also where the file leaves the counter out
            continue
        placed[ours] = shaped(theirs, tensors, tuple(target.shape))
        if kind == "running_var" and placed[ours].min() < 0:
            raise CheckpointError(f"tensor {theirs!r} holds a negative variance; the file is damaged")
    if left := [name for name in tensors if name not in used]:
        raise CheckpointError(
            f"{len(left)} of its tensors have no place there, the first is {left[0]!r}; it is another network"
        )
    return placed


def shaped(name: str, tensors: Tensors, wanted: tuple[int, ...]) -> Tensor:
    """A tensor in our shape: statistics have a row per width, and 1x1 convolutions on pooled maps are linear."""
    if name not in tensors:
        raise CheckpointError(f"tensor {name!r} is missing; the file is incomplete")
    given = tuple(tensors[name].shape)
    if wanted in (given, (1, *given)) or given == (*wanted, 1, 1):
        return tensors[name].reshape(wanted)
    raise CheckpointError(
        f"tensor {name!r} has shape {given} where {wanted} is needed; "
        f"grouped convolutions, deep stems and other variants are not read"
    )


def import_released(tensors: Tensors) -> tuple[Supernet, Account]:
    """The DS-MBNet that the paper's authors released, as `ds_mobilenet_v1`.

    Its stem and first five blocks hold a wider front that the routed network never uses: they are cut to the
    leading channels. Batch-norm statistics are in `aux_bn.<width>`, the shared affine in the last of them.
    """
    source = _Released(tensors)
    gate = "blocks.3.first_block.gate.gate.0.weight"
    try:
        net = create_model(
            "ds_mobilenet_v1",
            num_classes=source.get("classifier.weight", dims=2).shape[0],
            in_channels=source.get("conv_stem.weight", dims=4).shape[1],
            routing=range(source.get(gate, dims=4).shape[0]),
        ).eval()
    except CheckpointError:
        raise
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"its sizes do not fit the released DS-MBNet: {error}") from error
    names = {"front.blocks.0.conv": "conv_stem", "front.blocks.0.norm": "bn1", "head.classifier": "classifier"}
    for ours, theirs in zip(_our_blocks(), _released_blocks(), strict=True):
        names |= {f"{ours}.{mine}": f"{theirs}.{its}" for mine, its in _RELEASED_LAYERS.items()}
    with torch.no_grad():
        for path, layer in net.named_modules():
            if isinstance(layer, SliceBatchNorm2d):
                _import_norm(source, names[path], layer, cut=path.startswith(_CUT))
            elif isinstance(layer, Sliceable):
                for kind, parameter in layer.named_parameters():
                    source.copy(f"{names[path]}.{kind}", parameter, cut=path.startswith(_CUT))
    net.spec = replace(net.spec, router=RouterSpec("gate", "try_best"))  # its slimming head is trained
    return net, source.settle()


def _import_norm(source: _Released, name: str, norm: SliceBatchNorm2d, *, cut: bool) -> None:
    last = len(norm.channels) if cut else len(norm.channels) - 1  # the cut front kept one more, wider width
    source.copy(f"{name}.aux_bn.{last}.weight", norm.weight, cut=cut)
    source.copy(f"{name}.aux_bn.{last}.bias", norm.bias, cut=cut)
    if cut:
        source.leave(f"{name}.aux_bn.{last}.")
    for width, count in enumerate(norm.channels):
        entry = f"{name}.aux_bn.{width}"
        source.copy(f"{entry}.running_mean", norm.running_mean[width, :count])
        source.copy(f"{entry}.running_var", norm.running_var[width, :count])
        if norm.running_var[width].min() < 0:
            raise CheckpointError(f"tensor '{entry}.running_var' holds a negative variance; the file is damaged")
        norm.num_batches_tracked[width] = 1  # its statistics are trained, also where the file leaves the counter out
        source.take(f"{entry}.num_batches_tracked", norm.num_batches_tracked[width])


_RELEASED_LAYERS = {
    "depthwise": "conv_dw",
    "norm1": "bn1",
    "gate.reduce": "gate.conv_reduce",
    "gate.expand": "gate.conv_expand",
    "gate.slimming.score": "gate.gate.0",
    "pointwise": "conv_pw",
    "norm2": "bn2",
}


# The layers whose tensors are cut: the front, and of block 6 what stands before its pointwise outputs.
_CUT = (
    "front.",
    "segments.0.first.depthwise",
    "segments.0.first.norm1",
    "segments.0.first.gate",
    "segments.0.first.pointwise",
)


def _our_blocks() -> list[str]:
    return (
        [f"front.blocks.{k}" for k in range(1, 6)]
        + ["segments.0.first"]
        + [f"segments.0.rest.blocks.{k}" for k in range(7)]
    )


def _released_blocks() -> list[str]:
    repeats = (0, 1, 1, 5, 1)
    return [
        f"blocks.{stage}.{block}"
        for stage, count in enumerate(repeats)
        for block in ("first_block", *(f"residual_blocks.{k}" for k in range(count)))
    ]


class _Released:
    """The tensors of the released file, and an account of what was taken from them."""

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors
        self.account = Account()
        self.expected_leftovers: list[str] = []

    def get(self, name: str, dims: int) -> Tensor:
        if name not in self.tensors:
            raise CheckpointError(
                f"tensor {name!r} is missing, so this is not the released DS-MBNet or it is incomplete; "
                f"the file has {len(self.tensors)} tensors"
            )
        tensor = self.tensors[name]
        if tensor.dim() != dims:
            raise CheckpointError(f"tensor {name!r} has {tensor.dim()} dimensions instead of {dims}")
        return tensor

    def copy(self, name: str, target: Tensor, *, cut: bool = False) -> None:
        """Fill `target`; with `cut` from the leading channels. 1x1 convolutions serve as linear layers."""
        dims = self.tensors[name].dim() if name in self.tensors else target.dim()
        flat = dims == 4 and target.dim() == 2
        tensor = self.get(name, dims=4 if flat else target.dim())
        if flat and tensor.shape[2:] == (1, 1):
            tensor = tensor.flatten(1)
        fits = tensor.dim() == target.dim() and tensor.shape[2:] == target.shape[2:]
        enough = fits and all(have >= need for have, need in zip(tensor.shape, target.shape, strict=True))
        if not (enough if cut else tensor.shape == target.shape):
            need = "at least " if cut else ""
            raise CheckpointError(
                f"tensor {name!r} has shape {tuple(self.tensors[name].shape)} but {need}{tuple(target.shape)} is needed"
            )
        target.copy_(tensor[tuple(slice(count) for count in target.shape)])
        if tensor.shape == target.shape:
            self.account.whole.append(name)
        else:
            self.account.cut[name] = (tuple(tensor.shape), tuple(target.shape))

    def take(self, name: str, target: Tensor) -> None:
        """`copy` if the tensor is there."""
        if name in self.tensors:
            self.copy(name, target)

    def leave(self, prefix: str) -> None:
        """Tensors that may remain unused."""
        self.expected_leftovers.append(prefix)

    def settle(self) -> Account:
        """The account of all tensors; one that has no place and was not left on purpose is an error."""
        for name in sorted(set(self.tensors) - set(self.account.loaded)):
            if not name.startswith(tuple(self.expected_leftovers)):
                raise CheckpointError(f"tensor {name!r} has no place in the released DS-MBNet; this is another network")
            self.account.unused[name] = "the routed network never uses the wider front"
        self.account.limits.append("the front is cut to the width that the routed network uses")
        return self.account
