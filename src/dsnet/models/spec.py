"""A model described as data: its stages of blocks, its choice points, and everything needed to rebuild it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from dsnet.errors import must
from dsnet.limits import allow
from dsnet.models.network import Network, Tap
from dsnet.nn.gate import ACTIVATIONS, Activation, GateSpec
from dsnet.nn.layers import out_side
from dsnet.nn.norm import NormSpec
from dsnet.routers import RouterSpec
from dsnet.schema import Typed
from dsnet.space import Channels, WidthPath, WidthSpace

if TYPE_CHECKING:
    from dsnet.models.build import Modules


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
class ModelSpec(Network):
    """Everything that is needed to rebuild a network.

    Args:
        widths: Number of widths at each choice point.
        depthwise_activation: Whether depthwise-separable blocks have an activation behind the depthwise convolution,
            besides the one behind the pointwise convolution. Without it a network is faster.
        gate: How gates are built; None for networks without gates.
        skip: Whether depthwise-separable blocks of stride 1 whose input and output have the same shape get identity
            skips.
        zero_init: Whether the last norm of each residual branch starts at zero.
        features: Output channels of a 1x1 convolution before the classifier; None for no such convolution.
        routing: Allowed width indices at each choice point; the slimming heads have one output for each.
        router: How the trained network chooses its widths; None if it has not learned to route.
        sizes: Image sizes that the network runs at, smallest first, the last being `image_size`; empty for one size.
    """

    name: str
    stages: tuple[StageSpec, ...]
    widths: tuple[int, ...] = ()
    norm: NormSpec = field(default_factory=NormSpec)
    activation: Activation = "relu"
    depthwise_activation: bool = True
    gate: GateSpec | None = None
    skip: bool = False
    zero_init: bool = False
    features: int | tuple[int, ...] | None = None
    num_classes: int = 1000
    in_channels: int = 3
    image_size: int = 224
    routing: tuple[tuple[int, ...], ...] = ()
    router: RouterSpec | None = None
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self.check_limits()
        allow("blocks", sum(stage.repeats for stage in self.stages), "the number of blocks is")
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
        self.check_common()
        taps = [stage.tap for stage in self.stages if stage.tap is not None]
        if len(taps) != len(set(taps)):
            raise ValueError(f"{self.name!r} names taps twice: {taps}; give each a name of its own")
        if isinstance(self.features, tuple) and len(self.features) != (self.widths[-1] if self.widths else 1):
            raise ValueError(
                f"{self.name!r} lists {len(self.features)} feature widths; give one number, or one per width"
            )

    def _check_stage(self, number: int, stage: StageSpec) -> None:
        expected = 1 if stage.choice is None else self.widths[stage.choice]
        given = 1 if isinstance(stage.out, int) else len(stage.out)
        if not isinstance(stage.out, int) and given != expected:
            raise ValueError(f"stage {number} of {self.name!r} lists {given} widths; its choice point has {expected}")
        if stage.choice is None and any(earlier.choice is not None for earlier in self.stages[:number]):
            raise ValueError(f"stage {number} of {self.name!r} lies behind a choice point; set its choice")

    @property
    def stride(self) -> int:
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
            widths = self.space.widths_of(path)
            out = stage.out if isinstance(stage.out, int) else stage.out[widths[stage.choice or 0]]
            if not counts or counts[-1] != out:
                counts.append(out)
        return counts

    @property
    def taps(self) -> dict[str, Tap]:
        found, side = {}, self.image_size
        for stage in self.stages:
            side = out_side(side, stage.stride)
            if stage.tap is not None:
                channels = Channels.of(stage.out, 1 if stage.choice is None else self.widths[stage.choice])
                found[stage.tap] = Tap(stage.choice, channels, side)
        return found

    @property
    def layers(self) -> tuple[StageSpec, ...]:
        return self.stages

    def modules(self) -> Modules:
        from dsnet.models.build import build

        return build(self)


S = TypeVar("S", bound=Network)


def customise(
    spec: S,
    *,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    routing: Any = None,
    slimming: str | None = None,
    shared: bool | None = None,
    sizes: Sequence[int] | None = None,
) -> S:
    """A copy of a spec with the given options changed; None keeps the model's default.

    sizes: Without an image size, the largest of them is taken.
    """
    if sizes and image_size is None:
        image_size = sizes[-1]
    given = {"num_classes": num_classes, "in_channels": in_channels, "image_size": image_size}
    given["sizes"] = None if sizes is None else tuple(sizes)  # type: ignore[assignment]
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if routing is not None:
        changes["routing"] = WidthSpace.full(spec.widths).restrict(routing).choices
    gate = {key: value for key, value in (("slimming", slimming), ("shared", shared)) if value is not None}
    if gate:
        if spec.gate is None:
            raise ValueError(f"{spec.name!r} has no gates, so {', '.join(gate)} cannot be set; choose a ds_ model")
        changes["gate"] = replace(spec.gate, **gate)  # type: ignore[arg-type]
    return replace(spec, **changes)  # type: ignore[type-var]
