"""Stage II on cached features: the frozen network sees every training image once, and only the router runs in a step.

A router with one decision reads a few numbers of an image, and its losses need the answers of the widths it may choose.
Both are kept for some augmented views of every training image.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from torch import Tensor

from dsnet.data.batches import Job, TrainBatches, load_all, seed_of
from dsnet.data.dataset import Batch, Split
from dsnet.errors import DataError
from dsnet.files import one_at_a_time
from dsnet.models import Entered, Supernet
from dsnet.models.devices import exact
from dsnet.nn.layers import GridPool
from dsnet.nn.router import SIDE, of_router
from dsnet.schema import to_json
from dsnet.space import WidthPath, is_exit
from dsnet.training import distributed
from dsnet.training.display import counting

BATCH = 256  # images that the frozen network sees together


class Read(NamedTuple):
    """What a router with one decision reads of every image, and the answers of the widths.

    Args:
        seen: The pooled map of an early classifier, or the code of a gate [B, F]; empty for routers that read the
            slimmest path's answer. With several image sizes, the pooled maps of all of them, one after another.
        answers: Logits [B, R, classes] of the paths that are `compared`, slimmest first.
    """

    seen: Tensor
    answers: Tensor

    def packed(self) -> Tensor:
        """All numbers of an image in one row [B, F + R * classes], which is what batches of a cache hold."""
        return torch.cat([self.seen, self.answers.flatten(1)], 1)


def compared(net: Supernet) -> list[WidthPath]:
    """The paths whose answers make the targets: the uniform ones, or only slimmest and widest where the gates have
    different numbers of widths. With several image sizes, the candidates of the router that are no exits."""
    if net.spec.sizes:
        return [path for path in net.candidates if not is_exit(path)]
    routing = net.routing
    equal = len({len(allowed) for allowed in routing.choices}) == 1
    return routing.uniform if equal else [routing.slimmest, routing.widest]


def unpacked(net: Supernet, rows: Tensor) -> Read:
    widths, classes = len(compared(net)), net.spec.num_classes
    seen, answers = rows.split([rows.shape[1] - widths * classes, widths * classes], 1)
    return Read(seen, answers.unflatten(1, (widths, classes)))


def read(net: Supernet, entered: Entered) -> Read:
    """What the router of a network reads behind the front."""
    answers = torch.stack(net.run_paths(entered, compared(net)), 1)
    if net.early is not None:
        return Read(net.pooled_early(entered), answers)
    if net.probe is not None or entered.code is None:
        return Read(answers.new_zeros(len(answers), 0), answers)
    return Read(entered.code, answers)


def read_images(net: Supernet, images: Tensor) -> Read:
    """What the router of a network reads of images."""
    if not net.spec.sizes:
        return read(net, net.enter(images))
    space, paths = net.space, compared(net)
    answers, pooled = dict[WidthPath, Tensor](), list[Tensor]()
    for size in range(net.spec.rows):
        mine = [path for path in paths if space.size_of(path) == size]
        if mine or net.early is not None:
            entered = net.enter(images, size)
            answers |= zip(mine, net.run_paths(entered, list(map(space.widths_of, mine)), size), strict=True)
            pooled += [] if net.early is None else [net.pooled_early(entered)]
    found = torch.stack([answers[path] for path in paths], 1)
    return Read(torch.cat(pooled, 1) if pooled else found.new_zeros(len(found), 0), found)


def maps_of(net: Supernet, seen: Read) -> Tensor:
    """What the early classifier reads [B * sizes, F]: a row for each image and image size."""
    return seen.seen.unflatten(1, (net.spec.rows, -1)).flatten(0, 1)


def exit_logits(net: Supernet, seen: Read) -> Tensor:
    """The logits of the early classifier [B, sizes, classes]."""
    assert net.early is not None
    return net.early.classifier.classify(maps_of(net, seen)).unflatten(0, (-1, net.spec.rows))


def scores_of(net: Supernet, seen: Read) -> tuple[Tensor, Tensor | None]:
    """Raw scores [B, R] of the candidates, and the logits of the early classifier if there is one, at the smallest
    image size.

    The scores do not send gradients into the early classifier.
    """
    if net.early is not None:
        logits = exit_logits(net, seen)[:, 0]
        return net.early_scores(logits.detach()), logits
    if net.probe is not None:
        return net.probe(seen.answers[:, 0]), None
    raw = net.chain[0].score(seen.seen, 0)
    assert raw is not None
    return raw, None


@dataclass(frozen=True)
class CachedBatches:
    """Batches of cached views, in place of `TrainBatches`. An epoch takes one view of every image, the next epoch the
    next one.

    Every process caches its own share of the images, and takes its part of every batch from it.

    Args:
        rows: Packed reads [views, images, F].
        labels: Classes [images].
        known: Positions of the images that could be read.
        skipped: Files that could not.
    """

    batches: TrainBatches
    rows: Tensor
    labels: Tensor
    known: Tensor
    skipped: tuple[str, ...] = ()

    @property
    def split(self) -> Split:
        return self.batches.split

    @property
    def batch_size(self) -> int:
        return self.batches.batch_size

    def __len__(self) -> int:
        return len(self.batches)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, beginning with batch number `start`. They depend on seed and epoch only."""
        batches = self.batches
        generator = torch.Generator().manual_seed(seed_of(batches.seed, epoch, batches.rank))
        size = batches.batch_size // batches.world
        order = torch.randperm(self.rows.shape[1], generator=generator)[: len(self) * size]
        offsets = torch.Generator().manual_seed(seed_of(batches.seed, batches.rank))
        view = (torch.randint(len(self.rows), (self.rows.shape[1],), generator=offsets) + epoch) % len(self.rows)
        ids = batches.split.ids[batches.rank :: batches.world]
        for number in range(start, len(self)):
            part = order[number * size : (number + 1) * size]
            part = part[self.known[part]]
            batch = Batch(self.rows[view[part], part], self.labels[part], ids[part], self.skipped)
            on_gpu = batches.device is not None and batches.device.type == "cuda"
            yield batch.pin_memory() if on_gpu else batch

    def reads(self, net: Supernet) -> Iterator[tuple[Read, Tensor]]:
        """All views in parts, with their labels."""
        for view in self.rows:
            for part in self.known.nonzero()[:, 0].split(16 * BATCH):
                yield unpacked(net, view[part]), self.labels[part]


