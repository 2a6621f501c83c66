"""Boxes as tensors [..., 4]: the code that a detector learns, and the choice among overlapping boxes."""

from __future__ import annotations

import torch
from torch import Tensor

from dsnet.data.boxes import iou, to_centres, to_corners

VARIANCES = (0.1, 0.2)  # SSD's: offsets and log sizes are divided by these


def encode(corners: Tensor, priors: Tensor) -> Tensor:
    """What a detector is to say about boxes (in corners) at their priors (as centres)."""
    boxes = to_centres(corners)
    offset = (boxes[..., :2] - priors[..., :2]) / priors[..., 2:] / VARIANCES[0]
    return torch.cat([offset, (boxes[..., 2:] / priors[..., 2:]).log() / VARIANCES[1]], -1)


def decode(deltas: Tensor, priors: Tensor) -> Tensor:
    """The inverse of `encode`: boxes in corners."""
    middle = priors[..., :2] + deltas[..., :2] * VARIANCES[0] * priors[..., 2:]
    size = priors[..., 2:] * (deltas[..., 2:] * VARIANCES[1]).exp()
    return to_corners(torch.cat([middle, size], -1))


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Which boxes [..., N, 4], whose scores [..., N] fall, remain: none overlaps a better one that remains by more.

    This is greedy non-maximum suppression, found for all leading dimensions at once: whether a box remains depends
    on better ones only, so repeating the rule settles one more box each time, and all of them after a few times.
    """
    if bool((scores[..., 1:] > scores[..., :-1]).any()):
        raise ValueError("scores rise somewhere; sort boxes and scores by falling score first")
    # [..., N, N]: the row, if it remains, removes the column. Numbers, because products of matrices are fast.
    beats = (iou(boxes, boxes) > threshold).to(torch.float32).triu(1)
    keep = torch.ones_like(scores, dtype=torch.bool)
    while True:
        settled = (keep[..., None, :].to(beats.dtype) @ beats).squeeze(-2) == 0
        if bool((settled == keep).all()):
            return keep
        keep = settled


def select(
    boxes: Tensor,
    scores: Tensor,
    *,
    threshold: float = 0.01,
    overlap: float = 0.45,
    per_class: int = 400,
    most: int = 200,
) -> tuple[Tensor, Tensor, Tensor]:
    """The detections of one image, best first: boxes [D, 4], scores [D], classes [D], suppressed within each class.

    boxes: [P, 4] in corners. scores: [P, classes].
    per_class: candidates of each class that are looked at. most: detections that are kept.
    """
    found, kept, labels = [], [], []
    for label, column in enumerate(scores.T):  # one by one: all their N x N overlaps together are much memory
        likely = int((column > threshold).sum())
        best, which = column.topk(min(per_class, likely))
        keep = nms(boxes[which], best, overlap)
        found.append(boxes[which[keep]])
        kept.append(best[keep])
        labels.append(torch.full_like(which[keep], label))
    boxes, scores, classes = torch.cat(found), torch.cat(kept), torch.cat(labels)
    best = scores.argsort(descending=True, stable=True)[:most]
    return boxes[best], scores[best], classes[best]
