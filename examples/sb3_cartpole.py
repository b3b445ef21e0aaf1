"""Prioritized DQN on CartPole with Stable-Baselines3: train until solved, or to the step limit."""

from __future__ import annotations

import time

import gymnasium as gym
import torch
from measured import EPISODES, Run
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from kary_replay.adapters.sb3 import PrioritizedDQN

STEP_LIMIT = 50_000
EVALUATE_EVERY = 2_048


class Evaluation(BaseCallback):
    """Adds to the run's curve every so often, and stops the training once it is solved."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.env = Monitor(gym.make("CartPole-v1"))
        self.env.reset(seed=1)

    def _on_step(self) -> bool:
        if self.num_timesteps % EVALUATE_EVERY == 0:
            self._evaluate()
        return not self.run.solved

    def _on_training_end(self) -> None:
        if not self.run.solved:
            self._evaluate()

    def _evaluate(self) -> None:
        mean, _ = evaluate_policy(self.model, self.env, n_eval_episodes=EPISODES)
        self.run.curve.append((self.num_timesteps, float(mean)))


def train(seed: int = 0) -> Run:
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    run = Run("Stable-Baselines3")
    model = PrioritizedDQN(
        "MlpPolicy",
        "CartPole-v1",
        learning_rate=2.3e-3,
        buffer_size=50_000,
        learning_starts=1_000,
        batch_size=64,
        train_freq=256,
        gradient_steps=128,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
    )
    run.watch(model.replay_buffer, "add", "sample", "update_priorities")
    start = time.perf_counter()
    model.learn(STEP_LIMIT, callback=Evaluation(run), progress_bar=True)
    run.seconds = time.perf_counter() - start
    run.steps = model.num_timesteps
    return run


if __name__ == "__main__":
    print(train())
