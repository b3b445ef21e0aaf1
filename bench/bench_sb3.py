"""SB3's buffers and ours: single calls, and whole trainings that differ in nothing else.

Calls race as race.py says.  Buffers hold the same rows; `extra_info["agrees"]` is the share of
our sampled rows that equal SB3's of the same number, which the action carries.

Trainings take turns: everybody learns the same number of steps with the same seed and settings,
round after round.  `extra_info` has environment steps a second of processor time, those of the
median turn of collecting and learning in any round, and the share of it that was spent in the
buffer.  "tree in an array" and "tree in a
list" are SB3's buffer with the sum tree that most projects write for themselves, in Python, under
the same prioritized DQN as ours.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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

ROUNDS = 3


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
    steps: int
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
    "DQN CartPole": Training(*DQN, _made("CartPole-v1"), 10_000, SETTINGS["CartPole-v1"]),
    "DQN LunarLander": Training(*DQN, _made("LunarLander-v3"), 3_000, SETTINGS["LunarLander-v3"]),
    "DQN Pong": Training(*DQN, _pong, 2_000, PONG, {"frame_stack": STACK}),
    "SAC Pendulum": Training(*SAC, _made("Pendulum-v1"), 1_000, CONTINUOUS),
    "SAC HalfCheetah": Training(*SAC, _made("HalfCheetah-v5"), 1_000, CONTINUOUS),
    "TD3 Pendulum": Training(*TD3, _made("Pendulum-v1"), 1_000, CONTINUOUS),
    "TD3 HalfCheetah": Training(*TD3, _made("HalfCheetah-v5"), 1_000, CONTINUOUS),
}


class Run:
    """One training, the time of each of its turns, and the time it spent in its buffer."""

    def __init__(self, training: Training, algorithm: Any, **arguments: Any) -> None:
        settings = {"policy": "MlpPolicy"} | training.settings | arguments
        env = training.environment()
        self.model = algorithm(env=env, seed=0, device="cpu", **settings)
        self.steps, self.seconds, self.in_buffer = training.steps, 0.0, 0.0
        self.turns: list[float] = []  # seconds a step
        self.turn_began = (0, 0.0)
        buffer = self.model.replay_buffer
        for name in ("add", "sample", "update_priorities"):
            if hasattr(buffer, name):
                setattr(buffer, name, partial(self._timed, getattr(buffer, name)))
        self.model.train = partial(self._end_turn, self.model.train)

    def _timed(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        result = method(*args, **kwargs)
        self.in_buffer += time.process_time() - start
        return result

    def _end_turn(self, train: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        train(*args, **kwargs)
        now, (steps, start) = time.process_time(), self.turn_began
        if steps:  # the first one begins before learning does
            self.turns.append((now - start) / (self.model.num_timesteps - steps))
        self.turn_began = (self.model.num_timesteps, now)

    def learn(self) -> None:
        start = time.process_time()
        self.model.learn(self.steps)
        self.seconds = time.process_time() - start


@pytest.mark.parametrize("name", list(TRAININGS))
def bench_sb3_training(benchmark: BenchmarkFixture, name: str) -> None:
    training = TRAININGS[name]
    mine = {"replay_buffer_class": ours.ReplayBuffer, "replay_buffer_kwargs": training.options}
    contestants: dict[str, Callable[[], Run]] = {
        "stock": partial(Run, training, training.stock),
        "kary-replay": partial(Run, training, training.stock, **mine),
        "kary-replay, prioritized": partial(
            Run, training, training.prioritized, replay_buffer_kwargs=training.options
        ),
    }
    if training.stock is sb3.DQN and not training.options:
        for who, tree in PYTHON_TREES.items():
            kwargs = {"replay_buffer_kwargs": {"tree": tree}}
            contestants[who] = partial(Run, training, rivals_sb3.PythonTreeDQN, **kwargs)
    runs: dict[str, list[Run]] = {contestant: [] for contestant in contestants}

    def everybody_else() -> tuple[tuple[Run], dict[str, Any]]:
        for contestant, make in contestants.items():
            run = make()
            runs[contestant].append(run)
            if contestant != "kary-replay":
                run.learn()
        return (runs["kary-replay"][-1],), {}

    benchmark.group = f"SB3: {name}"
    benchmark.pedantic(Run.learn, setup=everybody_else, rounds=ROUNDS)
    benchmark.extra_info |= {
        "framework": "SB3",
        "training": name,
        "steps": training.steps,
        "steps_per_second": {
            who: 1 / median(turn for run in done for turn in run.turns)
            for who, done in runs.items()
        },
        "share_in_buffer": {
            who: median(run.in_buffer / run.seconds for run in done) for who, done in runs.items()
        },
    }
