"""How processes that torchrun started several times meet in its one store."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from dsnet.training.distributed import met


def come(store: dist.Store, rank: int, wait: float) -> dist.Store:
    """A process that arrives after `wait` seconds."""
    time.sleep(wait)
    return met(store, rank, int(store.get("size")), timedelta(seconds=20))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_processes_meet_in_a_part_of_the_store_that_earlier_ones_never_used(size: int) -> None:
    """Some processes of earlier starts came and died. Those of the last start come in any order and at any time."""
    draw = random.Random(size)
    for _ in range(4):
        store = dist.HashStore()
        store.set("size", str(size))
        for _ in range(draw.randrange(3)):
            for rank in draw.sample(range(size), draw.randint(1, size)):
                with pytest.raises(RuntimeError, match=f"not all {size} were there"):
                    met(store, rank, size, timedelta(0))
        with ThreadPoolExecutor(size) as pool:
            for start in range(2):
                waits = [draw.random() / 10 for _ in range(size)]
                parts = list(pool.map(come, [store] * size, range(size), waits))
                assert not parts[0].check(["address"])
                parts[0].set("address", str(start))
                assert all(part.get("address") == str(start).encode() for part in parts)


def test_a_process_that_never_comes_ends_the_others_waiting() -> None:
    with pytest.raises(RuntimeError, match=r"not all 2 were there after 0\.1 s"):
        met(dist.HashStore(), 0, 2, timedelta(seconds=0.1))
