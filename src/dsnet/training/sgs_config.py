"""The configuration of stage II."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from dsnet.errors import must
from dsnet.nn import RouterSpec
from dsnet.routers import RENAMED, present
from dsnet.schema import Typed, reads

TWO_ENDED = ("try_best", "give_up")  # only the slimmest and the widest width are compared
PAPER = (*TWO_ENDED, "narrowest")  # the target is one of the widths; other targets are a number per width
BEFORE = {  # what runs did that were written before these keys existed
    "standardised": False,
    "bound": False,
    "windows": 0,
    "relative": False,
    "squares": "sample",
    "balanced": False,
    "cache": 0,
}
EARLY = 128  # hidden units of the early classifier of exit_first, by default
WINDOW = 3  # widths in a window of the paper's gates, by default


@dataclass(frozen=True)
class SGSConfig(Typed):
    """How the network learns to route in stage II.

    Args:
        router: How the width is chosen: by an early classifier (exit_first), by the answer of a slim path or a small
            image (cheap_first, margin, threshold) or by gates. auto compares exit_first and margin.
        targets: What the router learns to predict: correctness (whether a width is right), kl (its divergence from the
            widest), or the paper's try_best, give_up and narrowest (the narrowest width that is right). By default
            try_best for gates and correctness otherwise.
        early: Hidden units of the early classifier, which reads the map at the first gate; 0 for a linear one. By
            default 128 for exit_first, and none for gate.
        standardised: Standardise what the slimming heads of gates read, and give them a bias. The paper's released
            network has neither.
        bound: Let the first gate decide for all gates. Routers other than gate always decide once.
        windows: Size of the windows of adjacent widths that gates learn to choose in; 0 for all widths at once. By
            default 3 for gates with the paper's targets.
        classification: Weight of the routed network's loss on the labels. By default 1 for gates with the paper's
            targets, and 0 otherwise.
        complexity: Weight of the squared share of MAdds. By default 1 for gates with the paper's targets (the paper's
            0.5 if it is not relative), and 0 otherwise.
        relative: Scale the complexity so that between the slimmest and the widest width it differs as much as the loss
            on the labels does. Otherwise it is the squared share itself.
        squares: What the complexity squares: the mean MAdds of a batch, as the paper's public code does, or those of
            each sample, which punishes choosing two different widths.
        guidance: Weight of the loss on the router's own scores (SGS).
        balanced: Weigh images so that each of the paper's targets counts the same, however many images have it.
        distillation: Weight of the widest path's answers when the early classifier learns; the labels get the rest. By
            default 0.7 for gates, and 0 for exit_first, where two classifiers that err on different images gain more.
        combined: Let exit_first combine the answers of the early classifier and of the width that runs after it.
        held_out: Train the router on the calibration images. A network that has memorised its training images is right
            about nearly all of them, so they teach a router little.
        cache: Number of augmented views of every training image that the frozen network sees, once, before the
            training. 0 runs the network at every step, as gates that decide one by one always do.
        cache_limit: Largest cache of one process, in gigabytes of memory.
        cache_folder: Folder in which the cache is kept, so that other routers on the same network need not make it
            again. By default it is not kept.
        temperature: Temperature of the Gumbel-softmax at the beginning.
        final_temperature: Temperature of the Gumbel-softmax at the end. It falls exponentially.
        hidden: Hidden units of the head that scores the widths; 0 for one of rank one. By default 32 for cheap_first, 0
            for gates with an early classifier, and no trained head for exit_first: its scores follow the gap between
            the early classifier's two best classes, by two numbers for each width that are fitted to the calibration
            images.
        momentum: Momentum of the moving average of the router's weights, which is what is saved.
    """

    router: Annotated[Literal["auto", "exit_first", "cheap_first", "margin", "gate", "threshold"], reads(RENAMED)] = (
        "auto"
    )
    targets: Literal["correctness", "kl", "try_best", "give_up", "narrowest"] | None = None
    early: int | None = None
    standardised: bool = True
    bound: bool = True
    windows: int | None = None
    classification: float | None = None
    complexity: float | None = None
    relative: bool = True
    squares: Literal["batch", "sample"] = "batch"
    guidance: float = 1.0
    balanced: bool = True
    distillation: float | None = None
    combined: bool = True
    held_out: bool = False
    cache: int = 4
    cache_limit: float = 4.0
    cache_folder: str | None = None
    temperature: float = 1.0
    final_temperature: float = 1.0
    hidden: int | None = None
    momentum: float = 0.99

    def __post_init__(self) -> None:
        object.__setattr__(self, "router", present(self.router))
        spec = self.spec
        if min(self.weights) < 0 or max(self.weights) == 0:
            raise ValueError(
                f"sgs.classification, complexity and guidance are {self.weights}; none may be negative, nor all zero"
            )
        if self.router != "gate":
            if self.classification or self.complexity:
                raise ValueError(
                    f"router {self.router} learns scores only; sgs.classification and sgs.complexity are for router "
                    f"gate"
                )
            if spec.targets in PAPER and self.router != "cheap_first":
                raise ValueError(f"router {self.router} learns sgs.targets correctness or kl, not {spec.targets}")
        if self.router == "margin" and self.hidden is not None:
            raise ValueError("router margin has no head to train; leave sgs.hidden out, or use cheap_first")
        if not self.trains and self.targets not in (None, "correctness"):
            raise ValueError(f"router {self.router} has nothing to train; leave sgs.targets out")
        if self.router == "auto" and spec.targets != "correctness":
            raise ValueError("router auto compares routers by correctness; leave sgs.targets out")
        if self.squares not in ("batch", "sample"):
            raise ValueError(f"sgs.squares {self.squares!r} is unknown; choose batch or sample")
        must("sgs.distillation", self.distillation, 0 <= self.distilled <= 1, "lie in [0, 1]")
        must("sgs.cache", self.cache, self.cache >= 0, "be at least 0")
        must("sgs.cache_limit", self.cache_limit, self.cache_limit > 0, "be positive")
        must("sgs.temperature", self.temperature, self.temperature > 0, "be positive")
        must("sgs.final_temperature", self.final_temperature, self.final_temperature > 0, "be positive")
        must("sgs.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")

    @property
    def margin(self) -> bool:
        """Whether scores follow the margin between two classes, which is fitted and not trained."""
        exits = self.router in ("auto", "exit_first") and self.targets in (None, "correctness")
        return self.router == "margin" or (exits and self.hidden is None)

    @property
    def trains(self) -> bool:
        """Whether the router has weights to train."""
        return self.router not in ("threshold", "margin")

    @property
    def distilled(self) -> float:
        """The share of the widest path's answers in the loss of the early classifier."""
        return (0.7 if self.router == "gate" else 0.0) if self.distillation is None else self.distillation

    @property
    def spec(self) -> RouterSpec:
        """The router that is trained; that of auto is the first of the two that it compares."""
        targets = self.targets or ("try_best" if self.router == "gate" else "correctness")
        early = EARLY if self.early is None and self.router in ("auto", "exit_first") else self.early
        hidden = (0 if self.margin or early is not None else 32) if self.hidden is None else self.hidden
        kind = {"auto": "exit_first", "margin": "cheap_first"}.get(self.router, self.router)
        windows = (WINDOW if targets in PAPER and kind == "gate" else 0) if self.windows is None else self.windows
        bound = self.bound if kind == "gate" else False
        chosen = {"early": early, "bound": bound, "windows": windows or None}
        return RouterSpec(kind, targets, hidden, **chosen)  # type: ignore[arg-type]

    @property
    def weights(self) -> tuple[float, float, float]:
        """The weights of the losses classification, complexity and guidance."""
        paper = self.router == "gate" and self.spec.targets in PAPER
        defaults = (1.0, 1.0 if self.relative else 0.5) if paper else (0.0, 0.0)
        given = (self.classification, self.complexity)
        first, second = (default if own is None else own for own, default in zip(given, defaults, strict=True))
        return first, second, self.guidance
