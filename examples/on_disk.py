"""A buffer in a directory: it outlives the process, and may be larger than memory.

The same call makes the directory and opens it again. Each part below is a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from kary_replay import LinearSchedule, PrioritizedReplayBuffer

COLUMNS = {"obs": ((8,), np.float32), "reward": ((), np.float32)}
STEPS = 10_000


def run(directory: Path) -> None:
    """A part of a training: goes on where the part before it stopped."""
    buffer = PrioritizedReplayBuffer(
        100_000, COLUMNS, beta=LinearSchedule(0.4, 1.0, 100), storage=directory, seed=0
    )
    print(f"opened with {len(buffer):6,} rows, beta {buffer.beta:.2f}", end="")
    rng = np.random.default_rng(len(buffer))
    for _ in range(STEPS):
        buffer.add(obs=rng.random(8, dtype=np.float32), reward=rng.random())
    for _ in range(20):
        batch = buffer.sample(256)
        buffer.update_priorities(batch.keys, batch["reward"] - 0.5)
    print(f"; left with {len(buffer):6,} rows, beta {buffer.beta:.2f}")


def main() -> None:
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place) / "replay"
        for _ in range(3):
            subprocess.run([sys.executable, __file__, str(directory)], check=True)
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
        print(f"{size / 2**20:.1f} MiB in {directory.name}/")


if __name__ == "__main__":
    main()