def make_cache(
    net: Supernet,
    batches: TrainBatches,
    views: int,
    *,
    limit: float = 4.0,
    display: bool = True,
    folder: Path | None = None,
    about: str = "",
) -> CachedBatches:
    """Run the frozen network on augmented views of the images of this process. The views depend on the seed only.

    limit: Largest size in gigabytes. folder: Where features are kept for other routers on the same network. about: How
    images are read and augmented, which tells kept features apart.
    """
    if folder is None:
        return collect(
            net, batches, views, lambda images: rows_of(net, images, kept=False), limit=limit, display=display
        )
    file = folder / f"{digest_of(net, batches, views, about)}.safetensors"
    with one_at_a_time(file):  # of several trainings side by side, one makes the cache and the others wait for it
        if not file.exists():
            whole = collect(
                net, batches, views, lambda images: rows_of(net, images, kept=True), limit=limit, display=display
            )
            keep(file, whole)
    return kept(file, net, batches)


def rows_of(net: Supernet, images: Tensor, *, kept: bool) -> Tensor:
    """What a cache holds of images [B, F]: what the network's router reads. kept: For all routers with one decision, so
    with the pooled map, the first gate's code and the answers. With several image sizes, a router is trained only if it
    reads pooled maps."""
    if net.spec.sizes or not kept:
        return read_images(net, images).packed()
    entered = net.enter(images)
    pooled = GridPool(net.chain[0].first.entered, SIDE)(entered.x, 0)
    code = pooled[:, :0] if entered.code is None else entered.code
    answers = torch.stack(net.run_paths(entered, compared(net)), 1)
    return torch.cat([pooled, code, answers.flatten(1)], 1)


def digest_of(net: Supernet, batches: TrainBatches, views: int, about: str) -> str:
    """The name of a network's features: other weights, images, augmentation, seed or views give another name, and so
    does a gate that reads another code."""
    split, gate = batches.split, net.spec.gate
    found = hashlib.sha256(to_json(net.spec.layers).encode())
    if gate is not None and not gate.shared:
        found.update(b"a code of its own")
    found.update(repr((views, batches.seed, batches.rank, batches.world, compared(net), about)).encode())
    found.update(split.source.identity() + split.ids.numpy().tobytes())
    for name, tensor in sorted(net.state_dict().items()):
        if not of_router(name):
            found.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def keep(file: Path, cache: CachedBatches) -> None:
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    tensors = {"rows": cache.rows, "labels": cache.labels, "known": cache.known}
    safetensors.torch.save_file(tensors, part, {"skipped": json.dumps(cache.skipped)})
    part.replace(file)


