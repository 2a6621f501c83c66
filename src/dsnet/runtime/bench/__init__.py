"""Honest milliseconds."""

from dsnet.runtime.bench.candidates import RUNTIMES, Artefacts
from dsnet.runtime.bench.routed import Operating, bench_routed
from dsnet.runtime.bench.table1 import table1
from dsnet.runtime.bench.widths import BenchConfig, bench, bench_file, machine

__all__ = [
    "RUNTIMES",
    "Artefacts",
    "BenchConfig",
    "Operating",
    "bench",
    "bench_file",
    "bench_routed",
    "machine",
    "table1",
]
