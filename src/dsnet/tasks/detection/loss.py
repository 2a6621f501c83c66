"""The multibox loss of SSD: encoding of boxes, matching of priors to objects, and the loss itself."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.data.boxes import PADDING, iou, to_centres, to_corners

VARIANCES = (0.1, 0.2)  # SSD's: offsets and log sizes are divided by these
OVERLAP = 0.5
NEGATIVES = 3  # background priors per prior with an object
IGNORED = -1  # class of priors that are neither object nor background


class Targets(NamedTuple):
    """The targets of every prior: classes [B, P] (0 is background, -1 does not count) and deltas [B, P, 4]."""

    classes: Tensor
    deltas: Tensor


class MultiboxLoss(NamedTuple):
    """The two losses summed over priors, and the number of priors with objects, for each image [B]."""

    localisation: Tensor
    classification: Tensor
    positives: Tensor

    @property
    def total(self) -> Tensor:
        """The loss of the batch: the sum of both losses divided by the number of priors with objects."""
        return (self.localisation.sum() + self.classification.sum()) / self.positives.sum().clamp_min(1)

    @property
    def each(self) -> Tensor:
        """The loss of each image [B]."""
        return (self.localisation + self.classification) / self.positives.clamp_min(1)


def encode(corners: Tensor, priors: Tensor) -> Tensor:
    """The deltas from priors (as centres) to boxes (as corners)."""
    boxes = to_centres(corners)
    offset = (boxes[..., :2] - priors[..., :2]) / priors[..., 2:] / VARIANCES[0]
    return torch.cat([offset, (boxes[..., 2:] / priors[..., 2:]).log() / VARIANCES[1]], -1)


def decode(deltas: Tensor, priors: Tensor) -> Tensor:
    """The inverse of `encode`: boxes as corners."""
    middle = priors[..., :2] + deltas[..., :2] * VARIANCES[0] * priors[..., 2:]
    size = priors[..., 2:] * (deltas[..., 2:] * VARIANCES[1]).exp()
    return to_corners(torch.cat([middle, size], -1))


def match(objects: Tensor, priors: Tensor, *, overlap: float = OVERLAP) -> tuple[Tensor, Tensor]:
    """The target classes [P] and deltas [P, 4] of the priors for one image's objects [G, 6]: corners, class, difficult.

    A prior is matched to the object that it overlaps most, if their IoU is at least `overlap`. In addition,
    `own_priors` gives every object that overlaps some prior a prior of its own. Difficult objects are not matched;
    priors that overlap them enough are ignored, unless they are matched to another object.
    """
    objects = objects[objects[:, 4] != PADDING]
    difficult = objects[:, 5] > 0
    corners = to_corners(priors)
    hard, objects = objects[difficult], objects[~difficult]
    classes = torch.zeros(len(priors), dtype=torch.long, device=priors.device)
    if len(hard):
        classes[(iou(hard[:, :4], corners) >= overlap).any(0)] = IGNORED
    if not len(objects):
        return classes, torch.zeros_like(priors)
    overlaps = iou(objects[:, :4], corners)  # [G, P]
    best, which = overlaps.max(0)
    matched = best >= overlap
    own = own_priors(overlaps)
    served = own >= 0
    matched[own[served]], which[own[served]] = True, served.nonzero().flatten()
    classes[matched] = objects[which[matched], 4].long() + 1
    return classes, torch.where(matched[:, None], encode(objects[which, :4], priors), 0)


def own_priors(overlaps: Tensor) -> Tensor:
    """A different prior [G] for every object, given overlaps [G, P]. Pairs with the largest overlap are chosen first.

    An object gets -1 if no prior that overlaps it is left.
    """
    best, chosen = overlaps.max(1)
    if len(chosen.unique()) == len(chosen):
        return torch.where(best > 0, chosen, -1)
    chosen, left = torch.full_like(chosen, -1), overlaps.clone()
    for _ in range(min(left.shape)):
        row, column = divmod(int(left.argmax()), left.shape[1])
        if left[row, column] <= 0:
            break
        chosen[row] = column
        left[row], left[:, column] = 0, 0
    return chosen


def match_all(objects: Tensor, priors: Tensor) -> Targets:
    """Targets of a batch of objects [B, G, 6], padded with class -1."""
    matched = [match(own, priors) for own in objects]
    return Targets(torch.stack([classes for classes, _ in matched]), torch.stack([deltas for _, deltas in matched]))


def multibox_loss(deltas: Tensor, logits: Tensor, targets: Targets, *, negatives: int = NEGATIVES) -> MultiboxLoss:
    """Smooth L1 over priors with objects, and cross-entropy over these and the hardest background priors of each image.

    There are `negatives` background priors for each prior with an object, and as many in an image without objects.
    """
    if deltas.dtype != torch.float64:  # at least single precision, whatever autocast produced
        deltas, logits = deltas.float(), logits.float()
    positive = targets.classes > 0
    count = positive.sum(1)
    error = F.smooth_l1_loss(deltas, targets.deltas.to(deltas), reduction="none").sum(2)
    entropy = F.cross_entropy(logits.flatten(0, 1), targets.classes.clamp_min(0).flatten(), reduction="none")
    entropy = entropy.view_as(positive)
    background = entropy.detach().masked_fill(targets.classes != 0, -1)
    rank = background.argsort(1, descending=True).argsort(1)
    hard = (rank < negatives * count.clamp_min(1)[:, None]) & (targets.classes == 0)
    return MultiboxLoss((error * positive).sum(1), (entropy * (positive | hard)).sum(1), count)
