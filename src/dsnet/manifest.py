"""The manifest: everything that code outside `models` and `tasks` may know about a network.

A live network builds its manifest, an exported file carries it in its metadata, a bundle in its folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypedDict

from dsnet.card import Preprocessing
from dsnet.cost import CostTable, PathCosts, SizedCosts
from dsnet.errors import CheckpointError, must
from dsnet.limits import allow
from dsnet.results import Evaluation
from dsnet.routers import Router, all_finite, check_window
from dsnet.schema import Typed, clipped, parse_json, to_json
from dsnet.space import EXIT, WidthPath, WidthSpace, Window, path_name, setting_name

FORMAT = 3
KEY = "dsnet.manifest"  # its key in an ONNX file's metadata


class Caps(TypedDict, total=False):
    """Upper limits of a policy, as arguments."""

    max_width: int | None
    max_size: int | None


@dataclass(frozen=True)
class Policy(Typed):
    """How a router trades score against cost.

    Args:
        lam: Lambda, the price of the widest network's MAdds in units of the scores. Below zero it favours wide paths.
        max_width: Upper limit of the width index.
        note: A message for the user if the request cannot be met exactly.
        share: The average MAdds that lambda is expected to spend, as a share of the widest path's, in single precision.
            An exported file takes it and computes the same lambda. None if lambda was not made from a budget.
        window: The positions that every decision chooses within; None is the whole range. If the cap is below the
            window, the widest width within the cap is taken.
        max_size: Upper limit of the image size in pixels, for networks that run at several.
    """

    lam: float = 0.0
    max_width: int | None = None
    note: str = ""
    share: float | None = None
    window: Window | None = None
    max_size: int | None = None

    def __post_init__(self) -> None:
        check_window(self.window)
        must("lambda", self.lam, all_finite(self.lam), "be finite")
        must("the share of a policy", self.share, self.share is None or 0 <= self.share < math.inf, "be at least 0")

    @property
    def caps(self) -> Caps:
        return {"max_width": self.max_width, "max_size": self.max_size}


@dataclass(frozen=True)
class WidthRow(Typed):
    """A uniform path: its output channels behind the first choice point, and its cost. parts: MAdds of each named
    part of the network."""

    size: int
    path: WidthPath
    channels: tuple[int, ...]
    madds: int
    params: int
    parts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Manifest(Typed):
    """A network described as data.

    Args:
        sizes: Image sizes that the network runs at, smallest first. Images are given in the last.
        space: The widths, and the image sizes if there are several, that this network or file can run.
        costs: One table for each image size.
        outputs: Names of the outputs, and their shapes without the batch dimension.
        inputs: Names of the inputs of an ONNX file.
        raw: Whether the file takes whole pictures and prepares them itself.
        routers: The routers that can choose the widths.
        widths: The uniform paths.
        defaults: The policy that is used if none is given.
        evaluation: The network's evaluation, if there is one.
        digest: Digest of the weights, if the network is in a file.
    """

    task: str
    model: str
    in_channels: int
    sizes: tuple[int, ...]
    space: WidthSpace
    costs: tuple[CostTable, ...]
    outputs: dict[str, tuple[int, ...]]
    inputs: tuple[str, ...] = ()
    raw: bool = False
    kind: Literal["live", "dynamic", "static", "bundle"] = "live"
    precision: Literal["fp32", "int8"] = "fp32"
    routers: tuple[Router, ...] = ()
    widths: tuple[WidthRow, ...] = ()
    classes: tuple[str, ...] = ()
    num_classes: int = 0
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    defaults: Policy = field(default_factory=Policy)
    min_size: int = 1
    any_size: bool = False
    evaluation: Evaluation | None = None
    digest: str = "0" * 64
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Refuse a manifest whose parts are not of one network, or whose sizes are beyond the limits."""
        must("the number of image sizes", len(self.sizes), len(self.sizes) >= 1, "be at least 1")
        tables = [table.image_size for table in self.costs]
        must("the list of image sizes", self.sizes, list(self.sizes) == tables, f"be that of the costs, {tables}")
        for size in (*self.sizes, self.min_size):
            must("an image size", size, size >= 1, "be at least 1")
            allow("image_size", size, "an image size is")
        allow("channels", self.in_channels, "in_channels is")
        channels = len(self.preprocessing.mean)
        must("in_channels", self.in_channels, self.in_channels == channels, f"be that of the preprocessing, {channels}")
        must("the number of classes", len(self.classes), len(self.classes) in (0, self.num_classes), "be num_classes")
        good = bool(self.outputs) and all(min(shape, default=1) >= 0 for shape in self.outputs.values())
        must("outputs", self.outputs, good, "be names with shapes that are not negative")
        shapes = {tuple(map(len, table.space.choices)) for table in self.costs}
        must("the widths of the costs", sorted(shapes), len(shapes) == 1, "be the same at every image size")
        known = self.table.space
        whole = WidthSpace(known.choices, self.space.exit or known.exit, known.sized)
        for space in (self.space, *(router.routing for router in self.routers)):
            must("the paths of the network", path_name(space.widest), within(space, whole), "have costs")
        for row in self.widths:
            good = row.path in known and len(row.channels) >= len(known.widths_of(row.path))
            must("a path of the list of widths", row.path, good, "have a cost, and channels at each choice point")
            must(
                "the parts of a width", list(row.parts), row.parts.keys() == self.widths[0].parts.keys(), "be the same"
            )

    @property
    def image_size(self) -> int:
        """Side in pixels of the images that the network was trained or exported for."""
        return self.sizes[-1]

    @property
    def router(self) -> Router | None:
        return self.routers[0] if self.routers else None

    @property
    def routes(self) -> bool:
        """Whether the network can choose a path for each image."""
        return bool(self.routers) and self.kind != "static"

    @property
    def pins(self) -> bool:
        """Whether a path can be pinned; a file that was exported with --simple takes a budget only."""
        return self.kind != "dynamic" or "pin" in self.inputs

    @cached_property
    def table(self) -> PathCosts:
        """The costs of all paths."""
        return self.costs[0] if len(self.costs) == 1 else SizedCosts(self.costs)

    @cached_property
    def pinnable(self) -> list[WidthPath]:
        """The paths that can be pinned, the widest last. A file whose router decides once holds its candidates only,
        and one of several image sizes without a router the uniform paths of each size."""
        router, several = self.router, self.kind in ("dynamic", "bundle")
        if router is not None and router.spec.single and several:
            return router.candidates
        if self.space.sized and several:
            return self.space.uniform
        exits = [] if self.kind == "static" else self.space.exits  # a static file may hold the exit alone
        return exits + list(self.space)

    @cached_property
    def uniform(self) -> list[WidthPath]:
        """The uniform paths that can be run, slimmest first, at every image size."""
        found = self.space.uniform
        return [path for path in found if path in self.pinnable] if self.space.sized else found

    @property
    def points(self) -> int:
        return len(self.space)

    def side_of(self, images: Any) -> int:
        """Side in pixels of the squares that the network computes on, for images that it is given."""
        return self.image_size if self.raw else int(images.shape[-1])

    def why_fixed(self) -> str:
        """Why the network cannot route, as the end of a sentence."""
        if not self.routers:
            return "has not learned to route (`dsnet train --stage gate --from` teaches it)"
        return "holds a single path"

    def size_of(self, path: WidthPath) -> int:
        """The image size of a path, in pixels."""
        return self.sizes[self.table.space.size_of(path)] if self.table.space.sized else self.image_size

    def name_of(self, path: WidthPath) -> str:
        """A path as users write and read it: with several image sizes, 80px, 80px:3 or 80px:exit."""
        return setting_name(path, self.size_of(path)) if self.table.space.sized else path_name(path)

    def parse_path(self, text: str) -> WidthPath:
        """A path that a user wrote, such as 3, 0,1,2,3 or exit; with several image sizes, 80px:3 or 80px:exit, or 80px
        for the widest at a size."""
        space, (size, is_size, widths) = self.table.space, text.partition("px")
        exit = (EXIT,) * len(space.widths_of(space.widest))
        if text == "exit":
            if space.sized and self.space.exit:
                raise ValueError(f"path exit has no image size; write for example {self.sizes[0]}px:exit")
            return self.space.validate(exit)
        if is_size and space.sized:
            if not size.isdigit() or int(size) not in self.sizes:
                known = ", ".join(f"{each}px" for each in self.sizes)
                raise ValueError(f"path {clipped(text, 80)!r} is not at one of the image sizes; they are {known}")
            widest = ",".join(map(str, space.widths_of(space.widest)))
            text = f"{self.sizes.index(int(size))},{widths.removeprefix(':') or widest}".rstrip(",")
        first, _, last = text.partition(",")
        if last == "exit" and space.sized:
            text = ",".join([first, *map(str, exit)])
        try:
            path = [int(part) for part in text.split(",")] if text else []
        except ValueError:
            raise ValueError(
                f"path {clipped(text, 80)!r} is not a list of width indices; write for example 0,1,2,3"
            ) from None
        return self.space.validate(path)

    def check_input(self, shape: Sequence[int]) -> None:
        """Refuse inputs of a shape that the network does not take."""
        must_have_channels(self.model, shape, self.in_channels)
        if shape[2] != shape[3]:
            raise ValueError(
                f"images are {shape[2]} x {shape[3]} pixels; only square ones can be routed: crop or pad them"
            )
        if self.any_size:
            must_reach(self.model, shape[2], self.min_size)
        elif shape[2] != self.image_size:
            remedy = "it looks at smaller ones itself" if self.space.sized else "or export again with --image_size"
            raise ValueError(
                f"input is {shape[2]} x {shape[3]} pixels but this {self.model} takes {self.image_size}; "
                f"resize it, {remedy}"
            )


