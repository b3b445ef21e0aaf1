"""A training that is stopped, saved, and finished by another process."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import set_random_seed

from kary_replay.adapters import sb3 as ours

HALF = 120
ENVIRONMENTS = {"PrioritizedDQN": "CartPole-v1", "PrioritizedSAC": "Pendulum-v1"}


class Rest(NamedTuple):
    """What the second half of a training came to."""

    keys: list[list[int]]  # of every draw
    betas: list[float]
    rewards: list[float]  # of every step
    parameters: list[np.ndarray]


class Rewards(BaseCallback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def _on_step(self) -> bool:
        self.seen.extend(self.locals["rewards"].tolist())
        return True


def first_half(name: str, options: dict[str, Any]) -> Any:
    model = getattr(ours, name)(
        "MlpPolicy",
        ENVIRONMENTS[name],
        policy_kwargs={"net_arch": [16]},
        buffer_size=150,  # it wraps round in the second half
        learning_starts=40,
        batch_size=32,
        train_freq=2,
        gradient_steps=2,
        seed=0,
        device="cpu",
        **options,
    )
    return model.learn(HALF)


def second_half(model: Any) -> Rest:
    """Goes on as a process does that has just begun: with an environment that is reset."""
    th.set_num_threads(1)
    env = gym.make(ENVIRONMENTS[type(model).__name__])
    model.set_env(env)
    model.set_random_seed(7)
    keys, betas, draw, rewards = [], [], model.replay_buffer.sample, Rewards()

    def recorded(*args: Any, **kwargs: Any) -> Any:
        batch = draw(*args, **kwargs)
        keys.append(batch.keys.tolist())
        betas.append(model.replay_buffer.beta)
        return batch

    model.replay_buffer.sample = recorded
    model.learn(HALF, callback=rewards, reset_num_timesteps=False)
    parameters = [value.numpy() for value in model.policy.state_dict().values()]
    return Rest(keys, betas, rewards.seen, parameters)


def in_another_process(name: str, directory: Path) -> Rest:
    set_random_seed(99)  # nothing of it may matter
    model = getattr(ours, name).load(directory / "model", device="cpu")
    model.load_replay_buffer(directory / "buffer")
    return second_half(model)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("PrioritizedDQN", {}),
        ("PrioritizedDQN", {"n_steps": 3, "optimize_memory_usage": True}),
        ("PrioritizedSAC", {"n_steps": 2}),
    ],
    ids=str,
)
def test_another_process_finishes_what_was_begun(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Draw for draw, step for step, as if it had never been stopped."""
    model = first_half(name, options)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    here = second_half(model)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.apply(in_another_process, (name, tmp_path))
    assert len(here.keys) > 100
    assert there.keys == here.keys
    assert there.betas == here.betas == sorted(here.betas)
    assert here.betas[0] == pytest.approx(0.4 + 0.6 * (HALF + 2) / (2 * HALF), abs=0.01)
    assert here.betas[-1] == 1.0
    assert there.rewards == here.rewards
    for mine, theirs in zip(here.parameters, there.parameters, strict=True):
        np.testing.assert_array_equal(mine, theirs)
