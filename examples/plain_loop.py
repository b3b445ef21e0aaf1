"""Prioritized replay in a loop of your own: learns which of 1,000 noisy cells pays what.

A cell is an observation, its payment the reward; the value table is the learner. Cells that
surprise it are drawn more often, and the weights take the bias out again.
"""

from __future__ import annotations

import numpy as np

from kary_replay import LinearSchedule, PrioritizedReplayBuffer

CELLS, STEPS, BATCH = 1_000, 20_000, 256


def main() -> None:
    rng = np.random.default_rng(0)
    payment = rng.exponential(size=CELLS)
    buffer = PrioritizedReplayBuffer(
        10_000,
        {"cell": ((), np.int64), "reward": ((), np.float32)},
        beta=LinearSchedule(0.4, 1.0, STEPS),
        seed=0,
    )
    value = np.zeros(CELLS)
    for step in range(STEPS):
        cell = rng.integers(CELLS)
        buffer.add(cell=cell, reward=rng.normal(payment[cell], 0.1))
        batch = buffer.sample(BATCH)
        td_errors = batch["reward"] - value[batch["cell"]]
        np.add.at(value, batch["cell"], 0.01 * batch.weights * td_errors)
        buffer.update_priorities(batch.keys, td_errors)
        if (step + 1) % 5_000 == 0:
            error = np.abs(value - payment).mean()
            print(f"step {step + 1:6d}  beta {buffer.beta:.2f}  mean error {error:.4f}")


if __name__ == "__main__":
    main()
