"""Frame stacks without storing stacks: each frame lies in memory once.

What the agent saw at step t are the frames t-3 .. t. They are put together when a batch is drawn,
and so is the stack after the step; before an episode's start the first frame is repeated.
"""

from __future__ import annotations

import numpy as np

from kary_replay import Column, Columns, ReplayBuffer, Stored, t

FRAME, STACK, CAPACITY, STEPS = (84, 84), 4, 2_000, 3_000

frame = Column("frame")
COLUMNS: Columns = {
    "frame": Stored(FRAME, np.uint8, with_next=True, drawn=False),
    "action": ((), np.int64),
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
    "obs": frame[t - STACK + 1 : t + 1].pad("edge"),
    "next_obs": frame[t - STACK + 2 : t + 2].pad("edge"),
}


def main() -> None:
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(CAPACITY, COLUMNS, seed=0)
    time = 0  # in the episode; every pixel shows it
    for _ in range(STEPS):
        terminated = rng.random() < 0.01
        buffer.add(
            frame=np.full(FRAME, time % 256, np.uint8),
            next_frame=np.full(FRAME, (time + 1) % 256, np.uint8),
            action=rng.integers(4),
            reward=1.0,
            terminated=terminated,
            truncated=False,
        )
        time = 0 if terminated else time + 1

    batch = buffer.sample(256)
    youngest = batch["obs"][:, -1, 0, 0].argmin()  # nearest to the start of its episode
    for name in ("obs", "next_obs"):
        print(f"{name:8}  {batch[name].shape}, frames {batch[name][youngest, :, 0, 0]}")
    stacks = 2 * STACK * np.prod(FRAME)
    print(f"bytes per transition: {buffer.nbytes / len(buffer):,.0f}; as stacks: {stacks:,}")


if __name__ == "__main__":
    main()