def kept(file: Path, net: Supernet, batches: TrainBatches) -> CachedBatches:
    """The part of kept features that the router of a network reads."""
    with safetensors.safe_open(file, "pt") as held:
        rows, labels, known = (held.get_tensor(name) for name in ("rows", "labels", "known"))
        skipped = tuple(json.loads(held.metadata()["skipped"]))
    maps = net.spec.rows * net.chain[0].first.entered.max
    pooled, answers = SIDE**2 * maps, len(compared(net)) * net.spec.num_classes
    parts = rows.split([pooled, rows.shape[2] - pooled - answers, answers], 2)
    seen = parts[0] if net.early is not None else parts[1][..., :0] if net.probe is not None else parts[1]
    return CachedBatches(batches, torch.cat([seen, parts[2]], 2), labels, known, skipped)


@torch.no_grad()
def collect(
    net: Supernet,
    batches: TrainBatches,
    views: int,
    take: Callable[[Tensor], Tensor],
    *,
    limit: float,
    display: bool,
) -> CachedBatches:
    """Run the frozen network on views of the images, and take a row of numbers of each."""
    split, rank = batches.split, batches.rank
    ids = split.ids[rank :: batches.world]
    parts = list(ids.split(BATCH))
    jobs: list[Job] = [
        (part, seed_of(batches.seed, view, number, rank, 2))
        for view in range(views)
        for number, part in enumerate(parts)
    ]
    place = torch.full((int(ids.max()) + 1,), -1).index_put((ids,), torch.arange(len(ids)))
    device = next(net.parameters()).device
    rows: Tensor | None = None
    labels, known = torch.zeros(len(ids), dtype=torch.long), torch.zeros(len(ids), dtype=torch.bool)
    skipped: dict[str, None] = {}
    text = f"running the frozen network on {views} views of {len(ids):,} training images"
    with counting(text, views * len(ids), shown=display and rank == 0) as count:
        for number, batch in enumerate(load_all(split, jobs, batches.workers, device)):
            skipped |= dict.fromkeys(batch.skipped)
            if len(batch.images):
                found = take(placed(batch.images, device)).cpu()
                if rows is None:
                    check_size(views, len(ids), found.shape[1], limit, bytes_each=found.element_size())
                    rows = found.new_zeros(views, len(ids), found.shape[1])
                at = place[batch.ids]
                rows[number // len(parts), at] = found
                labels[at], known[at] = batch.labels.cpu(), True
            count(len(parts[number % len(parts)]))
    if rows is None:
        raise DataError("none of the training images could be read; see data.on_corrupt")
    return CachedBatches(batches, rows, labels, known, tuple(skipped))


def check_size(views: int, images: int, numbers: int, limit: float, *, bytes_each: int = 4) -> None:
    """Refuse a cache of so many numbers per image that needs more than `limit` gigabytes."""
    size = views * images * numbers * bytes_each / 1e9
    if size > limit:
        fewer = int(views * limit / size)
        remedy = f"take --sgs.cache {fewer}" if fewer else "run the network at every step, --sgs.cache 0"
        raise DataError(
            f"the cache of {views} views of {images:,} training images needs {size:.2g} GB of memory, more than "
            f"sgs.cache_limit {limit:g}; {remedy}, or raise the limit"
        )


@torch.no_grad()
def fresh_reads(net: Supernet, batches: Iterable[Batch]) -> Iterator[tuple[Read, Tensor]]:
    """The reads of images that are not cached, with their labels."""
    device = next(net.parameters()).device
    for batch in batches:
        if len(batch.images):
            yield read_images(net, placed(batch.images, device)), batch.labels.to(device)


def placed(images: Tensor, device: torch.device) -> Tensor:
    """Images on the device of the network, in the memory format in which depthwise convolutions are faster."""
    return images.to(device).contiguous(memory_format=torch.channels_last)


class Moments:
    """Mean and standard deviation of the columns of many arrays, over all processes."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None

    def add(self, values: Tensor) -> None:
        values = exact(values)
        count = values.new_full((1, values.shape[1]), len(values))
        sums = torch.cat([count, values.sum(0, keepdim=True), values.square().sum(0, keepdim=True)])
        self.sums = sums if self.sums is None else self.sums + sums

    def mean_std(self) -> tuple[Tensor, Tensor]:
        """A column that does not vary gets a standard deviation of 1."""
        assert self.sums is not None
        count, total, squares = distributed.total(self.sums)
        mean = total / count
        std = (squares / count - mean.square()).clamp_min(0).sqrt()
        return mean, torch.where(std > 1e-6, std, 1.0)
