"""Runs requests on worker threads in the order of the scheduler. The event loop only ever waits.

Everything here happens on the event loop's thread, except `Engine.keep_working` and what it calls. A lock guards the
scheduler.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dsnet.latency import cores
from dsnet.pictures import batch_of
from dsnet.routing.parts import Routed, as_array
from dsnet.serve.ladder import Level
from dsnet.serve.limits import Limits, Refusal
from dsnet.serve.metrics import Metrics
from dsnet.serve.model import Ask, Model
from dsnet.serve.scheduler import Batch, Job, Scheduler

PIECE = 8  # images of a request that run together; a larger request is cut, so that all workers share it
REPLY = 0.002  # seconds that are kept for sending the answer, at least
BEAT = 0.01  # seconds between looks at how late the event loop is
HOPS = 4  # how often a request waits for the event loop: to be read, begun, answered and sent
BEATS = 3  # looks of which most must find it late; a single one says only that the machine stalled
BUSY = 0.4  # share of a core that an event loop uses which cannot keep up; one worker may have half of the same core
LATE = 0.5  # share of the deadline that the event loop may take before requests are refused unread
LEARN = 0.1  # weight of the newest batch in averages
PER_BYTE = 3e-8  # seconds of decoding for each byte of a picture, until some were decoded
Ready = np.ndarray | list[np.ndarray]
log = logging.getLogger("dsnet.serve")


class Coded(Protocol):
    """A picture that a worker decodes: its number of bytes, and the network's input."""

    def __len__(self) -> int: ...

    def decoded(self) -> np.ndarray: ...


Inputs = np.ndarray | Sequence[np.ndarray | Coded]
"""A batch [B, C, S, S], or pictures: encoded, or as the pixels that a raw file takes."""


@dataclass
class Part:
    """Some images of a request, and the future of their answer."""

    model: Model
    inputs: Inputs
    future: asyncio.Future[Served]

    @property
    def bytes(self) -> int:
        """Bytes to decode."""
        if isinstance(self.inputs, np.ndarray):
            return 0
        return sum(len(one) for one in self.inputs if not isinstance(one, np.ndarray))

    def ready(self) -> Ready:
        """The images as the runner takes them. Pictures are decoded; pixels that are not finite are an error."""
        if isinstance(self.inputs, np.ndarray):
            self.model.runner.check_input(self.inputs)  # or one bad job would fail the others of its batch
            return self.inputs
        pictures = [one if isinstance(one, np.ndarray) else one.decoded() for one in self.inputs]
        return batch_of(pictures, self.model.manifest)


@dataclass(frozen=True)
class Served:
    """The answer for some images: outputs and paths, the budgets at which they ran, and seconds in the network."""

    routed: Routed
    share: float
    level: str
    seconds: float


