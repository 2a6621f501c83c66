"""The manifest: everything that code outside `models` and `tasks` may know about a network.

A live network builds its manifest, an exported file carries it in its metadata, a bundle in its folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Literal, TypedDict

from dsnet.cost import CostTable, PathCosts, SizedCosts
from dsnet.errors import CheckpointError, must
from dsnet.limits import allow
from dsnet.results import Evaluation
from dsnet.schema import Typed, clipped, parse_json, reads, to_json
from dsnet.space import EXIT, WidthPath, WidthSpace, Window, path_name, setting_name

FORMAT = 3
KEY = "dsnet.manifest"  # its key in an ONNX file's metadata
Interpolation = Literal["nearest", "bilinear", "bicubic"]
RENAMED = {"slim_first": "cheap_first"}  # names that routers had, with those that they have
RouterKind = Annotated[Literal["gate", "cheap_first", "threshold", "exit_first"], reads(RENAMED)]
Targets = Literal["try_best", "give_up", "narrowest", "correctness", "kl"]
KINDS = ("gate", "cheap_first", "threshold", "exit_first")
TARGETS = ("try_best", "give_up", "narrowest", "correctness", "kl")


@dataclass(frozen=True)
class Preprocessing(Typed):
    """How an image becomes a network's input: it is fitted into a square, scaled to [0, 1] and normalised.

    fit: `crop` resizes the short side to size / crop and takes the centre; `squeeze` resizes both sides.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop: float = 0.875
    interpolation: Interpolation = "bilinear"
    fit: Literal["crop", "squeeze"] = "crop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        good = 0 < len(self.mean) == len(self.std) and all_finite(*self.mean, *self.std) and min(self.std) > 0
        must("preprocessing", (self.mean, self.std), good, "have one mean and one positive std per channel")
        must("preprocessing crop", self.crop, 0 < self.crop <= 1, "lie in (0, 1]")
        if self.interpolation not in ("nearest", "bilinear", "bicubic"):
            raise ValueError(f"interpolation {self.interpolation!r} is unknown; choose nearest, bilinear or bicubic")
        if self.fit not in ("crop", "squeeze"):
            raise ValueError(f"preprocessing fit {self.fit!r} is unknown; choose crop or squeeze")

    @classmethod
    def for_channels(cls, channels: int) -> Preprocessing:
        """ImageNet's statistics for three channels; a mean and std of 0.5 otherwise."""
        return cls() if channels == 3 else cls(mean=(0.5,) * channels, std=(0.5,) * channels)


@dataclass(frozen=True)
class Budget(Typed):
    """One calibrated operating point: the lambda that meets an average number of MAdds.

    Args:
        shares: The paths that the calibration images took, each with its share of the images. Rare paths are counted
            with others of similar cost. Empty in models of dsnet 0.1.
        window: The window that the router chooses within; None is the whole range.
    """

    madds: float
    lam: float
    accuracy: float
    image_size: int
    shares: tuple[tuple[WidthPath, float], ...] = ()
    window: Window | None = None

    def __post_init__(self) -> None:
        check_window(self.window)
        for name, kind in (("madds", float), ("lam", float), ("accuracy", float), ("image_size", int)):
            object.__setattr__(self, name, kind(getattr(self, name)))  # plain numbers, also from numpy
        must("the MAdds of a budget", self.madds, all_finite(self.madds) and self.madds > 0, "be a positive number")
        must("the lambda of a budget", self.lam, all_finite(self.lam), "be finite")


def all_finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def check_window(window: Window | None) -> None:
    good = window is None or 0 <= window[0] <= window[1]
    must("a window", window, good, "be two positions from 0, the lower one first, such as (0, 2)")


@dataclass(frozen=True)
class Card(Typed):
    """What a model remembers besides its weights: class names, preprocessing, calibrated budgets."""

    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    budgets: tuple[Budget, ...] = ()


def present(router: str) -> str:
    """The name of a kind of router, which may be given by the one that it had before."""
    return RENAMED.get(router, router)


def former(router: str) -> str:
    """The first name of a kind of router. Digests are made of it, so that none of them changes with a name."""
    return next((old for old, new in RENAMED.items() if new == router), router)


