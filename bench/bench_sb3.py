"""SB3's buffers and ours: single calls, and whole trainings that differ in nothing else.

Calls race as race.py says.  Buffers hold the same rows; `extra_info["agrees"]` is the share of
our sampled rows that equal SB3's of the same number, which the action carries.

Trainings take turns of collecting and learning, all with the same seed and settings.  `extra_info`
has environment steps a second of processor time, turn by turn, and the share of it that was spent
in the buffer.  "tree in an array" and "tree in a list" are SB3's buffer with the sum tree that
most projects write for themselves, in Python, under the same prioritized DQN as ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import rivals_sb3
import stable_baselines3 as sb3
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture
from race import Call, Runner, race
from settings_sb3 import SETTINGS
from stable_baselines3.common import buffers as sb3_buffers
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack
from trainings_sb3 import Run

from kary_replay.adapters import sb3 as ours

CAPACITIES = [10**5, pytest.param(10**6, marks=pytest.mark.slow)]
IMAGE_ROWS = 8_000  # pairs of stacks: 450 MB a buffer
N_STEP = {"n_steps": 3, "gamma": 0.99}
STACK = 4

VECTOR = spaces.Box(-np.inf, np.inf, (17,), np.float32)
STACKS = spaces.Box(0, 255, (STACK, 84, 84), np.uint8)
MIXED = spaces.Dict({"vector": VECTOR, "image": spaces.Box(0, 255, (1, 36, 36), np.uint8)})
ACTIONS = spaces.Box(-1, 1, (6,), np.float32)


class Case(NamedTuple):
    """A kind of buffer: its observations, how SB3's is made, and ours."""

    observations: spaces.Space[Any]
    theirs: Callable[..., Any]
    mine: Callable[..., Any]


CASES = {
    "uniform": Case(VECTOR, sb3_buffers.ReplayBuffer, ours.ReplayBuffer),
    "n-step": Case(
        VECTOR,
        partial(sb3_buffers.NStepReplayBuffer, **N_STEP),
        partial(ours.NStepReplayBuffer, **N_STEP),
    ),
    "dict": Case(MIXED, sb3_buffers.DictReplayBuffer, ours.DictReplayBuffer),
    "prioritized": Case(VECTOR, rivals_sb3.PythonTreeBuffer, ours.PrioritizedReplayBuffer),
    "images": Case(STACKS, sb3_buffers.ReplayBuffer, ours.ReplayBuffer),
    "stacks": Case(STACKS, sb3_buffers.ReplayBuffer, partial(ours.ReplayBuffer, frame_stack=STACK)),
}


class Filled:
    """SB3's buffer and ours with the same rows, how many of ours are right, and more to add."""

    def __init__(self, kind: str, rows: int) -> None:
        case = CASES[kind]
        self.kind, self.is_large = kind, case.observations is STACKS
        self.rows = IMAGE_ROWS if self.is_large else rows
        self.mine, self.theirs = (
            make(self.rows, case.observations, ACTIONS, device="cpu")
            for make in (case.mine, case.theirs)
        )
        for transition in rivals_sb3.transitions(case.observations, self.rows):
            self.mine.add(*transition)
            self.theirs.add(*transition)
        self.agrees = _agreement(self.mine, self.theirs)
        self.more = list(rivals_sb3.transitions(case.observations, 2_000))
        self._added = {id(buffer): 0 for buffer in (self.mine, self.theirs)}

    def next_to_add(self, buffer: Any, calls: int) -> list[tuple[Any, ...]]:
        """The next transitions of this buffer, round and round."""
        first = self._added[id(buffer)]
        self._added[id(buffer)] += calls
        return [self.more[(first + i) % len(self.more)] for i in range(calls)]


