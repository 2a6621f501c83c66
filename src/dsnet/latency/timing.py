"""Timing. Candidates take turns, so that a disturbance of the machine affects all of them."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import numpy as np

from dsnet.results import Made, Times, made

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Call = Callable[..., Any]
Advance = Callable[[], None]
K = TypeVar("K")
TRIES = 5
STREAM = 16  # inputs that a call gets one after another before it is another call's turn
LEAD = 4  # untimed calls before them
LEAD_SECONDS = 0.02
REFRESH = 0.25  # seconds between drawings of the bar
EVERY = 15.0  # seconds between lines of progress where there is no terminal


def interleaved(
    calls: Mapping[K, Call],
    repeats: int,
    *,
    warmup: int = 2,
    inputs: Sequence[tuple[Any, ...]] = ((),),
    clock: Callable[..., float] | None = None,
    what: str = "",
) -> dict[K, list[float]]:
    """Time every call with every input, `repeats` times, and return seconds: first those of all inputs in their order,
    then those of the next repeat.

    A network in use finds its weights in the processor's cache, as the images before left them there. So each call in
    turn gets some inputs one after another, and before them those that precede them in the list, untimed: `LEAD` of
    them, or as many as `LEAD_SECONDS` take. With one input, that input comes again. The order of the calls is random
    and new in every turn. A call that the system interrupted for another program is timed again, up to `TRIES` times.

    clock: times one call; `seconds` by default. what: what is timed, if progress is to be shown.
    """
    clock = clock or seconds
    for call in calls.values():
        for _ in range(warmup):
            call(*inputs[0])
    times: dict[K, list[float]] = {key: [] for key in calls}
    order, rng = list(calls), random.Random(0)
    starts = range(0, len(inputs), STREAM)
    with progress(what, repeats * len(starts)) as advance:
        for _ in range(repeats):
            for start in starts:
                rng.shuffle(order)
                for key in order:
                    lead(calls[key], [inputs[(start - back) % len(inputs)] for back in range(LEAD, 0, -1)])
                    stream = inputs[start : start + STREAM]
                    times[key] += [undisturbed(clock, calls[key], *given) for given in stream]
                advance()
    return times


def lead(call: Call, inputs: Sequence[tuple[Any, ...]]) -> None:
    """Untimed calls, which leave the cache as it is in use."""
    begun = time.perf_counter()
    for given in inputs:
        call(*given)
        if time.perf_counter() - begun > LEAD_SECONDS:
            break


def undisturbed(clock: Callable[..., float], call: Call, *given: Any) -> float:
    """The time of a call during which no other program took the processor, if one of a few attempts succeeds."""
    for _ in range(TRIES):
        before = interruptions()
        took = clock(call, *given)
        if interruptions() == before:
            break
    return took


def interruptions() -> int:
    """How often the system took the processor from this process; 0 where that is not known."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def seconds(call: Call, *given: Any) -> float:
    """Time one call."""
    begun = time.perf_counter()
    call(*given)
    return time.perf_counter() - begun


@contextmanager
def progress(what: str, rounds: int) -> Iterator[Advance]:
    """Shows how many rounds were timed: a bar on a terminal, else a line now and then. Nothing without `what`."""
    if not what:
        yield lambda: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
        # It is drawn between rounds only: a thread that draws would disturb the calls.
        with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
            task, drawn = bar.add_task(what, total=rounds), 0.0

            def step() -> None:
                nonlocal drawn
                bar.advance(task)
                if time.monotonic() - drawn > REFRESH:
                    bar.refresh()
                    drawn = time.monotonic()

            yield step
    else:
        done, printed = 0, time.monotonic()

        def advance() -> None:
            nonlocal done, printed
            done += 1
            if time.monotonic() - printed >= EVERY:
                printed = time.monotonic()
                print(f"{what}: {done} of {rounds} rounds", file=sys.stderr, flush=True)

        yield advance


def ratio(times: Sequence[float], ideal: Sequence[float]) -> float:
    """Median ratio of a candidate's time to the ideal's in the same round. Slow phases of the machine cancel out."""
    return float(np.median(np.asarray(times) / np.asarray(ideal)))


def summary(times: Sequence[float]) -> Times:
    """Mean, median, 95th and 99th percentile in milliseconds."""
    ms = np.asarray(times) * 1e3
    return Times(float(ms.mean()), *(float(q) for q in np.quantile(ms, (0.5, 0.95, 0.99))))


def machine() -> Made:
    """The machine and the versions of the libraries that times were measured with."""
    found: dict[str, Any] = {}
    for name in ("torch", "onnxruntime"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return made(**found)
