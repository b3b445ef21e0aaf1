"""n-step returns that are summed when a batch is drawn, from rewards that are stored once.

k is 3 steps, or fewer where the episode or the recording ends earlier. A learner's target is
return + discount * value(next_obs), whatever ended the episode: the discount is gamma ** k, and 0
after a termination.
"""

from __future__ import annotations

import numpy as np

from kary_replay import Column, Columns, Horizon, ReplayBuffer, Stored, t

GAMMA = 0.5

obs, reward, k = Column("obs"), Column("reward"), Horizon(3)
COLUMNS: Columns = {
    "obs": Stored((), np.float32, with_next=True),
    "reward": Stored((), np.float32, drawn=False),
    "terminated": Stored((), np.bool_, drawn=False),
    "truncated": Stored((), np.bool_, drawn=False),
    "return": reward[t : t + k].sum(GAMMA),
    "next_obs": obs[t + k],
    "discount": GAMMA**k,
}
EPISODES = (("terminated", 0, 5), ("truncated", 10, 4), ("goes on", 20, 4))


def main() -> None:
    buffer = ReplayBuffer(100, COLUMNS, seed=0)
    for ending, start, steps in EPISODES:
        times = np.arange(start, start + steps, dtype=np.float32)
        last = np.arange(steps) == steps - 1
        buffer.add(
            obs=times,
            next_obs=times + 1,
            reward=np.ones(steps, np.float32),
            terminated=last & (ending == "terminated"),
            truncated=last & (ending == "truncated"),
        )

    batch = buffer.sample(1_000)
    _, rows = np.unique(batch["obs"], return_index=True)
    for ending, start, steps in EPISODES:
        print(f"\n{ending}\n{'obs':>6} {'return':>8} {'next_obs':>9} {'discount':>9}")
        for row in rows[(batch["obs"][rows] >= start) & (batch["obs"][rows] < start + steps)]:
            cells = (batch[name][row] for name in ("obs", "return", "next_obs", "discount"))
            print("{:6.0f} {:8.2f} {:9.0f} {:9.3f}".format(*cells))


if __name__ == "__main__":
    main()
