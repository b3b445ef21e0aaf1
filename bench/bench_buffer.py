"""Whole buffers, full: add, sample, update, ours beside the peers' (race.py says how).

A transition is obs (17), action (6), reward, next_obs (17) in float32 and two flags; the reward
is its row number, so every row that comes back can be compared with what went in.  A quarter of
the rows each has TD error 1, 2, 4 and 8.  `extra_info["agrees"]` is the share of sampled rows
that equal, in every column, the row of their number; `extra_info["chi_square"]` compares how
often each quarter is drawn with its priority (three degrees of freedom; chance exceeds 30 once in
a million).

Uniform buffers race too in `add` and `sample`, where they have less to do.  "learn" is what a
learner does to a buffer in one step: a sample and then an update of its priorities.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import rivals
from pytest_benchmark.fixture import BenchmarkFixture
from race import Call, Runner, race
from rivals import ALPHA, Buffer, Rows

CAPACITIES = [10**4, 10**5, 10**6, pytest.param(10**7, marks=pytest.mark.slow)]
QUARTERS = np.array([1.0, 2.0, 4.0, 8.0])  # TD error of row i is QUARTERS[i % 4]
DRAWS = 64, 1024  # samples, rows in each, to count frequencies
VECTOR = {
    "obs": ((17,), np.float32),
    "action": ((6,), np.float32),
    "reward": ((), np.float32),
    "next_obs": ((17,), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
}
IMAGE = ((4, 84, 84), np.uint8)
IMAGES = VECTOR | {"obs": IMAGE, "next_obs": IMAGE}
IMAGE_CAPACITY = 8_000  # pairs: 450 MB a buffer


class Filled:
    """Buffers that hold the same rows, and how right their draws are."""

    def __init__(self, buffers: list[Buffer], rows: Rows) -> None:
        self.buffers, self.rows = buffers, rows
        self.capacity = len(rows["reward"])
        td_errors = QUARTERS[np.arange(self.capacity) % 4]
        for buffer in buffers:
            buffer.fill(rows, td_errors)
        self.chi_square = {buffer.name: _chi_square(buffer) for buffer in buffers}

    def agrees(self, buffer: Buffer) -> float:
        """The share of sampled rows that equal the row of their number."""
        sampled = buffer.columns(buffer.sample(256))
        number = sampled["reward"].astype(np.int64)
        same = [
            (column == self.rows[name][number]).reshape(len(number), -1).all(axis=1)
            for name, column in sampled.items()
        ]
        return float(np.mean(np.all(same, axis=0)))


@pytest.fixture(scope="module", params=CAPACITIES)
def vectors(request: pytest.FixtureRequest) -> Filled:
    capacity = request.param
    return Filled(rivals.vector_buffers(capacity, VECTOR), _rows(capacity, VECTOR))


@pytest.fixture(scope="module")
def images() -> Filled:
    return Filled(rivals.image_buffers(IMAGE_CAPACITY, IMAGES), _rows(IMAGE_CAPACITY, IMAGES))


@pytest.mark.parametrize("count", [1, 10])
def bench_add(
    benchmark: BenchmarkFixture, vectors: Filled, count: int, rng: np.random.Generator
) -> None:
    def adding(buffer: Buffer, calls: int) -> list[Call]:
        first = rng.integers(vectors.capacity - count, size=calls)
        return [
            buffer.adding({name: rows[i : i + count] for name, rows in vectors.rows.items()})
            for i in first
        ]

    buffers = [buffer for buffer in vectors.buffers if count in buffer.adds]
    _race(benchmark, f"add {count}", vectors, buffers, adding)


@pytest.mark.parametrize("batch", [32, 256, 4096])
def bench_sample(benchmark: BenchmarkFixture, vectors: Filled, batch: int) -> None:
    _race(benchmark, "sample", vectors, vectors.buffers, partial(_sampling, batch), batch)


def bench_update(benchmark: BenchmarkFixture, vectors: Filled, rng: np.random.Generator) -> None:
    def updating(buffer: Buffer, calls: int) -> list[Call]:
        return [
            partial(buffer.update, buffer.sample(256), buffer.errors(rng.normal(size=256)))
            for _ in range(calls)
        ]

    _race(benchmark, "update priorities", vectors, _prioritized(vectors), updating, 256)


def bench_learn(benchmark: BenchmarkFixture, vectors: Filled, rng: np.random.Generator) -> None:
    def step(buffer: Buffer, td_errors: Any) -> None:
        buffer.update(buffer.sample(256), td_errors)

    def learning(buffer: Buffer, calls: int) -> list[Call]:
        return [partial(step, buffer, buffer.errors(rng.normal(size=256))) for _ in range(calls)]

    _race(benchmark, "learn", vectors, _prioritized(vectors), learning, 256)


@pytest.mark.parametrize("batch", [32, 256])
def bench_sample_images(
    benchmark: BenchmarkFixture, images: Filled, batch: int, rng: np.random.Generator
) -> None:
    """Beside plain copies of as many bytes, from one piece of memory that no cache holds."""
    obs, next_obs = images.rows["obs"], images.rows["next_obs"]
    reused = np.empty_like(obs[:batch]), np.empty_like(obs[:batch])

    def copy(first: int) -> object:
        return obs[first : first + batch].copy(), next_obs[first : first + batch].copy()

    def copy_into(first: int) -> None:
        np.copyto(reused[0], obs[first : first + batch])
        np.copyto(reused[1], next_obs[first : first + batch])

    def copying(how: Callable[[int], object], calls: int) -> list[Call]:
        return [partial(how, i) for i in rng.integers(images.capacity - batch, size=calls)]

    copies = [
        Runner("memory copy", partial(copying, copy)),
        Runner("memory copy, arrays reused", partial(copying, copy_into)),
    ]
    sampling = partial(_sampling, batch)
    _race(benchmark, "sample images", images, images.buffers, sampling, batch, copies)


def _race(
    benchmark: BenchmarkFixture,
    operation: str,
    filled: Filled,
    buffers: list[Buffer],
    prepare: Callable[[Buffer, int], list[Call]],
    batch: int = 1,
    others: list[Runner] | None = None,
) -> None:
    runners = [Runner(buffer.name, partial(prepare, buffer)) for buffer in buffers]
    benchmark.group = f"{operation}, capacity {filled.capacity}"
    race(benchmark, 16 if batch <= 256 and not others else 1, *runners, *(others or []))
    benchmark.extra_info |= {
        "operation": operation,
        "capacity": filled.capacity,
        "batch": batch,
        "uniform": [b.name for b in buffers if not (b.prioritized or others)],
        "agrees": {buffer.name: filled.agrees(buffer) for buffer in buffers},
        "chi_square": {buffer.name: filled.chi_square[buffer.name] for buffer in buffers},
    }


def _sampling(batch: int, buffer: Buffer, calls: int) -> list[Call]:
    return [partial(buffer.sample, batch)] * calls


def _prioritized(filled: Filled) -> list[Buffer]:
    return [buffer for buffer in filled.buffers if buffer.prioritized]


def _rows(count: int, columns: rivals.Columns) -> Rows:
    rng = np.random.default_rng(2)
    rows: Rows = {}
    for name, (shape, dtype) in columns.items():
        if dtype is np.bool_:
            rows[name] = np.zeros(count, np.bool_)
        elif dtype is np.uint8:
            rows[name] = rng.integers(256, size=(count, *shape), dtype=np.uint8)
        else:
            rows[name] = rng.random((count, *shape), dtype=np.float32)
    rows["reward"] = np.arange(count, dtype=np.float32)
    rows["terminated"] = rng.random(count) < 0.01
    return rows


def _chi_square(buffer: Buffer) -> float:
    """Of how often each quarter of the rows is drawn, against its share of the mass."""
    numbers = [buffer.columns(buffer.sample(DRAWS[1]))["reward"] for _ in range(DRAWS[0])]
    seen = np.bincount(np.concatenate(numbers).astype(np.int64) % 4, minlength=4)
    mass = QUARTERS**ALPHA if buffer.prioritized else np.ones(4)
    want = seen.sum() * mass / mass.sum()
    return float(((seen - want) ** 2 / want).sum())
