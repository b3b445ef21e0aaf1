"""Prioritized DQN on CartPole with Tianshou: train until solved, or to the step limit."""

from __future__ import annotations

import time

import gymnasium as gym
import numpy as np
import torch
from measured import EPISODES, SOLVED, Run
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from kary_replay import LinearSchedule
from kary_replay.adapters.tianshou import PrioritizedVectorReplayBuffer

STEP_LIMIT = 60_000
EVALUATE_EVERY = 2_000
ENVS = 10


def make_training_env() -> gym.Env:
    """Rewards small enough for a squared loss: with Huber's, Tianshou's DQN ignores the weights."""
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 0.02 * reward)


def make_algorithm() -> DQN:
    net = Net(state_shape=4, action_shape=2, hidden_sizes=[64, 64])
    policy = DiscreteQLearningPolicy(model=net, action_space=gym.spaces.Discrete(2))
    return DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=2e-3),
        gamma=0.99,
        n_step_return_horizon=3,
        target_update_freq=100,
    )


def make_collector(algorithm: DQN, seed: int) -> Collector:
    """Collects with exploration into the prioritized buffer."""
    buffer = PrioritizedVectorReplayBuffer(
        20_000, ENVS, alpha=0.6, beta=LinearSchedule(0.4, 1.0, STEP_LIMIT // 2), random_seed=seed
    )
    envs = DummyVectorEnv([make_training_env] * ENVS)
    envs.seed(seed)
    collector = Collector(algorithm.policy, envs, buffer, exploration_noise=True)
    collector.reset()
    return collector


def make_evaluation(algorithm: DQN, seed: int) -> Collector:
    envs = DummyVectorEnv([lambda: gym.make("CartPole-v1")] * ENVS)
    envs.seed(seed + 1_000)
    collector = Collector(algorithm.policy, envs)
    collector.reset()
    return collector


def train(seed: int = 0) -> Run:
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (Tianshou explores with it)
    run = Run("Tianshou")
    algorithm = make_algorithm()
    collector = make_collector(algorithm, seed)
    run.watch(collector.buffer, "add", "sample", "update_weight")

    def explore(_epoch: int, step: int) -> None:
        run.steps = step
        algorithm.policy.set_eps_training(max(0.1, 1.0 - 0.9 * step / 4_000))

    def solved(mean_return: float) -> bool:
        run.curve.append((run.steps, mean_return))
        return mean_return >= SOLVED

    start = time.perf_counter()
    explore(0, 0)
    collector.collect(n_step=1_000)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=make_evaluation(algorithm, seed),
            test_step_num_episodes=EPISODES,
            max_epochs=STEP_LIMIT // EVALUATE_EVERY,
            epoch_num_steps=EVALUATE_EVERY,
            collection_step_num_env_steps=100,
            batch_size=128,
            update_step_num_gradient_steps_per_sample=0.5,
            training_fn=explore,
            stop_fn=solved,
            verbose=False,
        )
    )
    run.seconds = time.perf_counter() - start
    return run


if __name__ == "__main__":
    print(train())
