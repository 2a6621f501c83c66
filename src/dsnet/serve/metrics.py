"""Figures of a running server: for Prometheus since its start, and for its page over the last seconds."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client import Counter as Count

from dsnet.serve.scheduler import Scheduler

WINDOW = 10.0  # seconds that the page looks back
KEPT = 20_000  # requests within the window that are kept
PATHS = 64  # paths with figures of their own; networks with several gates have thousands
TIMES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64)


@lru_cache(4096)
def labelled(metric: Any, *labels: str) -> Any:
    """The figure of some labels. prometheus_client takes long to find it."""
    return metric.labels(*labels)


@dataclass(frozen=True)
class Answered:
    """A request that was answered, or refused: when, by which model, and what it took."""

    at: float
    model: str
    seconds: float
    images: int
    share: float
    paths: tuple[str, ...]
    status: int


class Metrics:
    """Counts what the server does. All of it happens on the thread of the event loop."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.scheduler = clock, scheduler
        self.recent: deque[Answered] = deque(maxlen=KEPT)
        self.busy: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self.paths: set[tuple[str, str]] = set()
        self.registry = registry = CollectorRegistry()
        self.requests = Count("dsnet_requests", "Requests by status", ["model", "status"], registry=registry)
        self.images = Count("dsnet_images", "Images that ran", ["model"], registry=registry)
        self.taken = Count("dsnet_paths", "Images along each path", ["model", "path"], registry=registry)
        self.madds = Count("dsnet_madds", "MAdds that were spent", ["model"], registry=registry)
        self.seconds = Histogram(
            "dsnet_request_seconds", "Time of answered requests", ["model"], buckets=TIMES, registry=registry
        )
        self.batches = Histogram(
            "dsnet_batch_images", "Images that ran together", ["model"], buckets=SIZES, registry=registry
        )
        self.shares = Histogram(
            "dsnet_budget_share",
            "Budget of answered requests, as a share of the widest path",
            ["model"],
            buckets=[one / 10 for one in range(1, 11)],
            registry=registry,
        )
        waiting = Gauge("dsnet_queue_images", "Images that wait", registry=registry)
        waiting.set_function(lambda: sum(job.images for job in scheduler.queue))
        generosity = Gauge("dsnet_generosity", "1 gives what was asked, 0 the cheapest", registry=registry)
        generosity.set_function(lambda: scheduler.level(clock()))
        slower = Gauge("dsnet_slowdown", "Time of batches as a multiple of the measured time", registry=registry)
        slower.set_function(lambda: scheduler.pace(clock()))

    def ran(self, model: str, images: int, begun: float, madds: int, paths: Sequence[str]) -> None:
        """Count a batch. paths: The names of its images' paths."""
        self.busy.append((self.clock(), self.clock() - begun))
        labelled(self.images, model).inc(images)
        labelled(self.batches, model).observe(images)
        labelled(self.madds, model).inc(madds)
        for path, count in Counter(paths).items():
            known = (model, path) in self.paths or len(self.paths) < PATHS
            if known:
                self.paths.add((model, path))
            labelled(self.taken, model, path if known else "other").inc(count)

    def answered(self, model: str, status: int, seconds: float, share: float = 0.0, paths: Sequence[str] = ()) -> None:
        """Count a request. paths: The names of its images' paths."""
        labelled(self.requests, model, str(status)).inc()
        if status < 300:
            labelled(self.seconds, model).observe(seconds)
            labelled(self.shares, model).observe(share)
        self.recent.append(Answered(self.clock(), model, seconds, len(paths), share, tuple(paths), status))

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def live(self, workers: int) -> dict[str, Any]:
        """The figures of the last seconds."""
        now = self.clock()
        rows = [row for row in self.recent if row.at > now - WINDOW]
        span = now - rows[0].at if len(rows) == KEPT else WINDOW  # where more came than are kept
        good = [row for row in rows if row.status < 300]
        worked = sum(took for at, took in self.busy if at > now - WINDOW)
        p50, p99 = np.quantile([row.seconds for row in good], (0.5, 0.99)) if good else (0.0, 0.0)
        mix: dict[str, Counter[str]] = {}
        for row in good:
            mix.setdefault(row.model, Counter()).update(row.paths)
        return {
            "seconds": WINDOW,
            "requests_per_second": round(len(rows) / max(span, 1e-3), 1),
            "refused": sum(row.status == 503 for row in rows),
            "load": round(min(1.0, worked / WINDOW / workers), 3),
            "p50_ms": round(1e3 * float(p50), 2),
            "p99_ms": round(1e3 * float(p99), 2),
            "budget": round(float(np.mean([row.share for row in good])), 3) if good else None,
            "generosity": round(self.scheduler.level(now), 3),
            "queue": sum(job.images for job in self.scheduler.queue),
            "mix": {model: dict(counts.most_common(PATHS)) for model, counts in mix.items()},
        }
