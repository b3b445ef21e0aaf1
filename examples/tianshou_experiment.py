"""Prioritized DQN on CartPole with Tianshou's experiment builder: one line says which buffer.

The builders need what `pip install "tianshou[eval]"` adds.
"""

from __future__ import annotations

import torch
from tianshou.highlevel.config import OffPolicyTrainingConfig
from tianshou.highlevel.env import EnvFactoryRegistered, VectorEnvType
from tianshou.highlevel.experiment import DQNExperimentBuilder, Experiment, ExperimentConfig
from tianshou.highlevel.params.algorithm_params import DQNParams

from kary_replay import LinearSchedule
from kary_replay.adapters.tianshou.collector import PrioritizedCollectorFactory

EPOCHS = 10
EPOCH_STEPS = 5_000


def make_experiment(
    seed: int = 0, epochs: int = EPOCHS, epoch_steps: int = EPOCH_STEPS
) -> Experiment:
    draws = epochs * epoch_steps // 2  # as many as gradient steps
    return (
        DQNExperimentBuilder(
            EnvFactoryRegistered(
                task="CartPole-v1",
                venv_type=VectorEnvType.DUMMY,
            ),
            ExperimentConfig(seed=seed, persistence_enabled=False, watch=False),
            OffPolicyTrainingConfig(
                max_epochs=epochs,
                epoch_num_steps=epoch_steps,
                batch_size=128,
                num_training_envs=10,
                num_test_envs=10,
                test_step_num_episodes=10,
                buffer_size=20_000,
                collection_step_num_env_steps=100,
                update_step_num_gradient_steps_per_sample=0.5,
            ),
        )
        .with_dqn_params(
            DQNParams(
                lr=1e-3,
                gamma=0.95,  # returns small enough for a squared loss
                n_step_return_horizon=3,
                target_update_freq=100,
                eps_training=0.1,
            )
        )
        .with_model_factory_default(hidden_sizes=(64, 64))
        .with_collector_factory(
            PrioritizedCollectorFactory(alpha=0.6, beta=LinearSchedule(0.4, 1.0, draws))
        )
        .build()
    )


if __name__ == "__main__":
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    result = make_experiment().run()
    print(f"best mean return: {result.trainer_result.best_reward:.1f}")
