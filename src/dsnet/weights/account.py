"""A record of what happened to each tensor when a network was given the weights of another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Shape = tuple[int, ...]
CLASSIFIER = "head.classifier"


@dataclass
class Account:
    """What happened to each tensor of the source, and where the tensors of the network come from.

    whole: Tensors of the source that were loaded unchanged.
    cut: Tensors of the source of which only the leading channels were loaded, with the shapes before and after.
    widened: Tensors of the network that are wider than those of the source, with the loaded and the full shape.
    adapted: Tensors that were changed when they were loaded, with a description of the change.
    unused: Tensors of the source that were not loaded, with the reason.
    fresh: Tensors of the network without a source, with the reason.
    limits: Reasons why the network computes something else than the source.
    notes: Anything else that the user should know.
    """

    whole: list[str] = field(default_factory=list)
    cut: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    widened: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    adapted: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    fresh: dict[str, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def loaded(self) -> list[str]:
        """Tensors of the source that were loaded, whole or in part."""
        return [*self.whole, *self.cut]

    @property
    def exact(self) -> bool:
        """Whether the widest path computes what the source computes, apart from a new classifier."""
        return not self.limits and not self.adapted

    @property
    def new_classifier(self) -> bool:
        return f"{CLASSIFIER}.weight" in self.fresh

    def lines(self) -> list[str]:
        """The account as lines of text."""
        lines = [f"  {len(self.whole)} loaded whole"]
        lines += _section("cut to their leading channels", self.cut, _shapes(self.cut))
        lines += _section("wider than in the source, the rest is fresh", self.widened, _shapes(self.widened))
        if self.adapted:
            lines += _section("adapted", self.adapted, _grouped(self.adapted, ""))
        lines += _section("not used", self.unused, _grouped(self.unused, "because "))
        lines += _section("fresh", self.fresh, _grouped(self.fresh, "because "))
        if self.exact:
            but = ", up to the classifier" if self.new_classifier else ""
            lines.append(f"  the widest path computes what the source computes{but}")
        return lines + [f"  limit: {line}" for line in self.limits] + [f"  note: {line}" for line in self.notes]


def _section(title: str, tensors: Mapping[str, object], lines: list[str]) -> list[str]:
    return [f"  {len(tensors)} {title}{':' if tensors else ''}", *(f"    {line}" for line in lines)]


def _shapes(tensors: Mapping[str, tuple[Shape, Shape]]) -> list[str]:
    return [f"{name}  {list(before)} -> {list(after)}" for name, (before, after) in tensors.items()]


def _grouped(tensors: Mapping[str, str], word: str) -> list[str]:
    """The names of tensors, grouped under the reason that they share."""
    lines: list[str] = []
    for reason in dict.fromkeys(tensors.values()):
        lines.append(f"{word}{reason}:")
        lines += [f"  {name}" for name, why in tensors.items() if why == reason]
    return lines
