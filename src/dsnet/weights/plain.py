"""Build our networks from state dicts of other programs. A file with a tensor that has no place is refused.

`read_plain` reads plain networks of torchvision and timm, `import_released` the DS-MBNet of the paper's authors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import ge

import torch
from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.models import ModelSpec, Supernet, create_model
from dsnet.nn import RouterSpec, Sliceable, SliceBatchNorm2d
from dsnet.weights.account import Account
from dsnet.weights.schemes import Names, Scheme, Tensors, find_scheme, layers, shape, unknown_names


@dataclass(frozen=True)
class Source:
    """A trained network of ours. If another program wrote it, also its naming scheme and its names of our layers."""

    net: Supernet
    scheme: Scheme | None = None
    names: Names = field(default_factory=dict)


def read_plain(tensors: Tensors) -> Source:
    """The static network that a state dict of torchvision or timm describes, in eval mode, with its weights."""
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
    """The state dict of our network. Tensors that are missing, left over or of another shape are an error."""
    with torch.device("meta"):  # allocates nothing, however large the sizes in the file are
        expected = Supernet(spec).state_dict()
    placed: dict[str, Tensor] = {}
    used: set[str] = set()
    for ours, target in expected.items():
        layer, _, kind = ours.rpartition(".")
        theirs = f"{names[layer]}.{kind}"
        used.add(theirs)
        if kind == "num_batches_tracked":
            placed[ours] = torch.ones(
                1, dtype=torch.long
            )  # marks the statistics as trained; files may omit the counter
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
    """A tensor in our shape. Statistics have a row per width here, and 1x1 convolutions on pooled maps are linear."""
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

    Its stem and first five blocks hold a wider front that the routed network never uses, so they are cut to the
    leading channels. Batch-norm statistics are in `aux_bn.<width>`, and the last of these also has the shared affine.
    """
    try:
        net = create_model(
            "ds_mobilenet_v1",
            num_classes=shape(tensors, "classifier.weight", dims=2)[0],
            in_channels=shape(tensors, "conv_stem.weight")[1],
            routing=range(shape(tensors, "blocks.3.first_block.gate.gate.0.weight")[0]),
        ).eval()
    except CheckpointError:
        raise
    except (ValueError, RuntimeError) as error:
        raise CheckpointError(f"its sizes do not fit the released DS-MBNet: {error}") from error
    names, account, wider = released_names(), Account(), []
    take = partial(_take, tensors, account)
    with torch.no_grad():
        for path, layer in net.named_modules():
            cut = path.startswith(_CUT)
            if isinstance(layer, SliceBatchNorm2d):
                entries = [f"{names[path]}.aux_bn.{width}" for width in range(len(layer.channels) + cut)]
                take(f"{entries[-1]}.weight", layer.weight, cut=cut)
                take(f"{entries[-1]}.bias", layer.bias, cut=cut)
                wider += entries[len(layer.channels) :]
                _take_statistics(tensors, take, entries, layer)
            elif isinstance(layer, Sliceable):
                for kind, parameter in layer.named_parameters():
                    take(f"{names[path]}.{kind}", parameter, cut=cut)
    net.spec = replace(net.spec, router=RouterSpec("gate", "try_best"))  # its slimming head is trained
    for name in sorted(set(tensors) - set(account.loaded)):
        if name.rpartition(".")[0] not in wider:
            raise CheckpointError(f"tensor {name!r} has no place in the released DS-MBNet; this is another network")
        account.unused[name] = "the routed network never uses the wider front"
    account.limits.append("the front is cut to the width that the routed network uses")
    return net, account


def _take(tensors: Tensors, account: Account, name: str, target: Tensor, *, cut: bool = False) -> None:
    """Copy a tensor into `target`, with `cut` only its leading channels. 1x1 convolutions become linear layers."""
    if name not in tensors:
        raise CheckpointError(
            f"tensor {name!r} is missing, so this is not the released DS-MBNet or it is incomplete; "
            f"the file has {len(tensors)} tensors"
        )
    tensor, wanted = tensors[name], tuple(target.shape)
    if tensor.dim() == 4 and len(wanted) == 2 and tensor.shape[2:] == (1, 1):
        tensor = tensor.flatten(1)
    given = tuple(tensor.shape)
    enough = len(given) == len(wanted) and given[2:] == wanted[2:] and all(map(ge, given, wanted))
    if not (enough if cut else given == wanted):
        need = "at least " if cut else ""
        raise CheckpointError(f"tensor {name!r} has shape {tuple(tensors[name].shape)} but {need}{wanted} is needed")
    target.copy_(tensor[tuple(slice(count) for count in wanted)])
    if given == wanted:
        account.whole.append(name)
    else:
        account.cut[name] = (given, wanted)


def _take_statistics(
    tensors: Tensors, take: Callable[[str, Tensor], None], entries: list[str], norm: SliceBatchNorm2d
) -> None:
    """Copy the statistics of every width. entries: Prefix of the tensors of each width."""
    for width, (count, entry) in enumerate(zip(norm.channels, entries, strict=False)):
        take(f"{entry}.running_mean", norm.running_mean[width, :count])
        take(f"{entry}.running_var", norm.running_var[width, :count])
        if norm.running_var[width].min() < 0:
            raise CheckpointError(f"tensor '{entry}.running_var' holds a negative variance; the file is damaged")
        norm.num_batches_tracked[width] = 1  # marks the statistics as trained; files may omit the counter
        if f"{entry}.num_batches_tracked" in tensors:
            take(f"{entry}.num_batches_tracked", norm.num_batches_tracked[width])


_RELEASED_LAYERS = {
    "depthwise": "conv_dw",
    "norm1": "bn1",
    "gate.reduce": "gate.conv_reduce",
    "gate.expand": "gate.conv_expand",
    "gate.slimming.score": "gate.gate.0",
    "pointwise": "conv_pw",
    "norm2": "bn2",
}

# The layers whose tensors are cut: the front, and in block 6 everything up to the input of its pointwise convolution.
# Their batch norms have one more, wider width in the file.
_CUT = ("front.", *(f"segments.0.first.{layer}" for layer in ("depthwise", "norm1", "gate", "pointwise")))


def released_names() -> Names:
    """The names of our layers in the released file."""
    ours = [f"front.blocks.{number}" for number in range(1, 6)]
    ours += ["segments.0.first", *(f"segments.0.rest.blocks.{number}" for number in range(7))]
    theirs = [
        f"blocks.{stage}.{block}"
        for stage, count in enumerate((0, 1, 1, 5, 1))
        for block in ("first_block", *(f"residual_blocks.{number}" for number in range(count)))
    ]
    names = {"front.blocks.0.conv": "conv_stem", "front.blocks.0.norm": "bn1", "head.classifier": "classifier"}
    for mine, its in zip(ours, theirs, strict=True):
        names |= layers(mine, its, _RELEASED_LAYERS)
    return names