@pytest.fixture(scope="module", params=CAPACITIES)
def rows(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module", params=list(CASES))
def filled(request: pytest.FixtureRequest, rows: int) -> Filled:
    return Filled(request.param, rows)


@pytest.mark.parametrize("batch", [32, 256, 4096])
def bench_sb3_sample(benchmark: BenchmarkFixture, filled: Filled, batch: int) -> None:
    if filled.is_large and batch > 256:
        pytest.skip("a batch of 460 MB")
    _race(benchmark, "sample", filled, lambda b, calls: [partial(b.sample, batch)] * calls, batch)


def bench_sb3_add(benchmark: BenchmarkFixture, filled: Filled) -> None:
    def adding(buffer: Any, calls: int) -> list[Call]:
        return [partial(buffer.add, *given) for given in filled.next_to_add(buffer, calls)]

    _race(benchmark, "add", filled, adding, 1)


def bench_sb3_update(benchmark: BenchmarkFixture, filled: Filled, rng: np.random.Generator) -> None:
    if filled.kind != "prioritized":
        pytest.skip("no priorities")

    def updating(buffer: Any, calls: int) -> list[Call]:
        keys = [buffer.sample(256).keys for _ in range(calls)]
        return [partial(buffer.update_priorities, k, rng.normal(size=256)) for k in keys]

    _race(benchmark, "update", filled, updating, 256)


def _race(
    benchmark: BenchmarkFixture,
    operation: str,
    filled: Filled,
    prepare: Callable[[Any, int], list[Call]],
    batch: int,
) -> None:
    benchmark.group = f"SB3: {operation} {batch}, {filled.kind}, {filled.rows} rows"
    mine, theirs = (partial(prepare, buffer) for buffer in (filled.mine, filled.theirs))
    calls = 1 if filled.is_large or batch > 256 else 16
    race(benchmark, calls, Runner("kary-replay", mine), Runner("SB3", theirs))
    benchmark.extra_info |= {
        "framework": "SB3",
        "call": operation,
        "kind": filled.kind,
        "rows": filled.rows,
        "batch": batch,
        "agrees": filled.agrees,
    }


def _agreement(mine: Any, theirs: Any) -> float:
    sample = mine.sample(256)
    there = theirs._get_samples(sample.actions[:, 0].numpy().astype(np.int64))
    same = torch.ones(256, dtype=torch.bool)
    for name, want in there._asdict().items():
        got = getattr(sample, name)
        for key in want if isinstance(want, dict) else [...] * (want is not None):
            same &= (got[key] == want[key]).reshape(256, -1).all(dim=1)
    return float(same.float().mean())


# Trainings

TURNS = 40


class Pixels(gym.Env[NDArray[np.uint8], Any]):
    """Pong's screen, 84 x 84, with a last axis of one channel."""

    observation_space = spaces.Box(0, 255, (84, 84, 1), np.uint8)

    def __init__(self) -> None:
        gym.register_envs(pytest.importorskip("ale_py"))
        self.env = gym.make("PongNoFrameskip-v4", obs_type="grayscale", frameskip=4)
        self.action_space = self.env.action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        screen, info = self.env.reset(seed=seed)
        return _small(screen), info

    def step(self, action: Any) -> Any:
        screen, *rest = self.env.step(action)
        return _small(screen), *rest


def _small(screen: NDArray[np.uint8]) -> NDArray[np.uint8]:
    image = np.zeros((84, 84, 1), np.uint8)
    image[:, 2:82, 0] = screen[34:202:2, ::2]
    return image


class Training(NamedTuple):
    """Who learns what; `options` are those of ours that SB3's buffer does not have."""

    stock: Any
    prioritized: Any
    environment: Callable[[], VecEnv]
    trains: int  # calls of `train` in a turn: half a second, or less
    settings: dict[str, Any]
    options: dict[str, Any] = {}  # noqa: RUF012


def _made(name: str) -> Callable[[], VecEnv]:
    def make() -> VecEnv:
        try:
            return DummyVecEnv([lambda: gym.make(name)])
        except (gym.error.DependencyNotInstalled, gym.error.NameNotFound) as error:
            pytest.skip(f"{name}: {error}")

    return make


def _pong() -> VecEnv:
    return VecFrameStack(DummyVecEnv([Pixels]), STACK)


CONTINUOUS = {"learning_starts": 500, "buffer_size": 100_000, "batch_size": 256}
PONG = {"buffer_size": 10_000, "learning_starts": 1_000, "train_freq": 4, "policy": "CnnPolicy"}
PYTHON_TREES = {"tree in an array": rivals_sb3.ArrayTree, "tree in a list": rivals_sb3.PlainTree}
DQN, SAC, TD3 = (
    (getattr(sb3, name), getattr(ours, f"Prioritized{name}")) for name in ("DQN", "SAC", "TD3")
)
TRAININGS = {
    "DQN CartPole": Training(*DQN, _made("CartPole-v1"), 1, SETTINGS["CartPole-v1"]),
    "DQN LunarLander": Training(*DQN, _made("LunarLander-v3"), 20, SETTINGS["LunarLander-v3"]),
    "DQN Pong": Training(*DQN, _pong, 8, PONG, {"frame_stack": STACK}),
    "SAC Pendulum": Training(*SAC, _made("Pendulum-v1"), 20, CONTINUOUS),
    "SAC HalfCheetah": Training(*SAC, _made("HalfCheetah-v5"), 20, CONTINUOUS),
    "TD3 Pendulum": Training(*TD3, _made("Pendulum-v1"), 20, CONTINUOUS),
    "TD3 HalfCheetah": Training(*TD3, _made("HalfCheetah-v5"), 20, CONTINUOUS),
}


def _run(training: Training, algorithm: Any, **arguments: Any) -> Run:
    settings = {"policy": "MlpPolicy"} | training.settings | arguments
    model = algorithm(env=training.environment(), seed=0, device="cpu", **settings)
    return Run(model, 50_000, training.trains)


@pytest.fixture
def runs(request: pytest.FixtureRequest) -> Iterator[dict[str, Run]]:
    training = TRAININGS[request.param]
    run, options = partial(_run, training), {"replay_buffer_kwargs": training.options}
    started = {
        "stock": run(training.stock),
        "kary-replay": run(training.stock, replay_buffer_class=ours.ReplayBuffer, **options),
        "kary-replay, prioritized": run(training.prioritized, **options),
    }
    if training.stock is sb3.DQN and not training.options:
        for who, tree in PYTHON_TREES.items():
            kwargs = {"replay_buffer_kwargs": {"tree": tree}}
            started[who] = run(rivals_sb3.PythonTreeDQN, **kwargs)
    for each in started.values():
        each.turn()  # this one begins before learning does
    yield started
    for each in started.values():
        each.close()


@pytest.mark.parametrize("runs", list(TRAININGS), indirect=True)
def bench_sb3_training(
    benchmark: BenchmarkFixture, request: pytest.FixtureRequest, runs: dict[str, Run]
) -> None:
    mine = runs["kary-replay"]
    others = [run for run in runs.values() if run is not mine]

    def everybody_else() -> None:
        for run in others:
            run.turn()

    name = request.node.callspec.params["runs"]
    benchmark.group = f"SB3: {name}"
    benchmark.pedantic(mine.turn, setup=everybody_else, rounds=TURNS)
    benchmark.extra_info |= {
        "framework": "SB3",
        "training": name,
        "steps_per_second": {who: run.steps_per_second[1:] for who, run in runs.items()},
        "share_in_buffer": {who: median(run.shares[1:]) for who, run in runs.items()},
    }
