"""Inserts, draws and updates a second, by 1 to 8 threads and processes at once.

Rivals and numbers of workers take turns, window by window (workers.py), so that whatever the
machine does meanwhile, it does to all of them; a figure is the median of its windows.  Unlike in
the other benchmarks no core is pinned, and the clock is the one on the wall.

A job is what each worker repeats.  "learn" is a DQN's share of work in one update: as many new
rows as are trained on once or 64 times each (256 or 4, for a batch of 256), a draw, and the
update of its priorities.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import NamedTuple

import numpy as np
import pytest
import rivals_shared
from pytest_benchmark.fixture import BenchmarkFixture
from rivals_shared import Buffer, Columns, Rows
from workers import Pace, Processes, Step, Threads

CAPACITY = 2**20
WIDE_CAPACITY = 2**17
WORKERS = 1, 2, 4, 8
ROUNDS = 5
BATCH = 256
SUPPLY = 64  # different arguments that a worker has ready

NARROW: Columns = {
    "obs": ((17,), np.float32),
    "action": ((6,), np.float32),
    "reward": ((), np.float32),
    "next_obs": ((17,), np.float32),
    "done": ((), np.bool_),
}
WIDE: Columns = NARROW | {"obs": ((128,), np.float32), "next_obs": ((128,), np.float32)}

Crew = Threads | Processes


class Job(NamedTuple):
    """`adds` calls with `rows` rows each, then a batch is drawn, and updated."""

    rows: int = 0
    adds: int = 0
    draws: bool = False
    updates: bool = False

    def step(self, buffers: list[Buffer], columns: Columns, worker: int) -> Step:
        """What one worker repeats, each time with the next of its arguments."""
        buffer = buffers[worker]
        rng = np.random.default_rng(worker)
        supply = cycle([random_rows(rng, self.rows, columns) for _ in range(SUPPLY)])
        errors = cycle([rng.random(BATCH) for _ in range(SUPPLY)])
        drawn = cycle([buffer.sample(BATCH) for _ in range(SUPPLY)])

        def step() -> None:
            for _ in range(self.adds):
                buffer.add(next(supply))
            batch = buffer.sample(BATCH) if self.draws else next(drawn)
            if self.updates:
                buffer.update(batch, next(errors))

        return step


NARROW_JOBS = {
    # First: its rows were drawn beforehand, and inserts would overwrite them.
    "update 256": Job(updates=True),
    "draw 256": Job(draws=True),
    "insert 1 row": Job(rows=1, adds=1),
    "insert 16 rows": Job(rows=16, adds=1),
    "learn: 4 inserts of 1 row": Job(rows=1, adds=4, draws=True, updates=True),
    "learn: 16 inserts of 16 rows": Job(rows=16, adds=16, draws=True, updates=True),
}
WIDE_JOBS = {
    "insert 1 row of 1 KB": Job(rows=1, adds=1),
    "insert 16 rows of 1 KB": Job(rows=16, adds=1),
}


@pytest.fixture
def all_cores() -> Iterator[None]:
    """Undoes what conftest.py does for the benchmarks of one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def bench_narrow(benchmark: BenchmarkFixture, all_cores: None, kind: str) -> None:
    _compare(benchmark, kind, CAPACITY, NARROW, NARROW_JOBS)


@pytest.mark.parametrize("kind", ["threads", "processes"])
def bench_wide(benchmark: BenchmarkFixture, all_cores: None, kind: str) -> None:
    _compare(benchmark, kind, WIDE_CAPACITY, WIDE, WIDE_JOBS)


def _compare(
    benchmark: BenchmarkFixture, kind: str, capacity: int, columns: Columns, jobs: dict[str, Job]
) -> None:
    crews = _crews(kind, capacity, columns, jobs)
    try:
        paces = benchmark.pedantic(_in_turns, args=(crews, list(jobs)), rounds=1)
    finally:
        for crew in crews.values():
            crew.close()
    benchmark.group = f"{kind}, capacity {capacity}"
    benchmark.extra_info |= {
        "workers": kind,
        "capacity": capacity,
        "paces": paces,
        "jobs": {name: job._asdict() for name, job in jobs.items()},
    }


def _crews(kind: str, capacity: int, columns: Columns, jobs: dict[str, Job]) -> dict[str, Crew]:
    """Of each rival, whose buffers are full."""
    make = rivals_shared.for_threads if kind == "threads" else rivals_shared.for_processes
    rivals = make(capacity, columns, max(WORKERS))
    for buffers in rivals.values():
        for buffer in set(buffers):
            fill(buffer, capacity, columns)
    crew = Threads if kind == "threads" else Processes
    return {
        name: crew({job: partial(jobs[job].step, buffers, columns) for job in jobs}, max(WORKERS))
        for name, buffers in rivals.items()
    }


def _in_turns(
    crews: dict[str, Crew], jobs: list[str]
) -> dict[str, dict[str, dict[int, list[Pace]]]]:
    """Job to rival to number of workers to what was measured, window by window."""
    paces: dict[str, dict[str, dict[int, list[Pace]]]] = {
        job: {name: {workers: [] for workers in WORKERS} for name in crews} for job in jobs
    }
    for job in jobs:
        for crew in crews.values():
            crew.run(job, max(WORKERS))  # warms up
        for _ in range(ROUNDS):
            for name, crew in crews.items():
                for workers in WORKERS:
                    paces[job][name][workers].append(crew.run(job, workers))
    return paces


def fill(buffer: Buffer, capacity: int, columns: Columns) -> None:
    """With rows of different priorities."""
    rng = np.random.default_rng(0)
    rows = random_rows(rng, capacity // 16, columns)
    for _ in range(16):
        buffer.add(rows)
    for _ in range(64):
        buffer.update(buffer.sample(BATCH), rng.random(BATCH))


def random_rows(rng: np.random.Generator, count: int, columns: Columns) -> Rows:
    return {
        name: rng.integers(2, size=(count, *shape)).astype(dtype)
        if dtype is np.bool_
        else rng.random((count, *shape), dtype=np.float32)
        for name, (shape, dtype) in columns.items()
    }
