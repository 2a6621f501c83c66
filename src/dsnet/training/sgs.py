"""Stage II: a router is trained on a frozen supernet, by Sandwich Gate Sparsification or on targets of our own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.data.batches import seed_of
from dsnet.models import Entered, Supernet, count
from dsnet.models.devices import exact, finest
from dsnet.nn.router import of_router
from dsnet.training.cache import Read, compared, exit_logits, read_images, scores_of, unpacked
from dsnet.training.complexity import constants, expected
from dsnet.training.ieb import N, Stage, full
from dsnet.training.measured import Measured, windows_of
from dsnet.training.scores import goals, score_loss, straight_through, within
from dsnet.training.sgs_config import PAPER, TWO_ENDED, SGSConfig


class Draw(NamedTuple):
    """What is random in a step: the seed of the windows and of the Gumbel noise, and the temperature."""

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


class SGS(Stage[Supernet]):
    """The losses of one step of stage II. The supernet is frozen and in eval mode; only the router is trained.

    A step takes images, or packed rows of a cache. The classification loss of cached images is the sum of the
    candidates' losses, weighted by the choice. Gates that see images run at their choice, and gradients flow through
    the channel masks of the frozen network.
    """

    prices: Tensor
    edges: Tensor

    def __init__(self, net: Supernet, config: SGSConfig, known: Measured | None = None) -> None:
        super().__init__()
        if net.spec.router is None or net.spec.router != config.spec:
            raise ValueError(f"the network has router {net.spec.router} but {config.spec} is to be trained")
        self.net, self.config, self.router = net.eval(), config, net.spec.router
        self.known, self.windows = known or Measured(), windows_of(net)
        sizes = sorted({len(allowed) for allowed in net.routing.choices})
        if len(sizes) > 1 and len(self.windows) > 1:
            raise ValueError(f"windows need equally many widths at every gate, not {sizes}; set --sgs.windows 0")
        self.table = count(net)
        prices = [self.table.madds(path, dynamic=True) / self.table.widest for path in net.candidates]
        # Constants of the losses, on the device of the network.
        precision = finest(net.device)
        self.register_buffer("prices", torch.tensor(prices, dtype=precision), persistent=False)
        self.register_buffer("edges", torch.tensor(self.windows), persistent=False)
        self.costs = [f"costs{number}" for number in range(len(self.table.whole.steps) + 1)]
        for name, held in zip(self.costs, constants(self.table.whole), strict=True):
            self.register_buffer(name, held.to(precision), persistent=False)
        self.span = prices[-1] ** 2 - prices[0] ** 2
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(self.trains(name))

    def trains(self, name: str) -> bool:
        """Whether a parameter is trained. Where one decision holds for all gates, only that of the first."""
        if self.net.early is not None:
            return name.startswith("early.classifier." if self.config.margin else "early.")
        if self.router.probes:
            return name.startswith("probe.")
        return ".slimming." in name and (not self.router.bound or name.startswith("segments.0."))

    def train(self, mode: bool = True) -> SGS:
        super().train(mode)
        self.net.eval()
        return self

    def draw(self, rng: random.Random, progress: float = 0.0, *, part: int = 0) -> Draw:
        """Draw a seed for every part of a batch, so that processes and accumulation steps have independent noise."""
        start, end = self.config.temperature, self.config.final_temperature
        return Draw(seed_of(rng.getrandbits(32), part), start * (end / start) ** progress)

    def forward(self, images: Tensor, labels: Tensor, drawn: Draw, average: Supernet) -> dict[str, Tensor]:
        weights = dict(zip(("classification", "complexity", "guidance"), self.config.weights, strict=True))
        weights["early"] = 1.0
        if images.dim() == 2:
            losses = self.read_losses(unpacked(self.net, images), labels, drawn)
        else:
            mixed = self.router.targets in PAPER or max(self.config.weights[:2]) > 0
            if self.net.early is not None or self.net.probe is not None:
                with torch.no_grad():
                    seen = read_images(self.net, images)
                losses = self.read_losses(seen, labels, drawn)
            else:
                with torch.no_grad():
                    entered = self.net.enter(images)
                losses = (self.mixed_losses if mixed else self.gate_losses)(entered, labels, drawn)
        return {name: weights[name] * loss for name, loss in losses.items() if weights[name] > 0}

    def read_losses(self, seen: Read, labels: Tensor, drawn: Draw) -> dict[str, Tensor]:
        """The losses of a router with one decision."""
        widths = list(seen.answers.unbind(1))
        if self.config.margin and self.net.early is not None:  # scores are fitted later
            exits, sizes = exit_logits(self.net, seen).flatten(0, 1), self.net.spec.rows
            widest, wanted = (part.repeat_interleave(sizes, 0) for part in (widths[-1], labels))
            return {"early": self.early_loss(exits, widest, wanted)}
        raw, early = scores_of(self.net, seen)
        answers = [early.detach(), *widths] if self.router.exits and early is not None else widths
        losses = {} if early is None else {"early": self.early_loss(early, widths[-1], labels)}
        generator = torch.Generator(labels.device).manual_seed(drawn.seed)
        windows = self.draw_windows(labels, generator)
        losses["guidance"] = self.guidance(raw, answers, labels, windows)
        if max(self.config.weights[:2]) > 0:
            mix = straight_through(self.within(raw, windows), drawn.temperature, generator)
            each = torch.stack([F.cross_entropy(full(logits), labels, reduction="none") for logits in answers], 1)
            losses["classification"] = (mix * each).sum(1).mean()
            losses["complexity"] = self.complexity(exact(mix) @ exact(self.prices)).to(each)
        return losses

    def mixed_losses(self, entered: Entered, labels: Tensor, drawn: Draw) -> dict[str, Tensor]:
        """The paper's losses, with every sample at widths drawn by Gumbel-softmax, equations (10) to (13)."""
        paths = compared(self.net)
        if len(self.windows) == 1 and self.router.targets in TWO_ENDED:
            paths = [paths[0], paths[-1]]
        with torch.no_grad():
            answers = self.net.run_paths(entered, paths)
        generator = torch.Generator(labels.device).manual_seed(drawn.seed)
        windows = self.draw_windows(labels, generator)

        def choose(point: int, raw: Tensor | None) -> Tensor:
            assert raw is not None
            return straight_through(self.within(raw, windows), drawn.temperature, generator)

        logits, raws, mixes = self.net.run_mixed(entered, choose)
        guidance = [self.guidance(raw, answers, labels, windows) for raw in raws if raw is not None]
        costs = [exact(self.get_buffer(name)) for name in self.costs]
        shares = expected(self.table.whole, mixes, known=costs) / self.table.widest
        return {
            "classification": F.cross_entropy(full(logits), labels),
            "complexity": self.complexity(shares).to(full(logits)),
            "guidance": torch.stack(guidance).sum(),
        }

    def gate_losses(self, entered: Entered, labels: Tensor, drawn: Draw) -> dict[str, Tensor]:
        """The loss of the scores of every gate, averaged over the candidate paths that lead to it."""
        with torch.no_grad():
            runs = [self.net.run_coded(entered, path) for path in self.net.candidates]
        answers = [logits for logits, _ in runs]
        gates = []
        for point, segment in enumerate(self.net.chain[:1] if self.router.bound else self.net.chain):
            losses: dict[int, Tensor] = {}  # by input width
            for path, (_, codes) in zip(self.net.candidates, runs, strict=True):
                w_in = path[point - 1] if point else 0
                if w_in not in losses:
                    raw = segment.score(codes[point], w_in)
                    assert raw is not None
                    losses[w_in] = self.guidance(raw, answers, labels, None)
            gates.append(torch.stack(list(losses.values())).mean())
        return {"guidance": torch.stack(gates).sum()}

    def early_loss(self, logits: Tensor, widest: Tensor, labels: Tensor) -> Tensor:
        """The early classifier learns the labels, and the probabilities of the widest path."""
        share = self.config.distilled
        hard = F.cross_entropy(full(logits), labels)
        return (
            hard if share == 0 else (1 - share) * hard + share * F.cross_entropy(full(logits), full(widest).softmax(1))
        )

    def draw_windows(self, labels: Tensor, generator: torch.Generator) -> Tensor | None:
        """The number [B] of the window that each image chooses within; None if there is only one."""
        if len(self.windows) == 1:
            return None
        return torch.randint(len(self.windows), labels.shape, generator=generator, device=labels.device)

    def ends(self, windows: Tensor | None) -> Tensor | None:
        """First and last position [B, 2] of the windows with these numbers."""
        return None if windows is None else self.edges[windows]

    def within(self, raw: Tensor, windows: Tensor | None) -> Tensor:
        return within(full(raw), self.ends(windows))

    def guidance(self, raw: Tensor, answers: Sequence[Tensor], labels: Tensor, windows: Tensor | None) -> Tensor:
        """The loss of one gate's raw scores."""
        if self.router.targets not in PAPER:
            return score_loss(self.router, raw, goals(self.router, answers, labels))
        goal = goals(self.router, answers, labels, self.ends(windows))
        table, weights = self.known.weights, None
        if table is not None:
            table = table.to(goal.device, full(raw).dtype)
            place = goal if table.shape[1] == len(answers) else last_where(goal > 0, table.shape[1])
            weights = table[0 if windows is None else windows, place]
        if raw.shape[1] != len(answers):  # only the two ends were compared
            goal = last_where(goal > 0, raw.shape[1])
        return score_loss(self.router, self.within(raw, windows), goal, weights)

    def complexity(self, shares: Tensor) -> Tensor:
        """The squared share of MAdds, from the share [B] of every image, scaled as the config says."""
        squares = shares.mean().square() if self.config.squares == "batch" else shares.square().mean()
        if not self.config.relative:
            return squares
        return squares * (self.known.gap / self.span)


def last_where(condition: Tensor, count: int) -> Tensor:
    """The last of some positions where the condition holds, otherwise the first."""
    return torch.where(condition, count - 1, 0)
