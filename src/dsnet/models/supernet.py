"""The supernet. Widths and image size are arguments of every call, and every call is a loop over segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dsnet.card import Card, Preprocessing
from dsnet.manifest import Manifest
from dsnet.models.build import Features, Segment
from dsnet.models.count import FRONT, HEAD
from dsnet.models.network import Network
from dsnet.models.parts import LiveParts, describe
from dsnet.nn import Mix, SlimmingHead, Width, early_router, probe_head
from dsnet.nn.resize import Resize
from dsnet.space import WidthPath, WidthSpace, is_exit

Choose = Callable[[int, Tensor | None], Tensor]
"""(choice point, gate logits [B, R] or None without a slimming head) -> weights [B, R] over the routing space."""


class Entered(NamedTuple):
    """The state before the first choice, which is the same for every path of an image size: a map, the map scaled by
    the first gate's attention, and the code that its slimming head reads."""

    x: Tensor
    scaled: Tensor
    code: Tensor | None = None


class Supernet(nn.Module):
    """One set of weights that runs at every path of `space`.

    Attributes:
        spec: Describes the network and rebuilds it.
        card: Class names, preprocessing and budgets, which are saved with the weights.
        space: All paths.
        routing: The paths that the gates may choose.
        candidates: The paths that a router with a single decision may choose.
        probe: The head of a probing router; None for other routers.
        early: The early classifier and the head that reads it; None for routers without one.
        looked: The index of the image size that a router with a single decision looks at first.
    """

    def __init__(self, spec: Network) -> None:
        super().__init__()
        self.spec: Any = spec  # a Network; rooms that know its kind read more of it
        self.card = Card(preprocessing=Preprocessing.for_channels(spec.in_channels))
        self.resize = Resize(spec.sizes, spec.in_channels) if spec.sizes else None
        self.front, segments, self.head = spec.modules()
        self.segments = nn.ModuleList(segments)
        for point, allowed in enumerate(self.routing.choices):
            self.register_buffer(f"allowed{point}", torch.tensor(allowed), persistent=False)
        self.probe = probe_head(spec.router, spec.num_classes, len(spec.candidates))
        channels = segments[0].first.entered.max if segments else 0
        classes, candidates = spec.num_classes, len(spec.candidates)
        self.early = early_router(spec.router, channels, classes, candidates, sized=bool(spec.sizes))

    @property
    def space(self) -> WidthSpace:
        return self.spec.space

    @property
    def routing(self) -> WidthSpace:
        return self.spec.routing_space if self.spec.sizes else WidthSpace(self.spec.routing)

    @property
    def candidates(self) -> list[WidthPath]:
        return self.spec.candidates

    @property
    def looked(self) -> int:
        return self.space.size_of(self.candidates[0])

    @property
    def device(self) -> torch.device:
        return self.head.classifier.weight.device

    @property
    def bound(self) -> bool:
        """Whether the first decision binds all gates."""
        return self.spec.router is not None and self.spec.router.bound

    @property
    def chain(self) -> list[Segment]:
        """The segments in order, typed."""
        return list(self.segments)  # type: ignore[arg-type]

    def slimming_heads(self) -> list[SlimmingHead]:
        return [module for module in self.modules() if isinstance(module, SlimmingHead)]

    def forward(self, x: Tensor, path: Sequence[int] = ()) -> Tensor:
        """Logits of the sub-network `path`. Images have the largest size, whatever the size of the path is."""
        self.check_input(x)
        return self.run(x, self.space.validate(path))

    def run(self, x: Tensor, path: WidthPath) -> Tensor:
        """`forward` without its checks."""
        if is_exit(path):
            return self.run_exit(x, self.space.size_of(path))[1]
        w_in, *rows = self.space.rows(path)
        x = self.shared(x, w_in)
        for segment, w_out in zip(self.chain, rows, strict=True):
            x, w_in = segment(x, w_in, w_out), w_out
        return self.head(x, w_in)

    def run_exit(self, x: Tensor, size: int = 0) -> tuple[Tensor, Tensor]:
        """The map that the early classifier reads at an image size, and its logits."""
        assert self.early is not None
        x = self.chain[0].enter(self.shared(x, size), size)
        return x, self.early.classifier(x)

    def shared(self, x: Tensor, size: int = 0) -> Tensor:
        """The front, at the image size of an index."""
        return self.front(x if self.resize is None else self.resize(x, size), size)

    def enter(self, x: Tensor, size: int = 0) -> Entered:
        """The part that all paths of an image size share; `run_paths`, `run_mixed` and `run_coded` go on from it."""
        x = self.shared(x, size)
        if not self.chain:
            return Entered(x, x)
        x = self.chain[0].enter(x, size)
        return Entered(x, *self.chain[0].attend(x, size))

    def pooled_early(self, entered: Entered) -> Tensor:
        """What the early classifier reads [B, C * 16]."""
        assert self.early is not None
        return self.early.classifier.pool(entered.x, 0)

    def early_logits(self, entered: Entered) -> Tensor:
        """Logits of the early classifier."""
        assert self.early is not None
        return self.early.classifier(entered.x)

    def early_scores(self, logits: Tensor) -> Tensor:
        """Raw scores [B, R] of the candidates, from the logits of the early classifier."""
        assert self.early is not None
        return self.early.head(logits)

    def score(self, point: int, x: Tensor, code: Tensor | None, width: Width) -> Tensor | None:
        """Raw scores of the decision at a choice point, whose gate pools the map `x`; None where there is no decision.

        The early classifier decides in place of the first slimming head. Behind a decision that binds all gates, there
        is no other.
        """
        if self.early is not None and point == 0:
            return self.early_scores(self.early.classifier(x))
        if point and self.bound:
            return None
        return self.chain[point].score(code, width)

    def run_coded(self, entered: Entered, path: WidthPath) -> tuple[Tensor, list[Tensor | None]]:
        """Logits of a path, and the code that each slimming head along it reads."""
        x, scaled, code = entered
        w_in, codes = 0, []
        for point, (segment, w_out) in enumerate(zip(self.chain, path, strict=True)):
            if point:
                x = segment.enter(x, w_in)
                scaled, code = segment.attend(x, w_in)
            codes.append(code)
            x, w_in = segment.body(x, scaled, w_in, w_out), w_out
        return self.head(x, w_in), codes

    def run_scored(self, x: Tensor, path: WidthPath) -> tuple[Tensor, list[Tensor | None]]:
        """Logits of a path, and the raw scores of each decision along it."""
        entered = self.enter(x)
        logits, codes = self.run_coded(entered, path)
        widths = enumerate((0, *path)[: len(path)])
        return logits, [self.score(point, entered.x, codes[point], width) for point, width in widths]

    def place_of(self, layer: str) -> int:
        """The choice point that a layer belongs to, by its name."""
        room, number, *_ = layer.split(".")
        if room == "segments":
            return int(number)
        return {"front": FRONT, "early": 0}.get(room, HEAD)

    def forward_features(self, x: Tensor, path: Sequence[int] = ()) -> Features:
        """The tapped feature maps of the sub-network `path`, by name, in the order of the network."""
        self.check_input(x)
        w_in, *rows = self.space.rows(self.space.validate(path))
        x, features = self.front.features(x if self.resize is None else self.resize(x, w_in), w_in)
        for segment, w_out in zip(self.chain, rows, strict=True):
            x, more = segment.features(x, w_in, w_out)
            features, w_in = features | more, w_out
        return features

    def forward_paths(self, x: Tensor, paths: Sequence[Sequence[int]]) -> list[Tensor]:
        """Logits of several sub-networks on one batch, in the order of `paths`.

        Common prefixes of paths, and paths that occur twice, are computed once; so is an image at each size.
        """
        self.check_input(x)
        space, logits = self.space, dict[WidthPath, Tensor]()
        wanted = [space.validate(path) for path in paths]
        for size in dict.fromkeys(map(space.size_of, wanted)):
            mine = [path for path in wanted if space.size_of(path) == size]
            found = self.run_paths(self.enter(x, size), list(map(space.widths_of, mine)), size)
            logits |= zip(mine, found, strict=True)
        return [logits[path] for path in wanted]

    def run_paths(self, entered: Entered, paths: Sequence[WidthPath], size: int = 0) -> list[Tensor]:
        """`forward_paths` from `enter` on, at one image size: paths have no size here."""
        logits: dict[WidthPath, Tensor] = {}
        wide = [path for path in paths if not is_exit(path)]

        def row(width: int) -> int:
            return width * self.spec.rows + size

        def descend(x: Tensor, scaled: Tensor, prefix: WidthPath) -> None:
            w_in, point = row(prefix[-1]) if prefix else size, len(prefix)
            below = [path[point] for path in wide if path[:point] == prefix]
            for width in dict.fromkeys(below):
                path, w_out = (*prefix, width), row(width)
                y = self.chain[point].body(x, scaled, w_in, w_out)
                if len(path) == len(self.chain):
                    logits[path] = self.head(y, w_out)
                    continue
                y = self.chain[point + 1].enter(y, w_out)
                descend(y, self.chain[point + 1].attend(y, w_out)[0], path)

        for path in set(paths) - set(wide):
            logits[path] = self.early_logits(entered)
        if self.chain:
            descend(entered.x, entered.scaled, ())
        else:
            logits[()] = self.head(entered.x, size)
        return [logits[path] for path in paths]

    def forward_mixed(self, x: Tensor, choose: Choose) -> tuple[Tensor, list[Tensor | None], list[Tensor]]:
        """Every sample at its own widths, differentiably: (logits, gate logits, mixes).

        `choose` turns a gate's logits into weights [B, R] over the routing space, one-hot in the forward
        pass. All samples run at the widest candidate with channels masked; with one-hot weights this
        equals slicing. Returned mixes are [B, K] over all widths of each choice point. Where the first
        gate decides for all, `choose` is called once.
        """
        self.check_input(x)
        return self.run_mixed(self.enter(x), choose)

    def run_mixed(self, entered: Entered, choose: Choose) -> tuple[Tensor, list[Tensor | None], list[Tensor]]:
        """`forward_mixed` from `enter` on."""
        if self.spec.sizes:
            raise ValueError(f"{self.spec.name!r} runs at several image sizes; widths are mixed at one size only")
        x, scaled, code = entered
        width: Width = 0
        weights: Tensor | None = None
        gate_logits: list[Tensor | None] = []
        mixes: list[Tensor] = []
        for point, (segment, allowed) in enumerate(zip(self.chain, self.routing.choices, strict=True)):
            if point:
                x = segment.enter(x, width)
                scaled, code = segment.attend(x, width)
            scores = self.score(point, x, code, width)
            weights = choose(point, scores) if point == 0 or not self.bound else weights
            if not isinstance(weights, Tensor) or weights.shape != (len(x), len(allowed)):
                given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
                raise ValueError(
                    f"choose gave weights of shape {given} at choice point {point}; "
                    f"expected {(len(x), len(allowed))}, one per sample and width of the routing space"
                )
            mix = self.spread(weights.to(x.dtype), point)
            w_out = Mix(mix, widest=allowed[-1])
            x, width = segment.body(x, scaled, width, w_out), w_out
            gate_logits.append(scores)
            mixes.append(mix)
        return self.head(x, width), gate_logits, mixes

    def spread(self, weights: Tensor, point: int) -> Tensor:
        """Weights [B, R] over the routing space as a mix [B, K] over all widths, zero outside the routing space."""
        allowed = self.get_buffer(f"allowed{point}")
        return weights.new_zeros(len(weights), self.spec.widths[point]).index_copy(1, allowed, weights)

    def check_input(self, x: Tensor) -> None:
        self.spec.check_input(x.shape)

    def parts(self, *, routed: bool = True, headless: bool = False) -> LiveParts:
        """The parts between choice points, with the weights of this network."""
        return LiveParts(self, routed=routed, headless=headless)

    def manifest(self, image_size: int | None = None) -> Manifest:
        """The manifest of this network, at its own image size or another. One with several sizes has its own only."""
        outputs: dict[str, tuple[int, ...]] = {"logits": (self.spec.num_classes,)}
        channels = self.spec.channels
        about = {"outputs": outputs, "channels": channels, "any_size": self.spec.any_size}
        return describe(self, task="classification", image_size=image_size, **about)
