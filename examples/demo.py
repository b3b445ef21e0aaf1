"""`make demo`: prioritized DQN on CartPole in both frameworks, a table, and the learning curves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
from measured import EPISODES, SOLVED, Run

EXAMPLES = {"stable_baselines3": "sb3_cartpole", "tianshou": "tianshou_cartpole"}
PICTURE = Path("out/demo.png")


def main() -> None:
    runs = []
    for framework, example in EXAMPLES.items():
        if find_spec(framework) is None:
            print(f"{framework} is not installed: left out")
            continue
        train: Callable[[], Run] = import_module(example).train
        print(f"\nPrioritized DQN on CartPole-v1, {framework}", flush=True)
        runs.append(train())
    if not runs:
        sys.exit("neither framework is installed")
    print_table(runs)
    draw_curves(runs)


def print_table(runs: list[Run]) -> None:
    print(f"\n{'framework':<18} {'steps':>7} {'seconds':>8} {'in buffer':>10} {'mean return':>12}")
    for run in runs:
        share = run.buffer_seconds / run.seconds
        ended = "solved" if run.solved else f"step limit reached below {SOLVED:.0f}"
        print(
            f"{run.framework:<18} {run.steps:>7,} {run.seconds:>8.1f} {share:>10.1%} "
            f"{run.mean_return:>12.1f}  {ended}"
        )
    print(f"Mean return of the last evaluation, {EPISODES} episodes without exploration.")


def draw_curves(runs: list[Run]) -> None:
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run in runs:
        steps, returns = zip(*run.curve, strict=True)
        axes.plot(steps, returns, marker=".", label=run.framework)
    axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    axes.annotate(f"solved: {SOLVED:.0f}", (0, SOLVED), va="bottom", color="grey", fontsize=8)
    axes.set(
        xlabel="environment steps",
        ylabel=f"mean return of {EPISODES} episodes",
        title="Prioritized DQN on CartPole-v1",
        ylim=(0, 520),
    )
    axes.legend(loc="lower right")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    print(f"Learning curves: {PICTURE}")


if __name__ == "__main__":
    main()
