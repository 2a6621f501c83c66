"""A scheduler without a server: requests come at given times, and batches take as long as their settings say."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from dsnet.serve.scheduler import Job, Scheduler, Setting


@dataclass
class Outcome:
    """What became of the requests: those that were answered, with when and how, and those that were refused."""

    answered: list[tuple[Job, float, Setting]] = field(default_factory=list)
    refused: list[tuple[Job, float]] = field(default_factory=list)
    late: list[tuple[Job, float]] = field(default_factory=list)
    batches: list[list[Job]] = field(default_factory=list)

    @property
    def in_time(self) -> float:
        """Share of the requests that were answered by their deadlines."""
        good = sum(at <= job.deadline + 1e-9 for job, at, _ in self.answered)
        return good / (len(self.answered) + len(self.refused) + len(self.late))

    def place(self, since: float = 0.0, until: float = float("inf")) -> float:
        """The mean place of the settings in a span of time."""
        found = [setting.place for _, at, setting in self.answered if since <= at < until]
        return sum(found) / len(found)


def simulated(
    arrivals: Sequence[tuple[float, Job]],
    scheduler: Scheduler,
    *,
    slower: Callable[[Setting, float], float] = lambda setting, at: 1.0,
    check: Callable[[Scheduler, Job, float, bool], None] | None = None,
) -> Outcome:
    """Let the requests come and run. slower: factor of the time of a batch at a time. check: sees every submission."""
    found, number = Outcome(), count()
    events: list[tuple[float, int, object]] = [(at, next(number), job) for at, job in arrivals]
    heapq.heapify(events)
    while events:
        now, _, what = heapq.heappop(events)
        if isinstance(what, Job):
            taken = scheduler.submit(what, now)
            if not taken:
                found.refused.append((what, now))
            if check is not None:
                check(scheduler, what, now, taken)
        else:
            scheduler.finished(what, now)  # type: ignore[arg-type]
            found.answered += [(job, now, what.setting) for job in what.jobs]  # type: ignore[attr-defined]
            found.batches.append(what.jobs)  # type: ignore[attr-defined]
        found.late += [(job, now) for job in scheduler.late(now)]
        while (batch := scheduler.next(now)) is not None:
            heapq.heappush(events, (now + batch.seconds * slower(batch.setting, now), next(number), batch))
    return found


def ladder(
    levels: int = 8, low: float = 0.003, high: float = 0.01, most: int = 1, gain: float = 1.0
) -> tuple[Setting, ...]:
    """Settings from `low` to `high` seconds for an image."""
    places = [k / (levels - 1) if levels > 1 else 0.0 for k in range(levels)]
    times = [low + (high - low) * place for place in places]
    return tuple(Setting(k, place, t, gain * t, most) for k, (place, t) in enumerate(zip(places, times, strict=True)))


def poisson(
    rate: Callable[[float], float], seconds: float, make: Callable[[float], Job], seed: int = 0
) -> list[tuple[float, Job]]:
    """Requests at random times. rate: how many come per second at a time. make: the request that comes then."""
    rng, now, found = random.Random(seed), 0.0, list[tuple[float, Job]]()
    while (now := now + rng.expovariate(rate(now))) < seconds:
        found.append((now, make(now)))
    return found
