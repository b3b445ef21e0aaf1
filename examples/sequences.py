"""Sequences for recurrent agents: burn-in and unroll around each step that is drawn.

A recurrent network runs over the 8 steps before a step to warm its state up, and learns on the 16
steps from it on. An episode may begin or end within them: the mask says which steps it has.
Here the network is an exponential average, and the loss how far it is from the observation.
"""

from __future__ import annotations

import numpy as np

from kary_replay import Column, Columns, PrioritizedReplayBuffer, t

BURN_IN, UNROLL = 8, 16

obs = Column("obs")
around = slice(t - BURN_IN, t + UNROLL)
COLUMNS: Columns = {
    "obs": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
    "sequence": obs[around],
    "mask": obs[around].valid(),
}


def main() -> None:
    rng = np.random.default_rng(0)
    buffer = PrioritizedReplayBuffer(5_000, COLUMNS, seed=0)
    for length in rng.integers(5, 60, size=100):
        last = np.arange(length) == length - 1
        walk = rng.normal(size=length).cumsum().astype(np.float32)
        buffer.add(obs=walk, terminated=last, truncated=np.zeros(length, np.bool_))

    batch = buffer.sample(32)
    sequence, mask = batch["sequence"], batch["mask"]
    state, losses = np.zeros(32), np.zeros((32, BURN_IN + UNROLL))
    for step in range(BURN_IN + UNROLL):
        losses[:, step] = np.abs(sequence[:, step] - state)
        state = np.where(mask[:, step], 0.7 * state + 0.3 * sequence[:, step], state)
    learned = mask[:, BURN_IN:]
    td_errors = (losses[:, BURN_IN:] * learned).sum(axis=1) / learned.sum(axis=1)
    buffer.update_priorities(batch.keys, td_errors)

    print(f"sequences {sequence.shape}, of which {mask.mean():.0%} lie in their episodes")
    for row in range(5):
        steps = "".join("x" if valid else "." for valid in mask[row])
        print(f"{steps[:BURN_IN]} | {steps[BURN_IN:]}   loss {td_errors[row]:.2f}")


if __name__ == "__main__":
    main()
