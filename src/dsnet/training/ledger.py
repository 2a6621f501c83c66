"""What steps leave on the device until the host reads it: losses, what was not finite, and signals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsnet.models.devices import SINGLE, exact
from dsnet.training import distributed
from dsnet.training.interruption import SIGNALS

NEVER = -1


@dataclass(frozen=True)
class Entry:
    """What the host reads.

    Args:
        sums: Sums of the losses, averaged over processes.
        bad_loss: Step and name of the first loss that was not finite; None if all were.
        bad_gradient: First step whose gradient was not finite, or NEVER.
        skips: Number of such steps in a row, up to the last one.
        signal: Number of a signal that some process caught, or 0.
    """

    sums: dict[str, float]
    bad_loss: tuple[int, str] | None
    bad_gradient: int
    skips: int
    signal: int


class Ledger:
    """Collects what steps tell. Nothing here waits for the device, except `read`.

    One reduction in every step tells all processes of each other's losses and signals. On a GPU it runs behind the
    step's other work.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cpu") if device.type in SINGLE else device  # of sums in double precision
        self.begin({}, 0)

    def begin(self, sums: dict[str, float], skips: int) -> None:
        """Go on from sums of earlier steps and a number of skipped steps in a row."""
        self.names = tuple(sums)
        self.sums = self.filled(list(sums.values()))
        self.bad = self.filled([NEVER] * len(sums))  # the first step at which each loss was not finite
        self.first, self.skips = self.filled([NEVER, skips])
        self.flags, self.unset = self.filled([0] * len(SIGNALS)), self.filled([0] * len(SIGNALS))

    def filled(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(self.device)

    def note(self, losses: dict[str, Tensor], step: int, caught: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Add the losses of a step and the signals that this process caught. Returns the means of the losses over all
        processes, and whether any is not finite."""
        if not self.names:
            skips = self.skips
            self.begin(dict.fromkeys(losses, 0.0), 0)
            self.skips = skips
        local = torch.stack([exact(loss) for loss in losses.values()])
        flags = self.filled([float(number in caught) for number in SIGNALS]) if caught else self.unset
        told = torch.cat([torch.nan_to_num(local), (~local.isfinite()).double(), flags])
        means, bad, flags = distributed.total(told).split([len(losses), len(losses), len(SIGNALS)])
        means = means / distributed.world()
        self.sums = self.sums + means
        self.bad = torch.where((bad > 0) & (self.bad == NEVER), step, self.bad)
        self.flags = self.flags + flags
        return means, bad.any()

    def judge(self, finite: Tensor, step: int) -> None:
        """Note whether the gradient of a step is finite."""
        finite = finite.to(self.device)
        self.first = torch.where(finite | (self.first != NEVER), self.first, step)
        self.skips = torch.where(finite, 0, self.skips + 1)

    def read(self) -> Entry:
        """Everything so far, in one copy from the device. A bad gradient is told once."""
        count = len(self.names)
        values = torch.cat([self.sums, self.bad, torch.stack([self.first, self.skips]), self.flags]).tolist()
        sums, bad, (first, skips, *flags) = values[:count], values[count : 2 * count], values[2 * count :]
        found = [(int(step), name) for name, step in zip(self.names, bad, strict=True) if step != NEVER]
        if first != NEVER:
            self.first = torch.full_like(self.first, NEVER)
        return Entry(
            sums=dict(zip(self.names, sums, strict=True)),
            bad_loss=min(found, key=lambda one: one[0], default=None),
            bad_gradient=int(first),
            skips=int(skips),
            signal=next((int(number) for number, flag in zip(SIGNALS, flags, strict=True) if flag), 0),
        )
