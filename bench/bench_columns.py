"""What is computed from neighbouring rows: n-step batches and stacks of frames (race.py says how).

Every buffer is played the same episodes (episodes.py) and then asked for batches that are ready
for a loss.  `extra_info["agrees"]` is the share of sampled rows that are what the stream says;
`extra_info["bytes_per_transition"]` what one takes of memory, where a buffer tells.

Uniform and prioritized buffers race apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest
import rivals_n_step
import rivals_stacks
from episodes import Episodes, Replay, Truth, agrees, frames, vectors
from pytest_benchmark.fixture import BenchmarkFixture
from race import Call, Runner, race

KINDS = ["uniform", "prioritized"]
VECTORS = [10**5, 10**6]
FRAMES = [100_000]


class Played(NamedTuple):
    """Buffers into which the same episodes were played, and what is true of these."""

    kind: str
    replays: list[Replay]
    episodes: Episodes
    truth: Truth


@pytest.fixture(scope="module", params=VECTORS)
def vector_episodes(request: pytest.FixtureRequest) -> Episodes:
    return Episodes(request.param, 6, vectors)


@pytest.fixture(scope="module", params=FRAMES)
def frame_episodes(request: pytest.FixtureRequest) -> Episodes:
    return Episodes(request.param, 1, frames)


@pytest.fixture(scope="module", params=KINDS)
def n_step(request: pytest.FixtureRequest, vector_episodes: Episodes) -> Played:
    return _played(rivals_n_step, request.param, vector_episodes, vector_episodes.n_step)


@pytest.fixture(scope="module", params=KINDS)
def stacks(request: pytest.FixtureRequest, frame_episodes: Episodes) -> Played:
    return _played(rivals_stacks, request.param, frame_episodes, frame_episodes.stacks)


def _played(rivals: ModuleType, kind: str, episodes: Episodes, truth: Truth) -> Played:
    replays = getattr(rivals, kind)(episodes.count)
    for replay in replays:
        replay.fill(episodes)
    return Played(kind, replays, episodes, truth)


@pytest.mark.parametrize("batch", [32, 256])
def bench_sample_n_step(benchmark: BenchmarkFixture, n_step: Played, batch: int) -> None:
    _race_to_sample(benchmark, "sample n-step", n_step, batch, calls=16)


@pytest.mark.parametrize("batch", [32, 256])
def bench_sample_stacks(
    benchmark: BenchmarkFixture, stacks: Played, batch: int, rng: np.random.Generator
) -> None:
    """Beside a copy of as many bytes, from the same kind of places, into arrays as new."""
    frames = stacks.episodes.observations
    whole = len(frames) // 4 - 1
    obs, next_obs = (frames[i : i + 4 * whole].reshape(whole, 4, 84, 84) for i in (0, 1))

    def copy(places: np.ndarray) -> object:
        return obs.take(places, axis=0), next_obs.take(places, axis=0)

    def copying(calls: int) -> list[Call]:
        return [partial(copy, rng.integers(whole, size=batch)) for _ in range(calls)]

    others = [Runner("memory copy", copying)]
    _race_to_sample(benchmark, "sample stacks", stacks, batch, 1, others)
    benchmark.extra_info["bytes_per_transition"] = {
        replay.name: replay.bytes_per_transition
        for replay in stacks.replays
        if hasattr(replay, "bytes_per_transition")
    }


# Adding comes last: it moves the write heads.


def bench_add_n_step(benchmark: BenchmarkFixture, n_step: Played) -> None:
    _race_to_add(benchmark, "add n-step", n_step)


def bench_step_n_step(benchmark: BenchmarkFixture, n_step: Played) -> None:
    """What a training loop asks at every step, so that nobody's sums are left out."""

    def both(add: Call, replay: Replay) -> None:
        add()
        replay.sample(256)

    _race_to_add(benchmark, "step n-step", n_step, 256, both)


def bench_add_stacks(benchmark: BenchmarkFixture, stacks: Played) -> None:
    _race_to_add(benchmark, "add stacks", stacks)


def _race_to_sample(
    benchmark: BenchmarkFixture,
    operation: str,
    played: Played,
    batch: int,
    calls: int,
    others: list[Runner] | None = None,
) -> None:
    def sampling(replay: Replay, calls: int) -> list[Call]:
        return [partial(replay.sample, batch)] * calls

    right = {replay.name: agrees(replay, played.truth, batch) for replay in played.replays}
    _race(benchmark, operation, played, batch, calls, sampling, others or [])
    benchmark.extra_info["agrees"] = right


def _race_to_add(
    benchmark: BenchmarkFixture,
    operation: str,
    played: Played,
    batch: int = 1,
    call: Callable[[Call, Replay], object] = lambda add, replay: add(),
) -> None:
    """Every buffer gets the steps one after the other, from the first on."""
    coming = {replay.name: _rounds(played.episodes.count) for replay in played.replays}

    def adding(replay: Replay, calls: int) -> list[Call]:
        adds = (replay.adding(played.episodes, i) for i in islice(coming[replay.name], calls))
        return [partial(call, add, replay) for add in adds]

    _race(benchmark, operation, played, batch, 16, adding, [])


def _rounds(steps: int) -> Iterator[int]:
    return (step % steps for step in count())


def _race(
    benchmark: BenchmarkFixture,
    operation: str,
    played: Played,
    batch: int,
    calls: int,
    prepare: Callable[[Replay, int], list[Call]],
    others: list[Runner],
) -> None:
    capacity = played.episodes.count
    benchmark.group = f"{operation}, {played.kind}, capacity {capacity}"
    runners = [Runner(replay.name, partial(prepare, replay)) for replay in played.replays]
    race(benchmark, calls, *runners, *others)
    benchmark.extra_info |= {
        "operation": f"{operation}, {played.kind}",
        "capacity": capacity,
        "batch": batch,
    }
