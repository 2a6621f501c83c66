"""The parts of a network between its choices, as every runtime offers them, and what a runner answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dsnet.manifest import Manifest

T = TypeVar("T")
Outputs = dict[str, Any]
"""The outputs of a network by name, arrays [B, ...]: `logits`, or `boxes` and `scores`."""


@dataclass(frozen=True)
class Routed:
    """The outputs of a batch, with its routes.

    Args:
        outputs: Arrays by name.
        paths: Width indices [B, points]; EXIT where the early classifier answered.
        madds: MAdds [B], including the router.
        scores: The router's scores, one array [B, R] per decision.
    """

    outputs: Outputs
    paths: Any
    madds: Any
    scores: list[Any]

    @property
    def logits(self) -> Any:
        return self.outputs["logits"]


class Fork(NamedTuple):
    """The state at a choice point: a feature map, the map scaled by the gate's attention, and the gate's scores.

    `x` is None if no layer behind the choice reads the unscaled map. `scores` is None if there is no decision. `exit`
    holds the logits of the early classifier if its answer is a candidate.
    """

    x: Any | None
    scaled: Any
    scores: Any | None = None
    exit: Any | None = None


class Step(NamedTuple):
    """The end of a part of the network.

    Args:
        fork: The next choice point; None behind the last one.
        left: Arrays by name that `finish` will read.
    """

    fork: Fork | None
    left: Outputs


class Parts(Protocol):
    """A network cut at its choice points. Live weights, cached modules and ONNX sessions implement it.

    Widths are those of the layers: where a network runs at several image sizes, these have every width once for each
    size (`WidthSpace.rows`), and the front runs at the size of an index.

    front -> Step -> first (from w_in to w_out) -> rest (at w_out) -> the next Step ... -> finish -> Outputs

    `first` returns a map. Where only one width can come in, it may return anything that `rest` understands.
    """

    @property
    def manifest(self) -> Manifest: ...

    def take(self, x: Any) -> Any:
        """Convert a batch of the caller to the arrays that these parts read."""
        ...

    def front(self, x: Any, size: int = 0) -> Step:
        """Scores, and the answer of the early classifier, are given at the size that is looked at first."""
        ...

    def exit(self, x: Any, size: int = 0) -> Outputs:
        """The answer of the early classifier at an image size, from the image on."""
        ...

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Any: ...

    def rest(self, point: int, width: int, x: Any) -> Step: ...

    def probe(self, outputs: Outputs) -> Any:
        """Scores [B, R] of a router that probes, from the outputs of the slimmest candidate."""
        ...

    def finish(self, left: Outputs) -> Outputs:
        """The outputs, computed once for the whole batch."""
        ...

    def cat(self, parts: list[Any]) -> Any: ...

    @property
    def workers(self) -> int:
        """Number of tasks that `each` runs at the same time."""
        ...

    def each(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Run tasks that do not depend on each other, in any order, and return their results in the given order."""
        ...


def as_array(x: Any) -> np.ndarray:
    """Convert a torch or numpy array to numpy."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def like(x: Any, value: Any) -> Any:
    """Convert an array to the library and the device of `x`: torch in, torch out; numpy in, or a list of pictures,
    numpy out."""
    if isinstance(x, np.ndarray | list):
        return as_array(value)
    return likes(x, [value])[0] if isinstance(value, np.ndarray) else value.to(x.device)


def likes(x: Any, values: Sequence[np.ndarray]) -> list[Any]:
    """`like` of some arrays of the host. They go to a device in one copy, because each copy waits for it."""
    if isinstance(x, np.ndarray | list) or not values:
        return list(values)
    torch = import_module("torch")  # the caller passed a tensor, so torch is installed
    tensors = [torch.from_numpy(np.ascontiguousarray(value)) for value in values]
    if not on_device(x):
        return tensors
    order = sorted(range(len(tensors)), key=lambda place: -tensors[place].element_size())  # numbers must be aligned
    flat = torch.cat([tensors[place].flatten().view(torch.uint8) for place in order]).to(x.device)
    parts = dict(zip(order, flat.split([tensors[place].nbytes for place in order]), strict=True))
    return [parts[place].view(tensor.dtype).view(tensor.shape) for place, tensor in enumerate(tensors)]


def on_device(x: Any) -> bool:
    """Whether an array is a tensor in other memory than the host's."""
    return getattr(getattr(x, "device", None), "type", "cpu") != "cpu"
