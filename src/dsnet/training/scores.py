"""What the scores of a router learn: targets, how often each of them occurs, and the loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.nn import RouterSpec
from dsnet.training.ieb import full
from dsnet.training.sgs_config import PAPER

OUTSIDE = -1e4  # score of a width outside of an image's window; its softmax is zero


def goals(router: RouterSpec, answers: Sequence[Tensor], labels: Tensor, windows: Tensor | None = None) -> Tensor:
    """The targets of the scores, from the logits of every candidate, slimmest first and widest last.

    windows: The first and last position [B, 2] that each image may choose; by default all positions.
    The paper's targets are positions [B]: slimmest and widest are those of the window. Others are one number per
    candidate [B, R].
    """
    if router.targets == "kl":
        wide = full(answers[-1]).log_softmax(1)
        return torch.stack([(wide.exp() * (wide - full(logits).log_softmax(1))).sum(1) for logits in answers], 1)
    right = torch.stack([logits.argmax(1) == labels for logits in answers], 1)  # [B, R]
    if router.targets == "correctness":
        return right.to(full(answers[0]).dtype)
    low, high = ends(windows, right)
    slim, wide = (right.gather(1, end[:, None])[:, 0] for end in (low, high))
    match router.targets:
        case "try_best":
            return torch.where(slim, low, high)
        case "give_up":
            return torch.where(slim | ~wide, low, high)
    position = torch.arange(right.shape[1], device=right.device)
    inside = right & (position >= low[:, None]) & (position <= high[:, None])
    return torch.where(inside.any(1), inside.int().argmax(1), low)  # narrowest; the slimmest where none is right


def ends(windows: Tensor | None, scores: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last position [B] of every image's window."""
    if windows is not None:
        return windows[:, 0], windows[:, 1]
    low = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
    return low, low + scores.shape[1] - 1


def within(raw: Tensor, windows: Tensor | None) -> Tensor:
    """The scores [B, R], so low outside of each image's window that these widths are never drawn."""
    if windows is None:
        return raw
    position = torch.arange(raw.shape[1], device=raw.device)
    inside = (position >= windows[:, :1]) & (position <= windows[:, 1:])
    return raw.masked_fill(~inside, OUTSIDE)


def score_loss(router: RouterSpec, raw: Tensor, goal: Tensor, weights: Tensor | None = None) -> Tensor:
    """The loss of raw scores [B, R]. weights: Weights [B] of the images, with the paper's targets."""
    raw = full(raw)
    if router.targets == "correctness":
        return F.binary_cross_entropy_with_logits(raw, goal)
    if router.targets == "kl":
        return F.smooth_l1_loss(F.softplus(raw), goal)
    losses = F.cross_entropy(raw, goal, reduction="none")
    return losses.mean() if weights is None else (losses * weights).mean()


def target_counts(
    router: RouterSpec, answers: Sequence[Tensor], labels: Tensor, windows: Sequence[tuple[int, int]]
) -> Tensor:
    """How many images have each position as the paper's target, in every window [windows, R]."""
    assert router.targets in PAPER
    counts = []
    for window in windows:
        goal = goals(router, answers, labels, torch.tensor([window], device=labels.device).expand(len(labels), 2))
        counts.append(goal.bincount(minlength=len(answers)))
    return torch.stack(counts)


def balancing(counts: Tensor) -> Tensor:
    """Weights [windows, R] with which all targets that occur in a window count the same, and images 1 on average.

    With two targets they are 0.5 / P(easy) and 0.5 / P(hard).
    """
    frequencies = counts.double() / counts.sum(1, keepdim=True).clamp_min(1)
    occurring = (counts > 0).sum(1, keepdim=True).clamp_min(1)
    return torch.where(counts > 0, 1 / (occurring * frequencies), 0.0)


def straight_through(raw: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """One-hot choices [B, R] drawn by the scores (straight-through Gumbel-softmax). Gradients are the softmax's."""
    uniform = torch.rand(raw.shape, generator=generator, device=raw.device, dtype=raw.dtype)
    gumbel = -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
    soft = ((raw + gumbel) / temperature).softmax(1)
    hard = F.one_hot(soft.argmax(1), raw.shape[1]).to(raw.dtype)
    return hard - soft.detach() + soft
