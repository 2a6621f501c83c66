"""Decides which requests run next, together, and how wide. It knows no clock, no network and no protocol.

Requests wait in the order of their deadlines. Generosity is one number for all of them: 1 gives every request what it
asked for, 0 the cheapest that it accepts. It is the largest number at which every waiting request can still begin
early enough, so it falls as soon as the queue grows, and it rises again at a limited pace. A request is refused where
its deadline cannot be met even if all of them run as cheaply as they may.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

STEPS = 32  # generosity is a multiple of 1 / STEPS
PART = 0.4  # share of a request's spare time that it may be made to wait; the rest is for requests yet to come
RISE = 1.0  # seconds in which generosity rises from 0 to 1
LEARN = 0.1  # weight of the newest batch in the average pace
PACES = 0.25, 20.0  # limits of the pace
TRUST = 4.0  # limit of what a single batch may say about the pace, as a multiple of the average
FADE = 1.0  # seconds without a batch in which half of what was learned is forgotten


@dataclass(frozen=True, eq=False)
class Setting:
    """A way to run images, and what it is expected to take. Requests with the same setting run together.

    Args:
        key: What the caller knows it by.
        place: From 0, the cheapest way that this model runs, to 1, its best.
        first: Seconds of a single image.
        more: Seconds of each further image in a batch.
        most: Number of images that may run together. A request of more images runs alone.
    """

    key: Hashable
    place: float
    first: float
    more: float
    most: int = 1

    def seconds(self, images: int) -> float:
        return self.first + (images - 1) * self.more


@dataclass(eq=False)
class Job:
    """Images of one request that run together.

    Args:
        deadline: The time by which they must have run.
        settings: The ways in which they may run, cheapest first. A single one is pinned.
        extra: Seconds of what is to be done before they run, such as decoding.
    """

    images: int
    deadline: float
    settings: tuple[Setting, ...]
    extra: float = 0.0
    payload: Any = None

    def at(self, generosity: float) -> Setting:
        """The best way to run them at a generosity."""
        for setting in reversed(self.settings):
            if setting.place <= generosity:
                return setting
        return self.settings[0]


@dataclass(eq=False)
class Batch:
    """Jobs that a worker runs together, since when, and until when it is expected to."""

    setting: Setting
    jobs: list[Job]
    begun: float
    until: float = math.inf

    @property
    def images(self) -> int:
        return sum(job.images for job in self.jobs)

    @property
    def seconds(self) -> float:
        """What it takes at the pace of the measurements."""
        return self.setting.seconds(self.images) + sum(job.extra for job in self.jobs)


@dataclass
class Scheduler:
    """The queue of a server with some workers, each of which runs one batch at a time.

    learned: Seconds that batches took, as a multiple of what their settings say, and when that was learned.
    """

    workers: int = 1
    learned: tuple[float, float] = (1.0, -math.inf)
    queue: list[Job] = field(default_factory=list)
    running: list[Batch] = field(default_factory=list)
    risen: tuple[float, float] = (-math.inf, 1.0)  # when generosity was last set, and what it was

    def submit(self, job: Job, now: float) -> bool:
        """Take a job. False refuses it: with it, not all waiting jobs could meet their deadlines."""
        insort(self.queue, job, key=lambda one: one.deadline)
        if self.fits(self.queue, 0.0, now, 1.0):
            return True
        self.queue.remove(job)
        return False

    def cancel(self, job: Job) -> bool:
        """Forget a job that nobody waits for any more. False if it runs already, or ran."""
        if job not in self.queue:
            return False
        self.queue.remove(job)
        return True

    def late(self, now: float) -> list[Job]:
        """Take out the first jobs that cannot meet their deadlines any more."""
        found = []
        pace = self.pace(now)
        while self.queue and self.queue[0].deadline < now + pace * cheapest(self.queue[0]):
            found.append(self.queue.pop(0))
        return found

    def next(self, now: float) -> Batch | None:
        """The batch for a worker that is free; None if all are busy or nothing waits."""
        if not self.queue or len(self.running) >= self.workers:
            return None
        generosity = self.generosity(now)
        batch = self.batch(generosity, now, skips=True)
        others = [job for job in self.queue if job not in batch.jobs]
        self.running.append(batch)
        if not self.fits(others, 0.0, now, 1.0):  # those who were passed by would be late
            self.running.remove(batch)
            batch = self.batch(generosity, now, skips=False)
            others = [job for job in self.queue if job not in batch.jobs]
            self.running.append(batch)
        self.queue = others
        return batch

    def batch(self, generosity: float, now: float, *, skips: bool) -> Batch:
        """The first job and those that run at its setting, as many as do not make it late.

        skips: whether jobs with other settings may be passed by.
        """
        head, *others = self.queue
        batch = Batch(head.at(generosity), [head], now)
        pace = self.pace(now)
        for job in others if head.images < batch.setting.most else ():
            if job.at(generosity) != batch.setting:
                if not skips:
                    break
                continue
            batch.jobs.append(job)
            if batch.images > batch.setting.most or now + pace * batch.seconds > head.deadline:
                batch.jobs.pop()
                break
        batch.until = now + pace * batch.seconds
        return batch

    def finished(self, batch: Batch, now: float, *, learn: bool = True) -> None:
        """Free the worker of a batch, and learn how long it took."""
        self.running.remove(batch)
        if learn and batch.seconds > 0:
            before, (low, high) = self.pace(now), PACES
            seen = min((now - batch.begun) / batch.seconds, TRUST * before)
            self.learned = min(high, max(low, before + LEARN * (seen - before))), now

    def pace(self, now: float) -> float:
        """How much longer batches take than their settings say. What was learned fades while nothing runs: otherwise
        a server that was slow once, and therefore refuses everything, would never learn that it is quick again."""
        pace, then = self.learned
        return 1 + (pace - 1) * 0.5 ** (max(0.0, now - then) / FADE)

    def generosity(self, now: float) -> float:
        """The generosity of now, which is kept as the level from which it may rise."""
        limit = self.level(now)
        low, high = -1, int(limit * STEPS)
        if not self.fits(self.queue, high / STEPS, now, PART):
            while high - low > 1:
                middle = (low + high) // 2
                if self.fits(self.queue, middle / STEPS, now, PART):
                    low = middle
                else:
                    high = middle
            limit = max(low, 0) / STEPS
        self.risen = now, limit
        return int(limit * STEPS) / STEPS

    def level(self, now: float) -> float:
        """What generosity has risen to since it was last set."""
        then, before = self.risen
        return min(1.0, before + max(0.0, now - then) / RISE)

    def fits(self, jobs: Iterable[Job], generosity: float, now: float, part: float) -> bool:
        """Whether each of these jobs, in this order, waits for at most this part of the time that it can spare."""
        free, pace = self.free(now), self.pace(now)
        chosen: dict[int, Setting] = {}  # of jobs with the same settings; queues are long, and this runs often
        room: dict[Setting, int] = {}  # images that may still join the batch of a setting
        for job in jobs:
            setting = chosen.get(id(job.settings))
            if setting is None:
                setting = chosen[id(job.settings)] = job.at(generosity)
            runs = setting.first + (job.images - 1) * setting.more
            if setting.most > 1:
                if room.get(setting, 0) >= job.images:
                    runs = setting.more * job.images
                    room[setting] -= job.images
                else:
                    room[setting] = setting.most - job.images
            took, begin = pace * (job.extra + runs), free[0]
            if begin - now > part * (job.deadline - now - took) + 1e-9:
                return False
            heapq.heapreplace(free, begin + took)
        return True

    def free(self, now: float) -> list[float]:
        """When each worker is expected to be free, as a heap."""
        busy = [max(now, batch.until) for batch in self.running]
        return sorted([*busy, *[now] * (self.workers - len(busy))])

    def backlog(self, now: float) -> float:
        """Seconds until all that waits has run as cheaply as it may."""
        left = sum(max(0.0, batch.until - now) for batch in self.running)
        return (left + self.pace(now) * sum(map(cheapest, self.queue))) / self.workers


def cheapest(job: Job) -> float:
    """Seconds of a job at the least that it accepts."""
    return job.extra + job.settings[0].seconds(job.images)


def ordered(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Settings as a job takes them, cheapest first."""
    return tuple(sorted(settings, key=lambda setting: (setting.place, setting.first)))
