"""Stage II of classification: the cache, what is logged, and what is fitted on the calibration images."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsnet.data.batches import Batches, TrainBatches, plain_batches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Batch, Data
from dsnet.manifest import Policy
from dsnet.models import Supernet, eager
from dsnet.nn import ScoringHead, link
from dsnet.routers import Router
from dsnet.routing.fitting import fit_combination, fit_margins
from dsnet.routing.parts import as_array
from dsnet.routing.traces import auc, slimmest_score, widest_gain
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.training import SGS, SGSConfig, Stage
from dsnet.training.cache import Read, check_size, exit_logits, fresh_reads, make_cache, rows_of, scores_of
from dsnet.training.distributed import gathered, in_order, rank, world
from dsnet.training.measured import measured, standardise_gates

BATCH = 256
MEASURED = 4096  # training images that the supernet is measured on where nothing is cached


def decides_once(net: Supernet) -> bool:
    """Whether one decision makes the path of an image, so that what the router reads can be cached."""
    assert net.spec.router is not None
    return net.spec.router.single or len(net.chain) == 1


def caches(net: Supernet, config: ClassificationConfig) -> bool:
    """Whether the router of a network is trained on features that are computed once."""
    return bool(config.sgs.cache) and decides_once(net)


def check_cache(net: Supernet, data: Data, config: ClassificationConfig) -> None:
    """Refuse a cache that needs too much memory, before the supernet is trained."""
    sgs = config.sgs
    if not sgs.trains:
        return
    with torch.device("meta"):
        routed = Supernet(config.routed(net.spec)).eval().to("meta")  # also buffers that come from numpy
        image = torch.empty(1, data.channels, data.image_size, data.image_size)
    if caches(routed, config):
        images = data.calibration if sgs.held_out else data.train
        with torch.no_grad():
            numbers = rows_of(routed, image, kept=sgs.cache_folder is not None).shape[1]
        check_size(sgs.cache, len(images) // world(), numbers, sgs.cache_limit)


def data_words(data: DataConfig) -> str:
    """What decides which images the network sees. Where they are and who reads them does not."""
    return repr({**asdict(data), "root": None, "workers": None})


def cached(stage: Stage[Supernet], batches: TrainBatches, config: ClassificationConfig) -> Batches:
    """The batches of stage II: those of a cache, if the router can be trained on one. Measures the frozen supernet."""
    assert isinstance(stage, SGS)
    net, sgs, fresh = stage.net, config.sgs, config.gate_from is None
    if caches(net, config):
        folder = None if sgs.cache_folder is None else Path(sgs.cache_folder)
        about = data_words(config.data)
        cache = make_cache(net, batches, sgs.cache, limit=sgs.cache_limit, folder=folder, about=about)
        stage.known = measured(net, sgs, cache.reads(net), fresh=fresh)
        return cache
    some = list(islice(batches.epoch(0), max(1, MEASURED // batches.batch_size)))
    stage.known = measured(net, sgs, fresh_reads(net, some), fresh=fresh)
    if fresh and not decides_once(net):
        standardise_gates(net, some)
    return batches


def calibration_batches(data: Data, config: ClassificationConfig, device: torch.device) -> Iterator[Batch]:
    """The calibration images of this process, which has every world-th batch."""
    workers = config.data.workers
    return plain_batches(data.calibration, BATCH, workers=workers, rank=rank(), world=world(), device=device)


def calibration_reads(net: Supernet, data: Data, config: ClassificationConfig) -> Iterator[tuple[Read, Tensor]]:
    return fresh_reads(net, calibration_batches(data, config, net.device))


class Watch:
    """What the router does on the calibration images after every epoch. The frozen network runs on them once; every
    process runs it on its own."""

    def __init__(self, data: Data, config: ClassificationConfig) -> None:
        self.data, self.config = data, config
        self.reads: list[tuple[Read, Tensor]] | None = None

    @torch.no_grad()
    def aucs(self, net: Supernet) -> dict[str, float]:
        """The AUCs of the first decision, for images that the slimmest candidate gets right, and for images that only
        the widest gets right."""
        assert net.spec.router is not None
        scores, right = self.first(net)
        return {
            "auc": auc(slimmest_score(net.spec.router.targets, scores), right[:, 0]),
            "auc_wider": auc(widest_gain(scores), right[:, -1] & ~right[:, 0]),
        }

    @torch.no_grad()
    def gates(self, net: Supernet) -> dict[str, float]:
        """The entropy of every gate in bits, and the share of the images at each of its widths, at lambda 0. Images
        count once in every window."""
        runner = eager(net)
        router = runner.manifest.router
        assert router is not None
        figures: dict[str, float] = {}
        for point, chosen in enumerate(self.chosen(net, router)):
            shares = np.bincount(chosen) / len(chosen)
            figures[f"gate{point}/entropy"] = -float((shares * np.log2(np.clip(shares, 1e-12, None))).sum()) + 0.0
            figures |= {f"gate{point}/share{position}": float(share) for position, share in enumerate(shares)}
        return figures

    def chosen(self, net: Supernet, router: Router) -> list[np.ndarray]:
        """The positions that every gate chooses."""
        if decides_once(net):
            scores, _ = self.first(net)
            return [np.concatenate([low + scores[:, low : high + 1].argmax(1) for low, high in router.windows])]
        runner, paths = eager(net), []
        for batch in calibration_batches(self.data, self.config, net.device):
            if len(batch.images):
                paths += [as_array(runner.run(batch.images, Policy(window=window)).paths) for window in router.windows]
        taken = np.concatenate(gathered(paths))
        return [np.searchsorted(widths, taken[:, point]) for point, widths in enumerate(router.routing.choices)]

    def first(self, net: Supernet) -> tuple[np.ndarray, np.ndarray]:
        """The scores of the first decision, and which candidates are right; what is fitted is fitted to a copy."""
        if self.config.sgs.margin:
            net = copy.deepcopy(net)
            fit(net, replace(self.config.sgs, combined=False), self.seen(net))
        return first_scores(net, self.seen(net))

    def seen(self, net: Supernet) -> list[tuple[Read, Tensor]]:
        if self.reads is None:
            self.reads = list(calibration_reads(net, self.data, self.config))
        return self.reads


def first_scores(net: Supernet, reads: Iterable[tuple[Read, Tensor]]) -> tuple[np.ndarray, np.ndarray]:
    """The scores [N, R] of the first decision, and which of its candidates are right [N, R], on the images of all
    processes."""
    found = []
    assert net.spec.router is not None
    for seen, labels in reads:
        raw, _ = scores_of(net, seen)
        exits = list(exit_logits(net, seen).unbind(1)) if net.spec.router.exits else []
        right = torch.stack([answer.argmax(1) == labels for answer in (*exits, *seen.answers.unbind(1))], 1)
        found.append((link(net.spec.router, raw).cpu().numpy(), right.cpu().numpy()))
    scores, rights = zip(*in_order(found), strict=True)
    return np.concatenate(scores), np.concatenate(rights)


class Answers(NamedTuple):
    """Of calibration images: log-probabilities of the classifier whose margin is read [B, classes] and of the widths
    [B, R, classes], and labels [B]. With several image sizes, the exits of all but the smallest come before the
    widths."""

    first: Tensor
    widths: Tensor
    labels: Tensor


@torch.no_grad()
def answered(net: Supernet, seen: Read, labels: Tensor) -> Answers:
    exits = seen.answers[:, :1] if net.early is None else exit_logits(net, seen)
    answers = torch.cat([exits[:, 1:], seen.answers], 1) if exits.shape[1] > 1 else seen.answers
    return Answers(exits[:, 0].log_softmax(1), answers.log_softmax(2), labels)


@torch.no_grad()
def fit(net: Supernet, config: SGSConfig, reads: Iterable[tuple[Read, Tensor]]) -> None:
    """Fit what a router fits to the calibration images of all processes: the weights that combine the exit's answer
    with those of the widths, and then the scores by margin, which are the chances that these answers are right."""
    known = [answered(net, seen, labels) for seen, labels in reads]
    if config.spec.exits and config.combined and not net.spec.sizes:
        fit_combined(net, known)
    if config.margin:
        margins, right = zip(*in_order([judged(net, config, part) for part in known]), strict=True)
        head = net.probe if net.early is None else net.early.head
        set_margin(head, *fit_margins(np.concatenate(margins), np.concatenate(right)))


def judged(net: Supernet, config: SGSConfig, known: Answers) -> tuple[np.ndarray, np.ndarray]:
    """The margin [B] of the first classifier, and which candidates are right [B, R]."""
    first, widths, labels = known
    answers = list(widths.unbind(1))
    if config.spec.exits:
        assert net.early is not None
        answers = [first, *(net.early.combined(first, logits, k) for k, logits in enumerate(answers))]
    best = first.exp().topk(2, dim=1).values
    right = torch.stack([logits.argmax(1) == labels for logits in answers], 1)
    return (best[:, 0] - best[:, 1]).cpu().numpy(), right.cpu().numpy()


def fit_combined(net: Supernet, known: Sequence[Answers]) -> None:
    """Set the weights with which the exit's answer and that of a width are combined."""
    assert net.early is not None
    assert net.early.exit_weights is not None
    assert net.early.width_weights is not None

    def whole(parts: Iterable[Tensor]) -> np.ndarray:
        return np.concatenate(in_order([part.cpu().numpy() for part in parts]))

    first, labels = whole(part.first for part in known), whole(part.labels for part in known)
    for position in range(len(net.early.exit_weights)):  # one after the other: all answers of ImageNet take gigabytes
        u, v = fit_combination(first, whole(part.widths[:, position] for part in known), labels)
        net.early.exit_weights[position], net.early.width_weights[position] = u, v


@torch.no_grad()
def set_margin(head: object, a: np.ndarray, b: np.ndarray) -> None:
    """Make the scores of a head of rank one a_k + b_k (largest probability - second largest)."""
    assert isinstance(head, ScoringHead)
    assert head.linear
    assert head.reduce.bias is not None
    assert head.score.bias is not None
    for tensor, value in ((head.reduce.mean, 0.0), (head.reduce.std, 1.0), (head.reduce.weight, 0.0)):
        tensor.fill_(value)
    head.reduce.bias.zero_()
    sorted_from = head.reduce.weight.shape[1] - head.top - 1  # behind the log-probabilities, before the entropy
    head.reduce.weight[0, sorted_from], head.reduce.weight[0, sorted_from + 1] = 1.0, -1.0
    head.score.weight.copy_(torch.from_numpy(b)[:, None])
    head.score.bias.copy_(torch.from_numpy(a))