def within(space: WidthSpace, whole: WidthSpace) -> bool:
    """Whether all widths of a space are among those of another one."""
    if len(space) != len(whole) or space.sized != whole.sized:
        return False
    if space.slimmest in whole.exits:  # the exit alone
        return True
    return all(set(mine) <= set(others) for mine, others in zip(space.choices, whole.choices, strict=True))


def must_have_channels(model: str, shape: Sequence[int], channels: int) -> None:
    if len(shape) != 4 or shape[1] != channels:
        raise ValueError(
            f"input has shape {tuple(shape)} but {model!r} takes [batch, {channels}, height, width]; "
            f"reshape it, or create the model with other in_channels"
        )


def must_reach(model: str, side: int, least: int) -> None:
    if side < least:
        raise ValueError(
            f"image size {side} is too small for {model!r}, which divides it by {least}; use at least {least} pixels"
        )


def to_metadata(manifest: Manifest) -> dict[str, str]:
    """The entries of an ONNX file's metadata: the whole manifest, and some fields of it that other tools can read."""
    router = manifest.router
    return {
        KEY: to_json(manifest),
        "dsnet.format": str(FORMAT),
        "model": manifest.model,
        "task": manifest.task,
        "image_size": str(manifest.image_size),
        "classes": to_json(manifest.classes),
        "preprocessing": to_json(manifest.preprocessing),
        "budgets": to_json(router.budgets if router else ()),
        "defaults": to_json(manifest.defaults),
    }


def from_metadata(where: object, entries: Mapping[str, Any]) -> Manifest:
    """Read the manifest of a file; refuses files that dsnet did not write, or wrote in another format."""
    if (stated := entries.get("dsnet.format")) != str(FORMAT):
        raise CheckpointError(
            f"{where} is of format {clipped(str(stated), 40)}, this dsnet reads {FORMAT}; export it again"
            if stated is not None
            else f"{where} was not written by dsnet: it has no model card; make one with `dsnet export`"
        )
    return parse_json(
        Manifest,
        entries.get(KEY, ""),
        f"{where} has a damaged model card",
        error=CheckpointError,
        remedy="export it again",
    )


def exported(manifest: Manifest, **changes: Any) -> Manifest:
    """The manifest of a file that a live network was exported to."""
    return replace(manifest, any_size=False, **changes)
