"""Learning curves of stock DQN, and of prioritized DQN with alpha = 0.6 and with alpha = 0.

    python bench/learning_sb3.py CartPole-v1 --seeds 10
    python bench/learning_sb3.py LunarLander-v3 --seeds 5
    python bench/learning_sb3.py LunarLander-v3 --seeds 5 --slower 4

--slower divides the learning rate of all three: prioritized draws have larger gradients, for which
the authors of prioritized replay took a quarter of it (arXiv 1511.05952, section 4).

Each seed trains all three, with the same settings.  What is compared is the area under the curve
of evaluations, in units of return: how much larger than stock DQN's it is, with a bootstrap
interval of 95 % over the seeds.  The picture, of means between quartiles, and the figures go to
out/.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib as mpl
import numpy as np
import torch
from numpy.typing import NDArray
from settings_sb3 import SETTINGS
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from kary_replay.adapters.sb3 import PrioritizedDQN

mpl.use("Agg")
import matplotlib.pyplot as plt

EPISODES = 10  # of an evaluation
RESAMPLES = 10_000
STOCK = "DQN"
CONTESTANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    STOCK: (DQN, {}),
    "PrioritizedDQN": (PrioritizedDQN, {}),
    "PrioritizedDQN, alpha = 0": (
        PrioritizedDQN,
        {"replay_buffer_kwargs": {"alpha": 0.0}},
    ),
}
STEPS = {"CartPole-v1": 50_000, "LunarLander-v3": 100_000}


class Curve(BaseCallback):
    """Mean returns, `points` of them at equal distances."""

    def __init__(self, env: str, every: int) -> None:
        super().__init__()
        self.env, self.every = Monitor(gym.make(env)), every
        self.env.reset(seed=1)
        self.means: list[float] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self.every == 0:
            mean, _ = evaluate_policy(self.model, self.env, n_eval_episodes=EPISODES)
            self.means.append(float(mean))
        return True


def learn(
    env: str, contestant: str, seed: int, steps: int, points: int, slower: float
) -> list[float]:
    algorithm, options = CONTESTANTS[contestant]
    settings = SETTINGS[env] | {"learning_rate": SETTINGS[env]["learning_rate"] / slower}
    curve = Curve(env, steps // points)
    model = algorithm("MlpPolicy", env, seed=seed, device="cpu", **settings, **options)
    model.learn(steps, callback=curve)
    return curve.means


def interval(differences: NDArray[np.float64]) -> tuple[float, float]:
    """95 % of the means of as many seeds, drawn again from these."""
    rng = np.random.default_rng(0)
    means = rng.choice(differences, (RESAMPLES, len(differences))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def report(curves: dict[str, NDArray[np.float64]]) -> None:
    """`curves` have the shape (seeds, points)."""
    area = {name: curve.mean(axis=1) for name, curve in curves.items()}
    for name, areas in area.items():
        low, high = interval(areas - area[STOCK])
        print(
            f"{name:<28} area {areas.mean():8.1f}   beside {STOCK} "
            f"{np.mean(areas - area[STOCK]):+7.1f}   95 % [{low:+.1f}, {high:+.1f}]"
        )


def draw(curves: dict[str, NDArray[np.float64]], env: str, steps: int, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, curve in curves.items():
        at = np.linspace(0, steps, curve.shape[1] + 1)[1:]
        (line,) = axes.plot(at, curve.mean(axis=0), label=name)
        low, high = np.percentile(curve, [25, 75], axis=0)
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.15)
    seeds = next(iter(curves.values())).shape[0]
    axes.set(xlabel="environment steps", ylabel="mean return", title=f"{env}, {seeds} seeds")
    axes.legend()
    figure.savefig(path, dpi=80, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env", choices=list(SETTINGS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=None, help="fewer, to try it")
    parser.add_argument("--slower", type=float, default=1.0, help="learning rate, by this factor")
    parser.add_argument("--points", type=int, default=25, help="of a curve")
    parser.add_argument("--out", type=Path, default=Path("out"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    steps = given.steps or STEPS[given.env]
    run = partial(learn, steps=steps, points=given.points, slower=given.slower)
    curves = {
        name: np.array([run(given.env, name, seed) for seed in range(given.seeds)])
        for name in CONTESTANTS
    }
    report(curves)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"learning_{given.env}.png"
    draw(curves, given.env, steps, path)
    saved = {name: curve.tolist() for name, curve in curves.items()}
    path.with_suffix(".json").write_text(json.dumps({"steps": steps, "curves": saved}))
    print(path)


if __name__ == "__main__":
    main()