@dataclass
class Worked:
    """What a worker did for a batch: an answer or an error for each job, the seconds of decoding, and when it ended."""

    results: list[Served | Exception] = field(default_factory=list)
    decoding: float = 0.0
    ended: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether all jobs were answered; what failed says nothing about times."""
        return all(isinstance(result, Served) for result in self.results)


class Engine:
    """The queue of a server, its workers, and its models by name."""

    def __init__(self, models: dict[str, Model], *, workers: int = 0, limits: Limits | None = None) -> None:
        self.models, self.limits, self.workers = models, limits or Limits(), workers or cores()
        self.scheduler = Scheduler(self.workers)
        self.metrics = Metrics(self.scheduler)
        self.lock = threading.Lock()
        self.pool = ThreadPoolExecutor(self.workers, thread_name_prefix="dsnet-worker")
        self.clock = time.monotonic
        self.per_byte, self.beats = PER_BYTE, deque([0.0] * BEATS, BEATS)
        self.busy_share = 0.0  # share of a core that the event loop uses
        self.answering = 0  # requests that are being answered

    async def run(
        self,
        model: Model,
        inputs: Inputs,
        ask: Ask,
        *,
        began: float,
        deadline_ms: float | None = None,
    ) -> Served:
        """Run the images of a request, or raise a Refusal. If it is cancelled, what has not begun is dropped."""
        try:
            settings = model.settings(ask)
        except ValueError as error:
            raise Refusal(400, str(error)) from None
        waiting = sum(job.images for job in self.scheduler.queue)
        if waiting + len(inputs) > self.limits.queue:
            raise self.busy(f"{waiting} images wait, and {len(inputs)} more exceed the limit of {self.limits.queue}")
        wait = (deadline_ms or self.limits.deadline_ms) / 1e3
        deadline = began + wait - min(REPLY + HOPS * self.lag, LATE * wait)
        loop, jobs, parts = asyncio.get_running_loop(), list[Job](), list[Part]()
        try:
            for start in range(0, len(inputs), PIECE):
                part = Part(model, inputs[start : start + PIECE], loop.create_future())
                extra = self.per_byte * part.bytes
                job = Job(len(part.inputs), deadline, settings, extra=extra, payload=part)
                with self.lock:
                    fits = self.scheduler.submit(job, self.clock())
                if not fits:
                    raise self.busy(f"the deadline of {1e3 * wait:g} ms cannot be met, even at the lowest budget")
                jobs.append(job)
                parts.append(part)
            self.pump()
            return joined([await part.future for part in parts])
        finally:
            for job, part in zip(jobs, parts, strict=True):
                if part.future.cancel() or part.future.cancelled():  # whoever asked has gone, or another part failed
                    with self.lock:
                        self.scheduler.cancel(job)
                else:
                    part.future.exception()  # has been seen

    async def beat(self) -> None:
        """Measure how late and how busy the event loop is, for as long as the server runs."""
        while True:
            begun, spent = self.clock(), time.thread_time()
            await asyncio.sleep(BEAT)
            took = self.clock() - begun
            self.beats.append(max(0.0, took - BEAT))
            self.busy_share += LEARN * ((time.thread_time() - spent) / took - self.busy_share)

    @property
    def lag(self) -> float:
        """Seconds that the event loop is late."""
        return sorted(self.beats)[BEATS // 2]

    def check_crowd(self) -> None:
        """Refuse a request before it is read, if the event loop is so busy with requests that it makes them late. A
        server that reads all of them has no time left to answer any."""
        if self.busy_share > BUSY and HOPS * self.lag > LATE * self.limits.deadline_ms / 1e3:
            raise self.busy(f"the server is {1e3 * self.lag:.0f} ms late with reading requests")

    def busy(self, why: str) -> Refusal:
        seconds = max(1, math.ceil(self.scheduler.backlog(self.clock())))
        return Refusal(503, f"{why}; try again in {seconds} s", {"Retry-After": str(seconds)})

    def pump(self) -> None:
        """Give batches to the workers that are free."""
        loop = asyncio.get_running_loop()
        while (batch := self.next(loop)) is not None:
            self.pool.submit(self.keep_working, loop, batch)

    def next(self, loop: asyncio.AbstractEventLoop) -> Batch | None:
        """The batch for a free worker. What is late is refused."""
        with self.lock:
            now = self.clock()
            late, batch = self.scheduler.late(now), self.scheduler.next(now)
        for job in late:
            refusal = self.busy("the deadline cannot be met any more, even at the lowest budget")
            loop.call_soon_threadsafe(settle, job.payload.future, refusal)
        return batch

    def keep_working(self, loop: asyncio.AbstractEventLoop, batch: Batch | None) -> None:
        """Run a batch and those that wait after it, on a worker's thread. It does not ask the event loop for the next
        one: a loop that is busy refusing requests would keep it waiting."""
        try:
            while batch is not None:
                worked = self.worked(batch)
                with self.lock:
                    self.scheduler.finished(batch, worked.ended, learn=worked.whole)
                loop.call_soon_threadsafe(self.done, batch, worked)
                batch = self.next(loop)
        except Exception:
            if not loop.is_closed():  # or the server has ended, and nobody waits
                log.exception("a worker failed")

    def done(self, batch: Batch, worked: Worked) -> None:
        """Hand out the answers of a batch."""
        good = [result.routed for result in worked.results if isinstance(result, Served)]
        model: Model = batch.jobs[0].payload.model
        coded = sum(job.payload.bytes for job in batch.jobs)
        if coded and worked.whole:
            self.per_byte += LEARN * (worked.decoding / coded / self.scheduler.pace(self.clock()) - self.per_byte)
        for job, result in zip(batch.jobs, worked.results, strict=True):
            settle(job.payload.future, result)
        if good:
            paths = [name for routed in good for name in model.names_of(routed)]
            madds = sum(int(as_array(routed.madds).sum()) for routed in good)
            self.metrics.ran(model.name, len(paths), batch.begun, madds, paths)

    def worked(self, batch: Batch) -> Worked:
        """What a worker did for a batch. If it ran out of memory, or was about to end, its requests are refused."""
        lost = Refusal(503, "the worker that ran this request failed; try again", {"Retry-After": "1"})
        try:
            found = self.work(batch)
            found.results = [lost if isinstance(one, MemoryError) else one for one in found.results]
            return found
        except BaseException as error:
            log.error("a worker failed: %r", error)
            return Worked([lost] * len(batch.jobs), ended=self.clock())

    def work(self, batch: Batch) -> Worked:
        """Decode and run a batch, on a worker's thread. It raises nothing."""
        found, ready, worked = dict[Job, Served | Exception](), dict[Job, Ready](), Worked()
        begun = time.perf_counter()
        for job in batch.jobs:
            part: Part = job.payload
            if part.future.cancelled():
                found[job] = Refusal(499, "the client is gone")
                continue
            try:
                ready[job] = part.ready()
            except Exception as error:
                found[job] = error
        worked.decoding = time.perf_counter() - begun
        try:
            found |= zip(ready, self.run_jobs(batch, ready), strict=True)
        except Exception as error:  # perhaps of one job only, which must not fail the others
            several = len(ready) > 1
            found |= {job: self.alone(batch, job, mine) if several else error for job, mine in ready.items()}
        worked.results = [found[job] for job in batch.jobs]
        worked.ended = self.clock()
        return worked

    def alone(self, batch: Batch, job: Job, mine: Ready) -> Served | Exception:
        try:
            return self.run_jobs(batch, {job: mine})[0]
        except Exception as error:
            return error

    def run_jobs(self, batch: Batch, ready: dict[Job, Ready]) -> list[Served]:
        if not ready:
            return []
        model, level = next(iter(ready)).payload.model, batch.setting.key
        assert isinstance(level, Level)
        begun = time.perf_counter()
        routed = level.run(model.runner, together(list(ready.values())))
        seconds, found, low = time.perf_counter() - begun, list[Served](), 0
        for job in ready:
            rows = slice(low, low + job.images)
            found.append(Served(rows_of(routed, rows), level.share, level.name, seconds))
            low += job.images
        return found

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


