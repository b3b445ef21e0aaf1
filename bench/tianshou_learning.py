"""Learning curves of Tianshou's DQN on CartPole: its prioritized buffer and ours.

    python bench/tianshou_learning.py --seeds 10 --steps 30000

Each with a fixed beta and with one that `set_beta` anneals, which Tianshou's vector buffer
ignores: its two curves are the same to the last digit.  At equal settings (independent draws,
Tianshou's eps) the curves with our buffer and with Tianshou's should differ by chance alone.  Of
two variants the difference of the mean returns, over all evaluations and seeds, is printed with
its 95 % interval (bootstrap over the seeds) and the p-value of a Mann-Whitney test.  Curves go to
out/tianshou_learning.npz and .png.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import tianshou.data
import tianshou_trainings as trainings
import torch
from numpy.typing import NDArray
from scipy import stats
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams

from kary_replay.adapters import tianshou as ours

OUT = Path("out")
EVALUATE_EVERY = 1_000
EPISODES = 10
ALPHA, BETA = 0.6, 0.4
EQUAL = {"stratified": False, "eps": float(np.finfo(np.float32).eps)}


class Variant(NamedTuple):
    """Whose buffer, with which keywords, and whether beta is annealed."""

    module: Any
    keywords: dict[str, Any]
    annealed: bool


VARIANTS = {
    "Tianshou": Variant(tianshou.data, {}, False),
    "Tianshou, set_beta": Variant(tianshou.data, {}, True),
    "kary-replay": Variant(ours, EQUAL, False),
    "kary-replay, set_beta": Variant(ours, EQUAL, True),
}


def curve(variant: Variant, seed: int, steps: int) -> NDArray[np.float64]:
    """Mean returns of evaluations, one for every EVALUATE_EVERY steps."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (Tianshou explores and draws with it)
    cls, arguments = trainings.dqn(trainings.ENVIRONMENTS["CartPole"]())
    algorithm = cls(**arguments)
    buffer = variant.module.PrioritizedVectorReplayBuffer(
        20_000,
        trainings.ENVS,
        alpha=ALPHA,
        beta=BETA,
        **({"random_seed": seed} | variant.keywords),
    )
    returns: list[float] = []

    class Evaluation(Collector):
        def collect(self, *args: Any, **kwargs: Any) -> Any:
            stats = super().collect(*args, **kwargs)
            returns.append(stats.returns_stat.mean)
            return stats

    def anneal(_epoch: int, step: int) -> None:
        if variant.annealed:
            buffer.set_beta(min(1.0, BETA + (1.0 - BETA) * step / steps))

    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector(
                Collector, algorithm, seed, buffer=buffer, exploration_noise=True
            ),
            test_collector=collector(Evaluation, algorithm, seed + 1_000),
            test_step_num_episodes=EPISODES,
            max_epochs=steps // EVALUATE_EVERY,
            epoch_num_steps=EVALUATE_EVERY,
            collection_step_num_env_steps=trainings.ENVS,
            update_step_num_gradient_steps_per_sample=0.1,
            batch_size=64,
            training_fn=anneal,
            test_in_training=False,
            show_progress=False,
            verbose=False,
        )
    )
    return np.array(returns[-(steps // EVALUATE_EVERY) :])


def collector(cls: type[Collector], algorithm: Any, seed: int, **keywords: Any) -> Collector:
    envs = DummyVectorEnv([trainings.ENVIRONMENTS["CartPole"]] * trainings.ENVS)
    envs.seed(seed)
    made = cls(algorithm.policy, envs, **keywords)
    made.reset()
    return made


def compare(curves: dict[str, NDArray[np.float64]], one: str, other: str) -> str:
    """The difference of the mean returns of two variants, and what chance may make of it."""
    means = [curves[name].mean(axis=1) for name in (one, other)]
    low, high = stats.bootstrap(
        means,
        lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis),
        n_resamples=10_000,
        method="percentile",
        rng=0,
    ).confidence_interval
    p = stats.mannwhitneyu(*means).pvalue
    return (
        f"{one} - {other}: {means[0].mean() - means[1].mean():+.1f} "
        f"(95 % interval {low:+.1f} .. {high:+.1f}), Mann-Whitney p = {p:.2f}"
    )


def draw(curves: dict[str, NDArray[np.float64]], picture: Path) -> None:
    """Medians over the seeds, and what lies between their quartiles."""
    matplotlib.use("Agg")
    figure, axes = plt.subplots(figsize=(8, 5))
    for name, returns in curves.items():
        step = EVALUATE_EVERY * np.arange(1, returns.shape[1] + 1)
        low, middle, high = np.quantile(returns, (0.25, 0.5, 0.75), axis=0)
        dashes = "--" if VARIANTS[name].annealed else "-"
        (line,) = axes.plot(step, middle, dashes, label=name)
        axes.fill_between(step, low, high, alpha=0.15, color=line.get_color())
    axes.set(xlabel="environment steps", ylabel=f"mean return of {EPISODES} episodes")
    axes.legend()
    figure.savefig(picture, dpi=80, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30_000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    curves: dict[str, NDArray[np.float64]] = {}
    for name, variant in VARIANTS.items():
        runs = [curve(variant, seed, arguments.steps) for seed in range(arguments.seeds)]
        curves[name] = np.stack(runs)
        print(f"{name}: mean return {curves[name].mean():.1f}", flush=True)
    OUT.mkdir(exist_ok=True)
    np.savez(OUT / "tianshou_learning.npz", **curves)
    draw(curves, OUT / "tianshou_learning.png")
    for one, other in (
        ("kary-replay", "Tianshou"),
        ("kary-replay, set_beta", "kary-replay"),
        ("Tianshou, set_beta", "Tianshou"),
    ):
        same = np.array_equal(curves[one], curves[other])
        if arguments.seeds > 1:
            print(compare(curves, one, other))
        print(f"{one} and {other} are {'the same' if same else 'not the same'}, digit for digit")


if __name__ == "__main__":
    main()
