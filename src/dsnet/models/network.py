"""What the specs of all networks have in common, whatever their layers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from dsnet.errors import must
from dsnet.limits import allow
from dsnet.manifest import must_have_channels, must_reach
from dsnet.nn.gate import GateSpec
from dsnet.routers import RouterSpec
from dsnet.schema import Typed
from dsnet.space import Channels, WidthPath, WidthSpace, is_exit

if TYPE_CHECKING:
    from dsnet.models.build import Modules
    from dsnet.models.supernet import Supernet


class Tap(NamedTuple):
    """A map inside a network that a detector can read: the choice point that it lies behind, its channels, its side."""

    choice: int | None
    channels: Channels
    side: int


class Network(Typed):
    """A network as data, which rebuilds it. The fields are those that routers, transfer and export ask for.

    Args:
        widths: Number of widths at each choice point.
        gate: How gates are built; None for networks without gates.
        sizes: Image sizes that the network runs at, smallest first; the last is its image size, in which images are
            given. Empty if it runs at one size only.
        routing: Allowed width indices at each choice point; the slimming heads have one output for each.
        router: How the trained network chooses its widths; None if it has not learned to route.
    """

    name: str
    widths: tuple[int, ...]
    gate: GateSpec | None
    num_classes: int
    in_channels: int
    image_size: int
    routing: tuple[tuple[int, ...], ...]
    router: RouterSpec | None
    sizes: tuple[int, ...]

    def check_limits(self) -> None:
        """Refuse sizes that would take too long or too much memory, before anything else looks at them."""
        for name, value in (("num_classes", self.num_classes), ("in_channels", self.in_channels)):
            must(name, repr(value), type(value) is int and value >= 1, "be a whole number of at least 1")
        allow("classes", self.num_classes, "num_classes is")
        allow("channels", self.in_channels, "in_channels is")
        for count in self.widths:
            must("the number of widths of a choice point", count, count >= 1, "be at least 1")
            allow("widths", count, "the number of widths of a choice point is")
        allow("widths", len(self.sizes), "the number of image sizes is")
        allow("paths", self.rows * prod(self.widths), "the number of paths is")

    def check_common(self) -> None:
        object.__setattr__(self, "routing", WidthSpace.full(self.widths).restrict(self.routing or None).choices)
        if type(self.image_size) is not int:
            raise ValueError(f"image_size is {self.image_size!r}; give the side in whole pixels")
        self.check_size(self.image_size)
        if self.sizes:
            self._check_sizes()
        if self.router is not None:
            self._check_router(self.router)

    def _check_sizes(self) -> None:
        sizes = list(self.sizes)
        if any(type(size) is not int for size in sizes) or sizes != sorted(set(sizes)) or len(sizes) < 2:
            raise ValueError(
                f"image sizes {sizes} must rise, each of them once, and be two at least, such as 64 96 128; leave them "
                f"out for one size"
            )
        if sizes[-1] != self.image_size:
            raise ValueError(
                f"the largest of the image sizes {sizes} must be that of the images, {self.image_size}; change the "
                f"sizes, or set the image size to {sizes[-1]}"
            )
        self.check_size(*sizes)

    def _check_router(self, router: RouterSpec) -> None:
        if self.sizes:
            self._check_sized_router(router)
            return
        if router.candidates:
            raise ValueError(f"{self.name!r} has one image size, so its router takes uniform paths; name no candidates")
        if not self.widths:
            raise ValueError(f"{self.name!r} has one width only, so there is nothing to route; choose another model")
        if WidthSpace(self.routing).size == 1:
            raise ValueError(f"routing {self.routing} leaves one path only; give the router widths to choose from")
        heads = self.gate is not None and self.gate.slimming is not None
        if router.kind == "gate" and router.early is None and not heads:
            raise ValueError(
                f"{self.name!r} has no slimming heads; use the router cheap_first, exit_first or threshold"
            )
        if (router.single or router.targets in ("narrowest", "correctness", "kl")) and len(
            {len(allowed) for allowed in self.routing}
        ) > 1:
            raise ValueError(
                f"routing {self.routing} has different numbers of widths at different gates; router {router.kind} with "
                f"targets {router.targets} compares uniform paths and needs the same number everywhere"
            )

    def _check_sized_router(self, router: RouterSpec) -> None:
        if not router.probes and not router.exits:
            raise ValueError(
                f"{self.name!r} runs at several image sizes, and router {router.kind} chooses widths at one; use "
                f"router margin, threshold or exit_first, which look at a small image first, or leave the sizes out"
            )
        if router.exits and not self.widths:
            raise ValueError(
                f"{self.name!r} has no gate, where an early classifier could read a map; use router margin or threshold"
            )
        for path in router.candidates:
            self.space.validate(path)
        ways = list(map(is_exit, router.candidates))
        if router.exits and ways and (not ways[0] or all(ways)):
            raise ValueError(
                f"router exit_first has the candidates {router.candidates}; the first must be an exit, such as "
                f"{self.space.exits[0]}, and one of the others a full setting, such as {self.space.widest}"
            )

    @property
    def space(self) -> WidthSpace:
        exits = self.router is not None and self.router.exits
        return WidthSpace.full(self.widths, exit=exits, sizes=self.rows)

    @property
    def rows(self) -> int:
        """Number of image sizes. The layers have every width once for each of them."""
        return max(1, len(self.sizes))

    @property
    def routing_space(self) -> WidthSpace:
        """The paths that a router may choose from."""
        if self.router is not None and self.router.candidates:
            return WidthSpace.around(self.router.candidates, sized=self.rows > 1)
        sizes = (tuple(range(self.rows)),) if self.rows > 1 else ()
        return WidthSpace((*sizes, *self.routing), self.space.exit, self.rows > 1)

    @property
    def candidates(self) -> list[WidthPath]:
        """What a router with a single decision chooses from: the exits if there are any, and the uniform paths of the
        routing space, slimmest first."""
        if self.router is not None and self.router.candidates:
            return list(self.router.candidates)
        return self.space.exits + self.routing_space.uniform

    @property
    def stride(self) -> int:
        """Total stride: input pixels per pixel of the last map. The smallest image has this side."""
        return 1

    @property
    def flexible(self) -> bool:
        """Whether the layers take maps of any size."""
        return True

    @property
    def any_size(self) -> bool:
        """Whether the network takes images of other sizes than its own. With several sizes it makes them itself."""
        return self.flexible and not self.sizes

    @property
    def layers(self) -> tuple[Any, ...]:
        """The layers as data, without everything that a router may change."""
        return ()

    @property
    def taps(self) -> dict[str, Tap]:
        """Maps that detectors can read, by name, the largest first."""
        return {}

    def channels(self, path: WidthPath) -> list[int]:
        """Output channels along the network, for people."""
        return []

    def check_input(self, shape: Sequence[int]) -> None:
        """Refuse inputs of a shape that the network does not take."""
        must_have_channels(self.name, shape, self.in_channels)
        self.check_size(*shape[2:])

    def check_size(self, *sides: int) -> None:
        for side in sides:
            allow("image_size", side, f"the image size of {self.name!r} is")
            must_reach(self.name, side, self.stride)

    def without_router(self) -> Self:
        return replace(self, router=None)  # type: ignore[type-var]

    def at_one_size(self) -> Self:
        """The same layers for images of one size, without a router."""
        return replace(self, sizes=(), router=None)  # type: ignore[type-var]

    def with_routing(self, routing: Sequence[Sequence[int]]) -> Self:
        """The same network with other width indices to choose from at each gate."""
        return replace(self, routing=tuple(map(tuple, routing)))  # type: ignore[type-var]

    def modules(self) -> Modules:
        """The layers: a front, one segment per choice point, and the head."""
        raise TypeError(f"{type(self).__name__} has no layers")

    def build(self) -> Supernet:
        """The network, with fresh weights."""
        from dsnet.models.supernet import Supernet

        return Supernet(self)


@dataclass(frozen=True)
class Outline(Network):
    """What the config of a run knows of a network that has no name in the registry: everything but its layers."""

    name: str
    widths: tuple[int, ...]
    image_size: int
    gate: GateSpec | None = None
    num_classes: int = 1000
    in_channels: int = 3
    routing: tuple[tuple[int, ...], ...] = ()
    router: RouterSpec | None = None
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.check_common()