def settle(future: asyncio.Future[Any], result: object) -> None:
    """Give a future its result, unless nobody waits for it any more."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def together(found: Sequence[Ready]) -> Ready:
    """The images of several jobs. Those of one are not copied."""
    if len(found) == 1:
        return found[0]
    if isinstance(found[0], list):
        return [picture for pictures in found for picture in pictures]
    return np.concatenate(found)


def rows_of(routed: Routed, rows: slice) -> Routed:
    outputs = {name: as_array(value)[rows] for name, value in routed.outputs.items()}
    return Routed(outputs, as_array(routed.paths)[rows], as_array(routed.madds)[rows], [])


def joined(parts: Sequence[Served]) -> Served:
    """The answers for the parts of a request as one. Its budget is the average of theirs."""
    if len(parts) == 1:
        return parts[0]
    outputs = {name: np.concatenate([part.routed.outputs[name] for part in parts]) for name in parts[0].routed.outputs}
    paths, madds = (np.concatenate([getattr(part.routed, name) for part in parts]) for name in ("paths", "madds"))
    counts = [len(part.routed.madds) for part in parts]
    share = float(np.average([part.share for part in parts], weights=counts))
    levels = dict.fromkeys(part.level for part in parts)
    seconds = sum(part.seconds for part in parts)
    return Served(Routed(outputs, paths, madds, []), share, ", ".join(levels), seconds)
