"""Files that are wrong in many ways, and a judge of how they are received. All of it follows from a seed.

A file may be accepted, or refused with one line. Anything else breaks the law: another exception, a message of many
lines, more than a few seconds, or a large amount of memory.
"""

from __future__ import annotations

import copy
import json
import random
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

SECONDS = 5  # of CPU time that one file may take
MEGABYTES = 1500  # that all files together may add to the memory of the process
REFUSALS = (ValueError, OSError, ImportError)  # what the command line shows as one line
LONGEST = 1500  # characters of a refusal


class HangError(BaseException):
    """A file takes too long. It is no Exception, so that nothing catches it."""


@dataclass
class Verdict:
    """How many files were accepted and refused, and what broke the law."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def trials(self) -> int:
        return self.counts.total()


def judge(cases: Iterator[Callable[[], object]]) -> Verdict:
    """Try every case, one after another."""
    verdict = Verdict()
    before = signal.signal(signal.SIGVTALRM, hang)
    start = memory()
    try:
        for number, case in enumerate(cases):
            found = received(case)
            kind = found.partition(":")[0]
            verdict.counts[kind if kind in ("accepted", "refused") else "broken"] += 1
            if kind not in ("accepted", "refused"):
                verdict.broken.append(f"case {number}: {found}")
            elif kind == "refused":
                verdict.reasons[found[9:60]] += 1
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    if (grown := memory() - start) > MEGABYTES:
        verdict.broken.append(f"memory grew by {grown} MB")
    return verdict


def received(case: Callable[[], object]) -> str:
    """What becomes of a file: "accepted", "refused: why", or what broke the law."""
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries warn about what they then refuse
            case()
    except REFUSALS as error:
        text = str(error)
        good = "\n" not in text.strip() and 0 < len(text) <= LONGEST
        return f"refused: {text}" if good else f"a refusal of {len(text)} characters: {text[:300]!r}"
    except HangError:
        return f"more than {SECONDS} seconds"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return "accepted"


def hang(*_: object) -> None:
    raise HangError


def memory() -> int:
    """The most memory that this process has taken so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 2**20 if sys.platform == "darwin" else peak // 2**10


# Bytes


def garbled(data: bytes, rng: random.Random) -> bytes:
    """Bytes with one to four things wrong: flipped, cut, repeated, swapped, or numbers that are too large."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = rng.randrange(len(changed) + 1) if rng.random() < 0.5 else rng.randrange(min(64, len(changed)) + 1)
        size = rng.choice((1, 2, 4, 8, rng.randint(1, 200)))
        match rng.randrange(8):
            case 0 | 7 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place:]
            case 2:
                del changed[place : place + size]
            case 3:
                changed[place:place] = changed[max(0, place - size) : place] * rng.choice((1, 2, 50))
            case 4:
                changed[place : place + size] = rng.randbytes(size)
            case 5:
                changed[place : place + size] = rng.choice((b"\xff", b"\0", b"\x7f", b"[", b"\x80")) * size
            case _:
                other = rng.randrange(len(changed) + 1)
                changed[place : place + size], changed[other : other + size] = (
                    changed[other : other + size],
                    changed[place : place + size],
                )
    return bytes(changed)


# Trees of JSON and YAML


def nest(depth: int) -> Any:
    tree: Any = 0
    for _ in range(depth):
        tree = [tree]
    return tree


def wrong_values(rng: random.Random) -> Any:
    """A value that does not belong where it is put."""
    return rng.choice(
        (
            None,
            True,
            -1,
            0,
            1,
            2,
            7,
            rng.randint(-5, 300),
            1_000_000,
            2**31,
            10**12,
            2**63 - 1,
            2**63,
            10**30,
            10**4000,
            0.5,
            -0.5,
            1e-300,
            1e308,
            float("nan"),
            float("inf"),
            float("-inf"),
            "",
            "x",
            "1",
            "exit",
            "\n\0\u202e",
            "a" * 5000,
            "9" * 5000,
            [],
            {},
            [[]],
            [0, 1],
            [1.5],
            [0] * 3000,
            {"a": 1},
            {"": {}},
            nest(rng.choice((5, 200))),
        )
    )


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every container of a tree with each of its keys."""
    found, rest = [], [tree]
    while rest:
        here = rest.pop()
        keys: Any = here.keys() if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
        for key in keys:
            found.append((here, key))
            rest.append(here[key])
    return found


def mangled(tree: Any, rng: random.Random) -> Any:
    """A tree with one to three things wrong: values replaced, left out, repeated, moved, or under another key."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.02 or not (known := places(tree)):
            return wrong_values(rng)
        # Small trees first: most values of a large file are alike.
        here, key = rng.choice(known if rng.random() < 0.5 else known[: max(1, len(known) // 8)])
        match rng.randrange(6):
            case 0:
                del here[key]
            case 1:
                other, at = rng.choice(known)
                if at in other if isinstance(other, dict) else at < len(other):
                    here[key] = copy.deepcopy(other[at])
            case 2 if isinstance(here, list):
                here[key:key] = [copy.deepcopy(here[key])] * rng.choice((1, 3, 2000))
            case 2 | 3 if isinstance(here, dict):
                here[rng.choice(("", "x", "task", str(key) + " ", "a" * 300))] = here.pop(key)
            case 4 if isinstance(here[key], int | float) and abs(here[key]) < 10**30:
                here[key] = here[key] * rng.choice((-1, 2, 1000, 10**6, 0.5)) + rng.choice((0, 1, -1))
            case _:
                here[key] = wrong_values(rng)
    return tree


def written(tree: Any) -> str:
    """A tree as JSON, however large its numbers are."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(tree)
    finally:
        sys.set_int_max_str_digits(limit)
