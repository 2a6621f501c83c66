"""Stage II: a router is trained on a frozen supernet, by Sandwich Gate Sparsification or on targets of our own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.cost import CostTable
from dsnet.data.batches import seed_of
from dsnet.errors import must
from dsnet.models import Entered, Supernet, count
from dsnet.nn import RouterSpec
from dsnet.schema import Typed
from dsnet.training.ieb import N, Stage, full

PAPER = ("try_best", "give_up", "narrowest")  # the target is one of the widths; other targets are a number per width


@dataclass(frozen=True)
class SGSConfig(Typed):
    """How the network learns to route in stage II.

    Args:
        router: How the width is chosen. slim_first reads the logits of the slimmest path, gate uses the paper's
            slimming heads, threshold needs no training.
        targets: What the router learns to predict: correctness (whether a width is right), kl (its divergence from the
            widest), or the paper's try_best, give_up and narrowest (the narrowest width that is right). By default
            try_best for gates and correctness otherwise.
        classification: Weight of the routed network's loss on the labels. By default 1 for gates with the paper's
            targets, and 0 otherwise.
        complexity: Weight of the squared share of MAdds. By default 0.5 for gates with the paper's targets, and 0
            otherwise.
        guidance: Weight of the loss on the router's own scores (SGS).
        temperature: Temperature of the Gumbel-softmax at the beginning.
        final_temperature: Temperature of the Gumbel-softmax at the end. It falls exponentially.
        hidden: Number of hidden units in the head of slim_first.
        momentum: Momentum of the moving average of the router's weights, which is what is saved.
    """

    router: Literal["slim_first", "gate", "threshold"] = "slim_first"
    targets: Literal["correctness", "kl", "try_best", "give_up", "narrowest"] | None = None
    classification: float | None = None
    complexity: float | None = None
    guidance: float = 1.0
    temperature: float = 1.0
    final_temperature: float = 1.0
    hidden: int = 32
    momentum: float = 0.99

    def __post_init__(self) -> None:
        spec = self.spec
        if min(self.weights) < 0 or max(self.weights) == 0:
            raise ValueError(
                f"sgs.classification, complexity and guidance are {self.weights}; none may be negative, nor all zero"
            )
        if spec.probes and (self.classification or self.complexity):
            raise ValueError(
                f"router {self.router} learns scores only; sgs.classification and sgs.complexity are for router gate"
            )
        if self.router == "threshold" and self.targets not in (None, "correctness"):
            raise ValueError("router threshold has nothing to train; leave sgs.targets out")
        must("sgs.temperature", self.temperature, self.temperature > 0, "be positive")
        must("sgs.final_temperature", self.final_temperature, self.final_temperature > 0, "be positive")
        must("sgs.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")

    @property
    def spec(self) -> RouterSpec:
        default = "try_best" if self.router == "gate" else "correctness"
        return RouterSpec(self.router, self.targets or default, self.hidden)  # type: ignore[arg-type]

    @property
    def weights(self) -> tuple[float, float, float]:
        """The weights of the losses classification, complexity and guidance."""
        paper = self.router == "gate" and self.spec.targets in PAPER
        first = (1.0 if paper else 0.0) if self.classification is None else self.classification
        second = (0.5 if paper else 0.0) if self.complexity is None else self.complexity
        return first, second, self.guidance


class Draw(NamedTuple):
    """What is random in a step: the seed of the Gumbel noise, and its temperature."""

    seed: int
    temperature: float


def with_fresh_router(net: N, spec: Any) -> N:
    """A network of `spec` with the weights and statistics of `net`, and a router with fresh weights.

    spec: The spec of `net` with another router.
    """
    old: Any = net
    fresh = spec.build().to(next(net.parameters())).train(net.training)
    fresh.card = replace(old.card, budgets=())
    kept, wanted = (
        {name: tensor for name, tensor in state.items() if not of_router(name)}
        for state in (net.state_dict(), fresh.state_dict())
    )
    if [(name, tensor.shape) for name, tensor in kept.items()] != [(name, t.shape) for name, t in wanted.items()]:
        raise ValueError(f"the router's spec changes more of {old.spec.name!r} than its routing")
    fresh.load_state_dict(kept, strict=False)
    return fresh


def of_router(name: str) -> bool:
    return name.startswith(("probe.", "early.")) or ".slimming." in name


class SGS(Stage[Supernet]):
    """The losses of one step of stage II. The supernet is frozen and in eval mode; only the router is trained."""

    def __init__(self, net: Supernet, config: SGSConfig) -> None:
        super().__init__()
        if net.spec.router is None or net.spec.router != config.spec:
            raise ValueError(f"the network has router {net.spec.router} but {config.spec} is to be trained")
        self.net, self.config, self.router = net.eval(), config, net.spec.router
        self.table = count(net)
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(name.startswith("probe.") if self.router.probes else ".slimming." in name)

    def train(self, mode: bool = True) -> SGS:
        super().train(mode)
        self.net.eval()
        return self

    def draw(self, rng: random.Random, progress: float = 0.0, *, part: int = 0) -> Draw:
        """Draw a seed for every part of a batch, so that processes and accumulation steps have independent noise."""
        start, end = self.config.temperature, self.config.final_temperature
        return Draw(seed_of(rng.getrandbits(32), part), start * (end / start) ** progress)

    def forward(self, images: Tensor, labels: Tensor, drawn: Draw, average: Supernet) -> dict[str, Tensor]:
        with torch.no_grad():
            entered = self.net.enter(images)
        if self.net.probe is not None:
            losses = {"guidance": self.probe_loss(entered, labels)}
        elif self.router.targets in PAPER or max(self.config.weights[:2]) > 0:
            losses = self.mixed_losses(entered, labels, drawn)
        else:
            losses = {"guidance": self.gate_loss(entered, labels)}
        weights = dict(zip(("classification", "complexity", "guidance"), self.config.weights, strict=True))
        return {name: weights[name] * loss for name, loss in losses.items() if weights[name] > 0}

    def probe_loss(self, entered: Entered, labels: Tensor) -> Tensor:
        assert self.net.probe is not None
        with torch.no_grad():
            logits = self.net.run_paths(entered, self.net.candidates)
        raw = self.net.probe(full(logits[0]))
        return score_loss(self.router, raw, goals(self.router, logits, labels))

    def gate_loss(self, entered: Entered, labels: Tensor) -> Tensor:
        """The mean loss of the scores of every gate, after each candidate path."""
        with torch.no_grad():
            runs = [self.net.run_coded(entered, path) for path in self.net.candidates]
        goal = goals(self.router, [logits for logits, _ in runs], labels)
        gates = []
        for point, segment in enumerate(self.net.chain):
            losses: dict[int, Tensor] = {}  # by input width
            for path, (_, codes) in zip(self.net.candidates, runs, strict=True):
                w_in = path[point - 1] if point else 0
                if w_in not in losses:
                    raw = segment.score(codes[point], w_in)
                    assert raw is not None
                    losses[w_in] = score_loss(self.router, raw, goal)
            gates.append(torch.stack(list(losses.values())).mean())
        return torch.stack(gates).mean()

    def mixed_losses(self, entered: Entered, labels: Tensor, drawn: Draw) -> dict[str, Tensor]:
        """The paper's losses, with every sample at widths drawn by Gumbel-softmax, equations (10) to (13)."""
        routing = self.net.routing
        extremes = self.router.targets in ("try_best", "give_up")
        with torch.no_grad():
            answers = self.net.run_paths(
                entered, [routing.slimmest, routing.widest] if extremes else self.net.candidates
            )
        goal = goals(self.router, answers, labels)
        generator = torch.Generator(labels.device).manual_seed(drawn.seed)

        def choose(point: int, raw: Tensor | None) -> Tensor:
            assert raw is not None
            return straight_through(full(raw), drawn.temperature, generator)

        logits, raws, mixes = self.net.run_mixed(entered, choose)
        guidance = [score_loss(self.router, raw, goal) for raw in raws if raw is not None]
        return {
            "classification": F.cross_entropy(full(logits), labels),
            "complexity": (expected(self.table, mixes) / self.table.widest).square().mean().to(full(logits).dtype),
            "guidance": torch.stack(guidance).mean(),
        }


