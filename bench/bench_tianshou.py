"""Tianshou's buffers and ours in Tianshou: each call by itself, and whole training steps.

    python -m pytest bench/bench_tianshou.py -m "slow or not slow" \\
        --benchmark-json=out/tianshou.json
    python bench/report_tianshou.py out/tianshou.json

All trainings take about an hour and 21 GB, and `make bench` leaves them out; -k "DQN-" runs those
of DQN alone.  Buffers are full, of 10 environments.  Each call has a table of its own, so that
nobody takes what is gained by not copying the buffer in `hasnull` for the speed of a tree.  Of the
trainings, whose steps take turns (race.py says how), one has Tianshou's buffer with `hasnull`
patched out, and one has ours and, for the n-step returns, `NStepReturnsOfRows` besides.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import tianshou.data
import tianshou_trainings as trainings
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from race import Call, Runner, race
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.data import Batch
from tianshou_trainings import ENVS

from kary_replay.adapters import tianshou as ours
from kary_replay.adapters.tianshou.n_step import NStepReturnsOfRows

SIZES = [20_000, 200_000, 1_000_000]
BATCH = 64
KINDS = {
    "uniform": ("VectorReplayBuffer", {}),
    "prioritized": ("PrioritizedVectorReplayBuffer", {"alpha": 0.6, "beta": 0.4}),
}
OURS, THEIRS = "kary-replay", "Tianshou"
PATCHED, OF_ROWS = "Tianshou without hasnull", "kary-replay, n-step returns of rows"


RIVALS = {  # whose buffers, and what goes in front of the buffer and of the algorithm
    OURS: (ours, object, object),
    THEIRS: (tianshou.data, object, object),
    PATCHED: (tianshou.data, trainings.Patched, object),
    OF_ROWS: (ours, object, NStepReturnsOfRows),
}


def make(module: Any, kind: str, size: int, mixin: type = object, **options: Any) -> Any:
    name, arguments = KINDS[kind]
    cls = getattr(module, name)
    if mixin is not object:
        cls = type(name, (mixin, cls), {})
    return cls(size, ENVS, **arguments, **options)


# Calls


@pytest.fixture(scope="module", params=SIZES)
def size(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module", params=KINDS)
def buffers(request: pytest.FixtureRequest, size: int) -> dict[str, Any]:
    env = trainings.ENVIRONMENTS["CartPole"]()
    filled = {}
    for name, module in ((OURS, ours), (THEIRS, tianshou.data)):
        filled[name] = make(module, request.param, size)
        trainings.fill(filled[name], env)
    return filled | {"kind": request.param}


def _calls(
    benchmark: BenchmarkFixture,
    operation: str,
    buffers: dict[str, Any],
    call_of: Callable[[Any], Callable[[], Call]],
    calls: int = 16,
) -> None:
    """Races calls, each of which `call_of(buffer)` prepares."""

    def prepare(buffer: Any, count: int) -> list[Call]:
        prepared = call_of(buffer)
        return [prepared() for _ in range(count)]

    kind, of_size = buffers["kind"], buffers[OURS].maxsize
    benchmark.group = f"Tianshou {operation}, {kind}, {of_size}"
    race(
        benchmark,
        calls,
        *(Runner(name, partial(prepare, buffers[name])) for name in (OURS, THEIRS)),
    )
    _say(benchmark, f"Tianshou: {operation}, {kind}", of_size)


def _say(benchmark: BenchmarkFixture, operation: str, size: int) -> None:
    benchmark.extra_info |= {"operation": operation, "capacity": size, "batch": BATCH}


def bench_add(benchmark: BenchmarkFixture, buffers: dict[str, Any]) -> None:
    """One transition of each of 10 environments, in one call."""
    rng = np.random.default_rng(0)

    def batch() -> Batch:
        obs = rng.normal(size=(2, ENVS, 4)).astype(np.float32)
        return Batch(
            obs=obs[0],
            obs_next=obs[1],
            act=rng.integers(2, size=ENVS),
            rew=np.ones(ENVS),
            terminated=rng.random(ENVS) < 0.02,
            truncated=np.zeros(ENVS, bool),
            info=Batch(env_id=np.arange(ENVS)),
            policy=Batch(),
        )

    ids = np.arange(ENVS)
    _calls(benchmark, "add", buffers, lambda buffer: lambda: partial(buffer.add, batch(), ids))


def bench_hasnull(benchmark: BenchmarkFixture, buffers: dict[str, Any]) -> None:
    _calls(benchmark, "hasnull", buffers, lambda buffer: lambda: buffer.hasnull, calls=1)


def bench_sample(benchmark: BenchmarkFixture, buffers: dict[str, Any]) -> None:
    _calls(benchmark, "sample", buffers, lambda buffer: lambda: partial(buffer.sample, BATCH))


def bench_rows(benchmark: BenchmarkFixture, buffers: dict[str, Any]) -> None:
    def rows_of(buffer: Any) -> Callable[[], Call]:
        return lambda: partial(buffer.__getitem__, buffer.sample_indices(BATCH))

    _calls(benchmark, "rows at indices", buffers, rows_of)


def bench_next(benchmark: BenchmarkFixture, buffers: dict[str, Any]) -> None:
    def next_of(buffer: Any) -> Callable[[], Call]:
        return lambda: partial(buffer.next, buffer.sample_indices(BATCH))

    _calls(benchmark, "next", buffers, next_of)


def bench_update_weight(benchmark: BenchmarkFixture, buffers: dict[str, Any]) -> None:
    if buffers["kind"] == "uniform":
        pytest.skip("has no priorities")

    def update_of(buffer: Any) -> Callable[[], Call]:
        return lambda: partial(buffer.update_weight, buffer.sample(BATCH)[1], torch.randn(BATCH))

    # Few at a time: of many draws that await their updates, some have rows in common.
    _calls(benchmark, "update_weight", buffers, update_of, calls=1)


@pytest.mark.parametrize("compute", [Algorithm, NStepReturnsOfRows])
def bench_n_step(benchmark: BenchmarkFixture, buffers: dict[str, Any], compute: Any) -> None:
    """Three steps; the values of the last ones cost nothing."""
    values = torch.zeros(BATCH)

    def n_step_of(buffer: Any) -> Callable[[], Call]:
        def prepared() -> Call:
            batch, indices = buffer.sample(BATCH)
            target = lambda *_: values  # noqa: E731
            return partial(compute.compute_nstep_return, batch, buffer, indices, target, 0.99, 3)

        return prepared

    _calls(benchmark, f"n-step returns by {compute.__name__}", buffers, n_step_of)


# Trainings


@pytest.fixture(scope="module")
def full(request: pytest.FixtureRequest) -> list[Any]:
    """A full buffer for each of RIVALS, for all trainings in one environment."""
    environment, kind, size = request.param
    options = {}
    if environment == "Pong":
        pytest.importorskip("ale_py")
        options = trainings.FRAMES
    made = [make(module, kind, size, mixin, **options) for module, mixin, _ in RIVALS.values()]
    for buffer in made:
        trainings.fill(buffer, trainings.ENVIRONMENTS[environment]())
    return made


def _races() -> list[Any]:
    """Those in the same buffers one behind the other, so that they are filled once."""
    races = []
    for environment, kind, size in product(trainings.ENVIRONMENTS, KINDS, SIZES):
        # A frame takes 7 kB, hasnull copies stacks of 4 of them, and there are four buffers.
        full = environment, kind, size // 10 if environment == "Pong" else size
        races += [
            pytest.param(full, name, id=f"{name}-{kind}-{full[2]}")
            for name, (_, its_environment) in trainings.ALGORITHMS.items()
            if its_environment == environment
        ]
    return races


@pytest.mark.slow
@pytest.mark.parametrize(("full", "name"), _races(), indirect=["full"])
def bench_training(benchmark: BenchmarkFixture, full: list[Any], name: str) -> None:
    runners = []
    for (rival, (_, _, mixin)), buffer in zip(RIVALS.items(), full, strict=True):
        step = trainings.training_step(name, buffer, mixin)
        runners.append(Runner(rival, lambda calls, step=step: [step] * calls))
    kind, size = "prioritized" if hasattr(full[0], "weight") else "uniform", full[0].maxsize
    benchmark.group = f"Tianshou training {name}, {kind}, {size}"
    if trainings.ALGORITHMS[name][1] == "Pong":  # half a second a step
        race(benchmark, 1, *runners, rounds=3)
    else:
        race(benchmark, 4, *runners)
    _say(benchmark, f"Tianshou: a training step of {name}, {kind}", size)
