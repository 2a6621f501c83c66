"""The registry of models: from a name to a spec, from a spec to a network."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from dsnet.models.spec import ModelSpec, customise
from dsnet.models.supernet import Supernet

_BUILDERS: dict[str, Callable[..., ModelSpec]] = {}


def register(builder: Callable[..., ModelSpec]) -> Callable[..., ModelSpec]:
    """Make a function that returns a spec available under its own name."""
    assert builder.__name__ not in _BUILDERS, f"model {builder.__name__} is registered twice"
    _BUILDERS[builder.__name__] = builder
    return builder


def list_models() -> list[str]:
    """The names of all registered models."""
    return sorted(_BUILDERS)


def describe(name: str) -> str:
    """First line of a model's documentation."""
    return (inspect.getdoc(_BUILDERS[name]) or "").split("\n")[0]


def model_spec(name: str, *, width: float | None = None, **wishes: Any) -> ModelSpec:
    """The spec of a registered model; `wishes` as in `create_model`."""
    if not isinstance(name, str) or name not in _BUILDERS:
        close = difflib.get_close_matches(str(name), _BUILDERS, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(close)}?" if close else "`dsnet models` and list_models() have them all"
        raise ValueError(f"model {name!r} is unknown; {hint}")
    builder = _BUILDERS[name]
    if width is None:
        return customise(builder(), **wishes)
    if "width" not in inspect.signature(builder).parameters:
        static = [other for other, make in _BUILDERS.items() if "width" in inspect.signature(make).parameters]
        raise ValueError(f"{name!r} takes no width multiplier; only {', '.join(sorted(static))} do")
    if isinstance(width, str) or not 0 < width <= 4:
        raise ValueError(f"width multiplier is {width}; it must lie in (0, 4]")
    return customise(builder(width=width), **wishes)


def create_model(
    name: str,
    *,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | None = None,
    routing: Sequence[int] | Sequence[Sequence[int]] | None = None,
    slimming: str | None = None,
    shared: bool | None = None,
    width: float | None = None,
    sizes: Sequence[int] | None = None,
) -> Supernet:
    """Create a network with fresh weights; None keeps the model's default.

    Args:
        name: A name from `list_models`.
        num_classes: Number of classes.
        in_channels: Number of channels of the images.
        image_size: Height and width of the images in pixels.
        routing: Width indices that the gates may choose, one list for all choice points or one for each.
        slimming: Output of the slimming heads, `one_hot` or `scalar`.
        shared: Whether the slimming head shares its first layer with the attention head.
        width: Multiplier of all channels, for static models only.
        sizes: Image sizes that the network runs at, smallest first. Images are given in the largest.
    """
    spec = model_spec(
        name,
        width=width,
        num_classes=num_classes,
        in_channels=in_channels,
        image_size=image_size,
        routing=routing,
        slimming=slimming,
        shared=shared,
        sizes=sizes,
    )
    return Supernet(spec)


# Helpers for the channel lists of models.


def equispaced(first: int, step: int, widths: int) -> tuple[int, ...]:
    """The paper's equispaced channel group: consecutive widths differ by one constant."""
    return tuple(first + step * k for k in range(widths))


def divisible(count: float, by: int = 8) -> int:
    """The nearest multiple of `by`, at least `by`, and never more than a tenth below `count`."""
    rounded = max(by, int(count + by / 2) // by * by)
    return rounded if rounded >= 0.9 * count else rounded + by


def ladder(count: int, ratios: tuple[float, ...]) -> int | tuple[int, ...]:
    """`count` channels at each ratio; a single ratio gives a single number."""
    counts = tuple(divisible(count * ratio) for ratio in ratios)
    return counts if len(counts) > 1 else counts[0]


def scaled(name: str, width: float) -> str:
    """The display name of a static model at a width multiplier."""
    return name if width == 1 else f"{name}_x{width:g}"
