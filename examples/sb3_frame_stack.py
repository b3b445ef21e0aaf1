"""Prioritized DQN on stacks of 4 frames, each of which is stored once: an eighth of the memory.

    python examples/sb3_frame_stack.py [steps]

The game is a ball that falls, and a paddle to catch it: a single frame does not show which way it
drifts.  For an Atari game, `make_atari_env` takes the place of `make_vec_env`; the rest stays.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecFrameStack

from kary_replay.adapters.sb3 import PrioritizedDQN

SIDE, STACK, ROWS = 36, 4, 5_000


class Catch(gym.Env[NDArray[np.uint8], int]):
    """Reward 1 for a ball that is caught, -1 for one that is not; 8 of them are an episode."""

    observation_space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.balls, self.paddle = 0, SIDE // 2
        self._throw()
        return self._frame(), {}

    def _throw(self) -> None:
        self.x, self.y = int(self.np_random.integers(6, SIDE - 6)), 0
        self.drift = int(self.np_random.integers(-1, 2))

    def step(self, action: int) -> Any:
        self.paddle = int(np.clip(self.paddle + 3 * (action - 1), 4, SIDE - 5))
        self.x, self.y = int(np.clip(self.x + self.drift, 1, SIDE - 2)), self.y + 3
        reward = 0.0
        if self.y >= SIDE - 3:
            reward = 1.0 if abs(self.x - self.paddle) <= 4 else -1.0
            self.balls += 1
            self._throw()
        return self._frame(), reward, self.balls == 8, False, {}

    def _frame(self) -> NDArray[np.uint8]:
        frame = np.zeros((SIDE, SIDE, 1), np.uint8)
        frame[self.y : self.y + 3, self.x - 1 : self.x + 2] = 255
        frame[-2:, self.paddle - 4 : self.paddle + 5] = 255
        return frame


def main(steps: int) -> None:
    torch.set_num_threads(1)
    env = VecFrameStack(make_vec_env(Catch, seed=0), STACK)
    model = PrioritizedDQN(
        "CnnPolicy",
        env,
        buffer_size=ROWS,
        replay_buffer_kwargs={"frame_stack": STACK},
        learning_starts=500,
        learning_rate=5e-4,
        train_freq=2,
        target_update_interval=500,
        exploration_fraction=0.3,
        policy_kwargs={"features_extractor_kwargs": {"features_dim": 128}},
        seed=0,
        device="cpu",
    )
    stock = ReplayBuffer(ROWS, model.observation_space, env.action_space, "cpu")
    theirs = stock.observations.nbytes + stock.next_observations.nbytes
    ours = model.replay_buffer.observations.nbytes
    print(f"frames take {ours / 1e6:.0f} MB, stacks would take {theirs / 1e6:.0f} MB")
    model.learn(steps)
    mean, _ = evaluate_policy(model, env, n_eval_episodes=10)
    print(f"caught {(mean + 8) / 2:.1f} of 8 balls after {steps} steps")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15_000)