def straight_through(raw: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """One-hot choices [B, R] drawn by the scores (straight-through Gumbel-softmax). Gradients are the softmax's."""
    uniform = torch.rand(raw.shape, generator=generator, device=raw.device, dtype=raw.dtype)
    gumbel = -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
    soft = ((raw + gumbel) / temperature).softmax(1)
    hard = F.one_hot(soft.argmax(1), raw.shape[1]).to(raw.dtype)
    return hard - soft.detach() + soft


def goals(router: RouterSpec, answers: Sequence[Tensor], labels: Tensor) -> Tensor:
    """The targets of the scores, from the candidates' logits, slimmest first and widest last.

    The paper's targets are positions [B], where -1 stands for the widest; others are one number per candidate [B, R].
    """
    right = torch.stack([logits.argmax(1) == labels for logits in answers], 1)  # [B, R]
    match router.targets:
        case "try_best":
            return torch.where(right[:, 0], 0, -1)
        case "give_up":
            return torch.where(right[:, 0] | ~right[:, -1], 0, -1)
        case "narrowest":  # the slimmest where none is right
            return right.int().argmax(1)
        case "correctness":
            return right.to(full(answers[0]).dtype)
        case "kl":
            wide = full(answers[-1]).log_softmax(1)
            return torch.stack([(wide.exp() * (wide - full(logits).log_softmax(1))).sum(1) for logits in answers], 1)


def score_loss(router: RouterSpec, raw: Tensor, goal: Tensor) -> Tensor:
    raw = full(raw)
    if router.targets == "correctness":
        return F.binary_cross_entropy_with_logits(raw, goal)
    if router.targets == "kl":
        return F.smooth_l1_loss(F.softplus(raw), goal)
    return F.cross_entropy(raw, torch.where(goal < 0, raw.shape[1] - 1, goal))


def expected(table: CostTable, mixes: Sequence[Tensor], *, dynamic: bool = True) -> Tensor:
    """MAdds [B] under one mix [B, K] per choice point. They are differentiable, and exact on one-hot mixes."""
    if not table.steps:
        raise ValueError("the network has no choice points; use madds(())")
    if len(mixes) != len(table.steps):
        raise ValueError(
            f"got {len(mixes)} mixes but the network has {len(table.steps)} choice points; give one for each"
        )
    for point, (mix, step) in enumerate(zip(mixes, table.steps, strict=True)):
        if mix.shape != (len(mixes[0]), len(step[0])):
            raise ValueError(
                f"mix {point} has shape {tuple(mix.shape)}; expected {(len(mixes[0]), len(step[0]))}, "
                f"one weight per sample and width"
            )
    if dynamic and table.probe is not None:
        return _expected_probing(table, mixes)
    total = torch.full((len(mixes[0]),), float(table.front.madds), dtype=torch.float64, device=mixes[0].device)
    before = total.new_ones(len(total), 1)
    for step, router, mix in zip(table.steps, table.routers, mixes, strict=True):
        costs = [[cost.madds + (router[j].madds if dynamic else 0) for cost in row] for j, row in enumerate(step)]
        after = mix.double()
        total = total + torch.einsum("bi,ij,bj->b", before, total.new_tensor(costs), after)
        before = after
    return total + before @ total.new_tensor([head.madds for head in table.heads])


def _expected_probing(table: CostTable, mixes: Sequence[Tensor]) -> Tensor:
    """Expected MAdds of a router that probes: every sample runs the slimmest candidate; those that choose another path
    run the rest of it as well."""
    assert table.probe is not None
    slim = torch.stack([mix[:, width].double() for mix, width in zip(mixes, table.probed, strict=True)]).prod(0)
    rest = expected(table, mixes, dynamic=False) - table.shared.madds
    return table.probe.madds + rest - slim * (table.madds(table.probed) - table.shared.madds)
