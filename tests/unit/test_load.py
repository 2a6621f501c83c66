"""The load generator of benchmarks/serving.py."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest

from dsnet.routers import RouterSpec
from dsnet.routing.parts import Routed
from dsnet.serve import protocol
from dsnet.serve.limits import Limits
from support.benchmarks import benchmark
from support.networks import calibrated

load = benchmark("load")
ASKED = load.Question(b"", (1, 1))


def reply(at: float, done: float = math.inf, status: int = 0, **more: object) -> object:
    return load.Reply(ASKED, at, at, done, status, **more)


def test_requests_come_at_the_rate_of_each_span() -> None:
    spans = [(4.0, 100.0), (2.0, 900.0), (1.0, 0.0), (4.0, 100.0)]
    times = np.array(load.arrivals(spans, seed=3))
    assert (np.diff(times) > 0).all()
    begin = 0.0
    for seconds, rate in spans:
        here = ((times >= begin) & (times < begin + seconds)).sum()
        assert abs(here - rate * seconds) <= 4 * math.sqrt(rate * seconds)
        begin += seconds
    assert load.arrivals(spans, seed=3) == times.tolist()
    assert load.arrivals(spans, seed=4) != times.tolist()
    assert len(load.arrivals(spans, most=50)) == 50


def test_bursts_alternate_with_rest() -> None:
    spans = load.bursts(30, 10, 40, seed=1)
    assert sum(seconds for seconds, _ in spans) >= 30
    assert [rate for _, rate in spans] == [10, *[40, 10] * (len(spans) // 2)]
    assert all(seconds >= 2 for seconds, rate in spans if rate == 10)  # long enough to see the recovery
    assert spans != load.bursts(30, 10, 40, seed=2)


def test_the_server_reads_the_requests_and_the_generator_reads_the_answers() -> None:
    manifest = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).float().manifest()
    x = np.random.default_rng(0).normal(size=(3, 3, 32, 32)).astype(np.float32)
    head, _, body = load.infer_request("net", x, {"budget": 0.5, "deadline_ms": 70}).partition(b"\r\n\r\n")
    names = dict(line.split(b": ") for line in head.split(b"\r\n")[1:])
    assert int(names[b"Content-Length"]) == len(body)
    asked = protocol.parse(body, names[load.LENGTH].decode(), manifest, Limits())
    np.testing.assert_array_equal(asked.images, x)
    assert (asked.ask.budget, asked.deadline_ms) == (0.5, 70)

    logits = np.eye(10, dtype=np.float32)[[4, 2, 9]]
    routed = Routed({"logits": logits}, np.zeros((3, 1), np.int64), np.array([5, 6, 7]), [])
    said, headers = protocol.answer("net", asked, routed, manifest, {"budget": 0.25})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    one = load.Reply(load.Question(b"", (4, 3, 9)), 0.0)
    one.read(f"HTTP/1.1 200 OK\r\n{lines}\r\n".encode(), said)
    assert (one.status, one.right, one.madds, one.budget) == (200, 2, (5, 6, 7), 0.25)
    one.read(b"HTTP/1.1 503 Service Unavailable\r\n\r\n", b"")
    assert one.status == 503


def test_what_is_late_refused_or_lost_is_wrong() -> None:
    replies = [
        reply(0.0, 0.05, 200, right=2, madds=(50, 100)),
        reply(0.1, 0.25, 200, right=2, madds=(100, 100)),
        reply(0.2, 0.21, 503),
        reply(0.3),
    ]
    figures = load.summed(replies, 0.1, 100)
    assert [figures[key] for key in ("in time", "accuracy", "refused", "late", "failed")] == [0.25] * 5
    assert figures["mean width"] == 0.875
    assert figures["p50 ms"] == pytest.approx(100)


def test_recovery_ends_where_a_whole_window_has_the_full_budget() -> None:
    spans = [(2.0, 10.0), (1.0, 50.0), (3.0, 10.0), (1.0, 50.0), (2.0, 10.0)]
    low = {3.0, 3.1, 3.2, 3.5, 3.9, 7.0, 7.6}
    times = np.arange(0, 9, 0.1).round(1)
    replies = [reply(at, at, 200, budget=0.5 if at in low else 1.0) for at in times]
    first, second = load.recoveries(replies, spans, 1.0)
    assert (first, second) == (pytest.approx(0.2), pytest.approx(0.0))
    assert load.recoveries([reply(at, at, 503) for at in times], spans, 1.0) == [math.inf, math.inf]


def test_an_open_load_does_not_wait_for_answers() -> None:
    """The server answers the first connection never, others at once. All requests are sent at their times."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readexactly(4) == b"fine":
            writer.write(b"HTTP/1.1 503 Busy\r\ncontent-le")
            await asyncio.sleep(0)
            writer.write(b"ngth: 2\r\n\r\nno")

    async def tried() -> list[object]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            asked = [load.Question(b"lost", (0,)), *[load.Question(b"fine", (0,))] * 39]
            replies: list[object] = await load.send(port, asked, [0.002 * number for number in range(40)])
            return replies
        finally:
            server.close()

    load.AFTER = 0.2
    lost, *others = asyncio.run(tried())
    assert (lost.status, lost.done) == (0, math.inf)
    assert [one.status for one in others] == [503] * 39
    assert all(one.at <= one.sent <= one.done for one in others)
