"""Signals that stop a training, after its state was saved."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """A signal stopped the training, after its state was saved."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}, state saved; continue with --resume {folder}")
        self.number, self.exit_code = number, 128 + number


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of ending. A second signal of the same kind ends the process as usual."""
    caught: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    try:
        for number in SIGNALS:
            before[number] = signal.signal(number, note)
    except ValueError:  # only the main thread may handle signals
        before.clear()
    try:
        yield caught
    finally:
        for caught_number, handler in before.items():
            signal.signal(caught_number, handler)
