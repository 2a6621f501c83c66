"""A model described as data: its stages of blocks, its choice points, and everything needed to rebuild it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from dsnet.errors import must
from dsnet.limits import allow
from dsnet.manifest import RouterSpec
from dsnet.nn.gate import ACTIVATIONS, Activation, GateSpec
from dsnet.nn.norm import NormSpec
from dsnet.schema import Typed
from dsnet.space import Channels, WidthPath, WidthSpace

if TYPE_CHECKING:
    from dsnet.models.supernet import Supernet


@dataclass(frozen=True)
class StageSpec(Typed):
    """A sequence of blocks of one kind; the first has the stride.

    Args:
        out: Output channels of each block: one number, or one per width of the stage's choice point.
        repeats: Number of blocks.
        kernel: Odd kernel size of conv, depthwise and inverted blocks.
        expansion: Expansion of bottleneck and inverted blocks.
        choice: Index of the choice point that decides `out`; None for stages before the first choice point.
        hidden: Hidden size of the blocks' gates; None derives it from the widest input (GateSpec.reduction).
        tap: Name of the stage's output in `forward_features`.
    """

    block: Literal["conv", "max_pool", "depthwise", "bottleneck", "inverted"]
    out: int | tuple[int, ...]
    repeats: int = 1
    stride: int = 1
    kernel: int = 3
    expansion: int = 1
    choice: int | None = None
    hidden: int | None = None
    tap: str | None = None

    def __post_init__(self) -> None:
        if self.block not in ("conv", "max_pool", "depthwise", "bottleneck", "inverted"):
            raise ValueError(
                f"block {self.block!r} is unknown; choose conv, max_pool, depthwise, bottleneck or inverted"
            )
        Channels.of(self.out)
        for name in ("repeats", "stride", "kernel", "expansion"):
            value = getattr(self, name)
            must(f"{name} of a {self.block} stage", value, type(value) is int and value >= 1, "be at least 1")
        allow("blocks", self.repeats, f"repeats of a {self.block} stage is")
        allow("channels", max(Channels.of(self.out)), f"the width of a {self.block} stage is")
        must(f"kernel of a {self.block} stage", self.kernel, self.kernel % 2 == 1, "be odd")
        if self.block == "bottleneck" and any(count % self.expansion for count in Channels.of(self.out)):
            raise ValueError(f"bottleneck channels {self.out} are not multiples of the expansion {self.expansion}")


@dataclass(frozen=True)
class ModelSpec(Typed):
    """Everything that is needed to rebuild a network.

    Args:
        widths: Number of widths at each choice point.
        gate: How gates are built; None for networks without gates.
        skip: Whether depthwise-separable blocks of stride 1 whose input and output have the same shape get identity
            skips.
        zero_init: Whether the last norm of each residual branch starts at zero.
        features: Output channels of a 1x1 convolution before the classifier; None for no such convolution.
        routing: Allowed width indices at each choice point; the slimming heads have one output for each.
        router: How the trained network chooses its widths; None if it has not learned to route.
    """

    name: str
    stages: tuple[StageSpec, ...]
    widths: tuple[int, ...] = ()
    norm: NormSpec = field(default_factory=NormSpec)
    activation: Activation = "relu"
    gate: GateSpec | None = None
    skip: bool = False
    zero_init: bool = False
    features: int | tuple[int, ...] | None = None
    num_classes: int = 1000
    in_channels: int = 3
    image_size: int = 224
    routing: tuple[tuple[int, ...], ...] = ()
    router: RouterSpec | None = None

    def __post_init__(self) -> None:
        for name, value in (("num_classes", self.num_classes), ("in_channels", self.in_channels)):
            must(name, repr(value), type(value) is int and value >= 1, "be a whole number of at least 1")
        self._check_sizes()
        if not isinstance(self.name, str) or not self.stages:
            raise ValueError(f"a model needs a name and at least one stage, not {self.name!r} and {self.stages!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation {self.activation!r} is unknown; choose from {', '.join(ACTIVATIONS)}")
        if self.norm.kind == "batch" and len(self.widths) > 1:
            raise ValueError(
                f"{self.name!r} has {len(self.widths)} choice points with batch norm, whose statistics would depend on "
                f"every choice upstream; use NormSpec('group') or one choice point"
            )
        reached = [choice for stage in self.stages if (choice := stage.choice) is not None]
        if sorted(set(reached)) != list(range(len(self.widths))) or reached != sorted(reached):
            raise ValueError(f"stages use choice points {reached}; they must rise from 0 to {len(self.widths) - 1}")
        for number, stage in enumerate(self.stages):
            self._check_stage(number, stage)
        object.__setattr__(self, "routing", self.space.restrict(self.routing or None).choices)
        if self.router is not None:
            self._check_router(self.router)
        taps = [stage.tap for stage in self.stages if stage.tap is not None]
        if len(taps) != len(set(taps)):
            raise ValueError(f"{self.name!r} names taps twice: {taps}; give each a name of its own")
        if isinstance(self.features, tuple) and len(self.features) != (self.widths[-1] if self.widths else 1):
            raise ValueError(
                f"{self.name!r} lists {len(self.features)} feature widths; give one number, or one per width"
            )
        if type(self.image_size) is not int:
            raise ValueError(f"image_size is {self.image_size!r}; give the side in whole pixels")
        self.check_size(self.image_size)

    def _check_sizes(self) -> None:
        allow("classes", self.num_classes, "num_classes is")
        allow("channels", self.in_channels, "in_channels is")
        allow("blocks", sum(stage.repeats for stage in self.stages), "the number of blocks is")
        for count in self.widths:
            must("the number of widths of a choice point", count, count >= 1, "be at least 1")
            allow("widths", count, "the number of widths of a choice point is")
        allow("paths", prod(self.widths), "the number of paths is")

    def _check_stage(self, number: int, stage: StageSpec) -> None:
        expected = 1 if stage.choice is None else self.widths[stage.choice]
        given = 1 if isinstance(stage.out, int) else len(stage.out)
        if not isinstance(stage.out, int) and given != expected:
            raise ValueError(f"stage {number} of {self.name!r} lists {given} widths; its choice point has {expected}")
        if stage.choice is None and any(earlier.choice is not None for earlier in self.stages[:number]):
            raise ValueError(f"stage {number} of {self.name!r} lies behind a choice point; set its choice")

    def _check_router(self, router: RouterSpec) -> None:
        if not self.widths:
            raise ValueError(f"{self.name!r} has one width only, so there is nothing to route; choose another model")
        if WidthSpace(self.routing).size == 1:
            raise ValueError(f"routing {self.routing} leaves one path only; give the router widths to choose from")
        heads = self.gate is not None and self.gate.slimming is not None
        if router.kind == "gate" and router.early is None and not heads:
            raise ValueError(f"{self.name!r} has no slimming heads; use the router slim_first, exit_first or threshold")
        if (router.single or router.targets in ("narrowest", "correctness", "kl")) and len(
            {len(allowed) for allowed in self.routing}
        ) > 1:
            raise ValueError(
                f"routing {self.routing} has different numbers of widths at different gates; router {router.kind} with "
                f"targets {router.targets} compares uniform paths and needs the same number everywhere"
            )

    @property
    def space(self) -> WidthSpace:
        return WidthSpace.full(self.widths, exit=self.router is not None and self.router.exits)

    @property
    def candidates(self) -> list[WidthPath]:
        """What a router with a single decision chooses from: the exit if there is one, and the uniform paths of the
        routing space, slimmest first."""
        exits = self.router is not None and self.router.exits
        return [self.space.exit_path] * exits + WidthSpace(self.routing).uniform

    @property
    def stride(self) -> int:
        """Total stride: input pixels per pixel of the last map. The smallest image has this side."""
        total = 1
        for stage in self.stages:
            total *= stage.stride
        return total

    def channels(self, path: WidthPath) -> list[int]:
        """Output channels of the stages behind the first choice point (of all stages in a static model); consecutive
        stages with equal channels count once."""
        counts: list[int] = []
        for stage in self.stages:
            if stage.block == "max_pool" or (self.widths and stage.choice is None):
                continue
            out = stage.out if isinstance(stage.out, int) else stage.out[path[stage.choice or 0]]
            if not counts or counts[-1] != out:
                counts.append(out)
        return counts

    def check_input(self, shape: Sequence[int]) -> None:
        """Refuse inputs of a shape that the network does not take."""
        if len(shape) != 4 or shape[1] != self.in_channels:
            raise ValueError(
                f"input has shape {tuple(shape)} but {self.name!r} takes [batch, {self.in_channels}, height, width]; "
                f"reshape it, or create the model with other in_channels"
            )
        self.check_size(*shape[2:])

    def check_size(self, *sides: int) -> None:
        for side in sides:
            allow("image_size", side, f"the image size of {self.name!r} is")
            if side < self.stride:
                raise ValueError(
                    f"image size {side} is too small for {self.name!r}, which divides it by {self.stride}; "
                    f"use at least {self.stride} pixels"
                )

    def without_router(self) -> ModelSpec:
        return replace(self, router=None)

    def with_routing(self, routing: Sequence[Sequence[int]]) -> ModelSpec:
        """The same network with other width indices to choose from at each gate."""
        return replace(self, routing=tuple(map(tuple, routing)))

    def build(self) -> Supernet:
        """The network, with fresh weights."""
        from dsnet.models.supernet import Supernet

        return Supernet(self)


def customise(
    spec: ModelSpec,
    *,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    routing: Any = None,
    slimming: str | None = None,
    shared: bool | None = None,
) -> ModelSpec:
    """A copy of a spec with the given options changed; None keeps the model's default."""
    given = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if routing is not None:
        changes["routing"] = spec.space.restrict(routing).choices
    gate = {key: value for key, value in (("slimming", slimming), ("shared", shared)) if value is not None}
    if gate:
        if spec.gate is None:
            raise ValueError(f"{spec.name!r} has no gates, so {', '.join(gate)} cannot be set; choose a ds_ model")
        changes["gate"] = replace(spec.gate, **gate)  # type: ignore[arg-type]
    return replace(spec, **changes)
