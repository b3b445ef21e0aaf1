"""Tianshou's DQN and its trainer, as they are, on our buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tianshou")

import gymnasium as gym
import tianshou.data
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from kary_replay.adapters.tianshou import (
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from kary_replay.adapters.tianshou.n_step import NStepReturnsOfRows


class Recording(PrioritizedVectorReplayBuffer):
    """Keeps what went out and came back."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drawn: list[tuple[list[int], list[float]]] = []
        self.answers: list[tuple[list[int], list[float]]] = []

    def sample(self, batch_size: int | None) -> Any:
        batch, indices = super().sample(batch_size)
        self.drawn.append((indices.tolist(), batch.weight.tolist()))
        return batch, indices

    def update_weight(self, index: Any, new_weight: Any) -> None:
        super().update_weight(index, new_weight)
        self.answers.append((index.tolist(), new_weight.tolist()))


def train(seed: int = 0, steps: int = 240, **keywords: Any) -> tuple[DQN, Recording]:
    """`steps` steps in 4 environments, and a gradient step for every 4 of them."""
    buffer = Recording(200, 4, alpha=0.6, beta=0.4, random_seed=seed, **keywords)
    return train_on(buffer, seed, steps, 4), buffer


def train_on(buffer: Any, seed: int, steps: int, env_num: int, cls: type[DQN] = DQN) -> DQN:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (Tianshou's exploration)
    envs = DummyVectorEnv([lambda: gym.make("CartPole-v1")] * env_num)
    envs.seed(seed)
    policy = DiscreteQLearningPolicy(
        model=Net(state_shape=4, action_shape=2, hidden_sizes=[8]),
        action_space=gym.spaces.Discrete(2),
        eps_training=0.3,
    )
    algorithm = cls(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        n_step_return_horizon=3,
        target_update_freq=20,
    )
    collector = Collector(policy, envs, buffer, exploration_noise=True)
    collector.reset()
    algorithm.run_training(
        OffPolicyTrainerParams(
            max_epochs=1,
            epoch_num_steps=steps,
            training_collector=collector,
            collection_step_num_env_steps=40,
            update_step_num_gradient_steps_per_sample=0.25,
            batch_size=16,
            show_progress=False,
            verbose=False,
        )
    )
    return algorithm


def parameters(algorithm: DQN) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.policy.model.parameters()])


def test_every_draw_is_answered_and_moves_priorities() -> None:
    _, buffer = train()
    assert len(buffer.drawn) == len(buffer.answers) == 60
    assert [indices for indices, _ in buffer.drawn] == [indices for indices, _ in buffer.answers]
    assert len(buffer) == 200  # 240 steps: some rows were overwritten
    assert buffer.stale_updates == 0

    index, td_errors = buffer.answers[-1]
    last = dict(zip(index, td_errors, strict=True))
    want = [(abs(td_error) + 1e-6) ** 0.6 for td_error in last.values()]
    np.testing.assert_allclose(buffer._sampler.tree.masses(list(last)), want, rtol=1e-6)
    assert len(np.unique(buffer._sampler.tree.masses())) > 50


def test_weights_reach_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    step = DQN._update_with_batch

    def spy(self: DQN, batch: Any) -> Any:
        weight = batch.weight
        stats = step(self, batch)  # leaves the TD errors in batch.weight
        seen.append((stats.loss, float((batch.weight.detach() ** 2 * weight).mean()), weight))
        return stats

    monkeypatch.setattr(DQN, "_update_with_batch", spy)
    _, buffer = train()
    for (loss, weighted, weight), (_, sampled) in zip(seen, buffer.drawn, strict=True):
        assert loss == pytest.approx(weighted, rel=1e-5)
        assert weight.tolist() == sampled
        assert weight.shape == (16,)
    assert min(float(weight.min()) for *_, weight in seen) < 0.9


@pytest.mark.parametrize("weight_norm", [True, False])
def test_same_seeds_same_parameters(weight_norm: bool) -> None:
    first, second = (train(seed=1, weight_norm=weight_norm) for _ in range(2))
    assert first[1].drawn == second[1].drawn
    assert torch.equal(parameters(first[0]), parameters(second[0]))
    other, _ = train(seed=2, weight_norm=weight_norm)
    assert not torch.equal(parameters(first[0]), parameters(other))


@pytest.mark.parametrize("options", [{}, {"ignore_obs_next": True}], ids=str)
def test_training_on_a_uniform_buffer_is_the_same_to_the_last_bit(options: dict[str, Any]) -> None:
    theirs, ours = (
        train_on(cls(60, random_seed=5, **options), seed=3, steps=160, env_num=1)
        for cls in (tianshou.data.ReplayBuffer, ReplayBuffer)
    )
    assert torch.equal(parameters(theirs), parameters(ours))


@pytest.mark.parametrize(
    "make",
    [
        lambda: VectorReplayBuffer(120, 4),
        lambda: PrioritizedVectorReplayBuffer(120, 4, alpha=0.6, beta=0.4),
        lambda: PrioritizedReplayBuffer(120, alpha=0.6, beta=0.4),
        lambda: VectorReplayBuffer(120, 4, ignore_obs_next=True),
        lambda: tianshou.data.ReplayBuffer(120),
    ],
    ids=["vector", "prioritized vector", "prioritized", "without obs_next", "Tianshou's"],
)
def test_n_step_returns_of_rows_train_the_same_to_the_last_bit(make: Any) -> None:
    class FasterDQN(NStepReturnsOfRows, DQN):
        pass

    buffers = [make(), make()]
    env_num = getattr(buffers[0], "buffer_num", 1)
    plain, faster = (
        train_on(buffer, seed=3, steps=160, env_num=env_num, cls=cls)
        for buffer, cls in zip(buffers, (DQN, FasterDQN), strict=True)
    )
    assert torch.equal(parameters(plain), parameters(faster))
    assert len(buffers[0]) == 120
