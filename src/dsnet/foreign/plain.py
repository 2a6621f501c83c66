"""State dicts of plain networks as static networks of ours: every tensor has its place, or the file is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.foreign.schemes import Names, Scheme, Tensors, find_scheme, unknown_names
from dsnet.models import ModelSpec, Supernet


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
