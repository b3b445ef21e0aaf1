"""Stock SAC, stock SAC with our buffer, and prioritized SAC of 3-step returns, on Pendulum.

    python examples/sb3_one_import.py [steps]

What differs between the three are the two lines that say which classes are used.
"""

from __future__ import annotations

import sys
import time

import torch
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from kary_replay.adapters.sb3 import PrioritizedSAC, ReplayBuffer

CHOICES = {
    "stock": (SAC, {}),
    "our buffer": (SAC, {"replay_buffer_class": ReplayBuffer}),
    "prioritized, 3 steps": (PrioritizedSAC, {"n_steps": 3}),
}


def train(name: str, steps: int) -> str:
    algorithm, options = CHOICES[name]
    env = make_vec_env("Pendulum-v1", seed=0)
    model = algorithm("MlpPolicy", env, learning_starts=500, seed=0, device="cpu", **options)
    start = time.perf_counter()
    model.learn(steps)
    seconds = time.perf_counter() - start
    mean, spread = evaluate_policy(model, env, n_eval_episodes=5)
    return f"{name:<22}{mean:8.0f} +- {spread:<6.0f}{steps / seconds:6.0f} steps/s"


if __name__ == "__main__":
    torch.set_num_threads(1)  # the networks are small: threads would only wait for each other
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    print(f"mean return of 5 episodes after {steps} steps")
    for name in CHOICES:
        print(train(name, steps))