@dataclass(frozen=True)
class RouterSpec(Typed):
    """How a trained network chooses its widths, and what its scores mean.

    Args:
        kind: `gate` scores widths with the slimming heads before they run. `cheap_first` runs the first candidate, the
            slimmest path or a small image size, and scores all candidates from its logits. `threshold` goes on to
            another candidate if the top probability of the first is low. `exit_first` runs the early classifier and
            scores its answer, the exit, and the uniform paths. With several image sizes it runs the exit of one size
            first, and the other candidates are exits of other sizes and full settings.
        targets: What the scores were trained on. With `correctness` they are probabilities, with `kl` negative
            divergences.
        hidden: Hidden units of the head that scores the candidates from a classifier's logits. 0 is a head of rank one:
            all scores are a_k + b_k h(x), with one linear function h.
        early: Hidden units of the early classifier, which reads the map that the first gate pools; 0 for a linear one.
            None for no early classifier: gates then read their own codes.
        bound: Whether the first gate decides for all gates, so that every path is uniform.
        candidates: The paths that a router with a single decision chooses from, in the order of their cost. By default
            the uniform ones. A router of a network with several image sizes names them; the first is looked at first.
        windows: Number of adjacent widths in a window. A gate was trained to choose within each window, and a budget
            picks the window. None if it was trained to choose among all widths.
    """

    kind: RouterKind = "gate"
    targets: Targets = "try_best"
    hidden: int = 32
    early: int | None = None
    bound: bool = False
    windows: int | None = None
    candidates: tuple[WidthPath, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", present(self.kind))
        if self.kind not in KINDS:
            raise ValueError(f"router {self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if self.targets not in TARGETS:
            raise ValueError(f"targets {self.targets!r} are unknown; choose from {', '.join(TARGETS)}")
        good = type(self.hidden) is int and self.hidden >= 0
        must("the router's hidden size", repr(self.hidden), good, "be at least 0")
        if self.early is None and self.exits:
            raise ValueError("router exit_first needs an early classifier; set early to its hidden units, 0 for linear")
        if self.early is not None:
            if self.probes:
                raise ValueError(f"router {self.kind} has no early classifier; leave early out, or use exit_first")
            good = type(self.early) is int and self.early >= 0
            must("the early classifier's hidden size", repr(self.early), good, "be at least 0")
            object.__setattr__(self, "bound", True)  # the classifier reads one map, so there is one decision
        if self.bound and self.probes:
            raise ValueError(f"router {self.kind} takes uniform paths anyway; leave bound out, it is for gates")
        if self.windows is not None:
            must("the size of a window", self.windows, self.windows >= 2, "be at least 2 widths")
            must("the router", self.kind, self.kind == "gate", "be a gate to choose within windows")
        if self.candidates:
            first = self.probes or self.exits
            must("the router", self.kind, first, "look at a candidate first to have a list of candidates")
            good = len(set(self.candidates)) == len(self.candidates) >= 2
            must("the list of candidates", self.candidates, good, "have at least two paths, each of them once")

    @property
    def probes(self) -> bool:
        """Whether the first candidate runs first, on every input."""
        return self.kind in ("cheap_first", "threshold")

    @property
    def exits(self) -> bool:
        """Whether the early classifier's own answer is a candidate."""
        return self.kind == "exit_first"

    @property
    def single(self) -> bool:
        """Whether there is one decision, between uniform paths."""
        return self.probes or self.bound


@dataclass(frozen=True)
class Router(Typed):
    """A trained router: its kind, the widths that it chooses from, and its calibrated budgets.

    combine: Of an exit_first router, the weights (u, v) for each width. An image that goes on to the width is answered
        by u times the logits of the exit plus v times those of the width. Empty with several image sizes, where the
        last look answers alone.
    """

    spec: RouterSpec
    routing: WidthSpace
    budgets: tuple[Budget, ...] = ()
    combine: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        points, exits = len(self.routing), self.spec.exits
        must("the number of choice points of a router", points, points >= 1, "be at least 1")
        must("the exit of a routing space", self.routing.exit, self.routing.exit == exits, f"be {exits}")
        widths = len(self.routing.uniform) if self.combines else 0
        good = not self.combine or (len(self.combine) == widths and all_finite(*chain(*self.combine)))
        must("combine", self.combine, good, f"be finite, with one pair for each of {widths} widths")
        for path in self.spec.candidates:
            must("a candidate", path, path in self.routing, "be a path of the routing space")
        ends = [row.window[1] for row in self.budgets if row.window is not None]
        last = self.windows[-1][1]
        must("the last position of a window", max(ends, default=0), max(ends, default=0) <= last, f"be at most {last}")

    @property
    def probes(self) -> bool:
        return self.spec.probes

    @property
    def combines(self) -> bool:
        """Whether the answer of an image that goes on is combined with that of the exit."""
        return self.spec.exits and not self.routing.sized

    @cached_property
    def candidates(self) -> list[WidthPath]:
        """What a router with a single decision chooses from: the exits if there are any, and the uniform paths of the
        routing space, slimmest first."""
        return list(self.spec.candidates) or self.routing.exits + self.routing.uniform

    @cached_property
    def windows(self) -> list[Window]:
        """The windows that the router was trained to choose within, lowest first: all runs of so many adjacent
        positions. The whole range if it was trained to choose among all widths."""
        count = len(self.candidates) if self.spec.single else max(map(len, self.routing.choices))
        size = min(self.spec.windows or count, count)
        return [(low, low + size - 1) for low in range(count - size + 1)]


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
    precision: Literal["fp32", "fp16", "int8"] = "fp32"
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
        if len(shape) != 4 or shape[1] != self.in_channels:
            raise ValueError(
                f"input has shape {tuple(shape)} but {self.model!r} takes [batch, {self.in_channels}, height, width]; "
                f"reshape it, or create the model with other in_channels"
            )
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
