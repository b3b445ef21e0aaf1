"""What two processes cost each other, on a machine that has other work to do.

    python bench/side_by_side.py

Throughput says little where others take the cores away.  Here each of two processes, on a core of
its own, writes down when each of its steps began; steps through all of which the other one ran
("together") are then compared with those while it was kept from running ("alone").  A step that
was interrupted counts as neither.  The same with a buffer each shows what the machine itself
takes.  On a machine with nothing else to do there are few steps alone.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
from bench_concurrency import CAPACITY, NARROW, NARROW_JOBS, WIDE, WIDE_CAPACITY, WIDE_JOBS, fill
from numpy.typing import NDArray
from rivals_shared import Kary
from workers import Step

WINDOW = 1_500_000_000  # ns
WARM_UP = 500_000_000  # ns, in which the memory comes into their page tables
INTERRUPTED = 6  # times the median

Starts = NDArray[np.int64]  # ns


class Costs(NamedTuple):
    """Durations of steps, ns."""

    alone: list[float]
    together: list[float]

    def row(self) -> str:
        alone, together = np.mean(self.alone), np.mean(self.together)
        return f"{alone / 1e3:.2f} | {together / 1e3:.2f} | {2 * alone / together:.2f}"


def main() -> None:
    kinds = (CAPACITY, NARROW, NARROW_JOBS), (WIDE_CAPACITY, WIDE, WIDE_JOBS)
    figures = "alone, µs | together, µs | speedup"
    print(f"| job | {figures} | a buffer each: {figures} |")
    print("|---" * 7 + "|")
    for capacity, columns, jobs in kinds:
        shared, *own = (Kary(capacity, columns, "shared") for _ in range(3))
        for buffer in (shared, *own):
            fill(buffer, capacity, columns)
        for name, job in jobs.items():
            rows = [
                _costs([job.step(buffers, columns, i) for i in (0, 1)]).row()
                for buffers in ([shared, shared], own)
            ]
            print(f"| {name} | {' | '.join(rows)} |", flush=True)


def _costs(steps: list[Step]) -> Costs:
    fork = multiprocessing.get_context("fork")
    begin = time.perf_counter_ns() + WARM_UP
    pipes = [fork.Pipe(duplex=False) for _ in steps]
    processes = [
        fork.Process(target=_log, args=(theirs, core, steps[core], begin), daemon=True)
        for core, (_, theirs) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    first, second = (np.frombuffer(mine.recv_bytes(), np.int64) for mine, _ in pipes)
    for process in processes:
        process.join()
    costs = Costs([], [])
    for mine, other in ((first, second), (second, first)):
        _compare(mine, other, costs)
    return costs


def _log(end: Connection, core: int, step: Step, begin: int) -> None:
    os.sched_setaffinity(0, {core})
    starts = []
    now = time.perf_counter_ns()
    while now < begin + WINDOW:
        if now >= begin:
            starts.append(now)
        step()
        now = time.perf_counter_ns()
    end.send_bytes(np.array(starts, np.int64).tobytes())


def _compare(mine: Starts, other: Starts, costs: Costs) -> None:
    took = np.diff(mine)
    share = _running(other, mine) / took
    whole = took < INTERRUPTED * np.median(took)
    seen = (mine[:-1] >= other[0]) & (mine[1:] <= other[-1])
    costs.alone.extend(took[whole & seen & (share < 0.01)].tolist())
    costs.together.extend(took[whole & seen & (share > 0.97)].tolist())


def _running(other: Starts, mine: Starts) -> NDArray[np.float64]:
    """For how long the other one ran during each of my steps."""
    took = np.diff(other)
    ran = np.where(took < INTERRUPTED * np.median(took), took, 0)
    return np.diff(np.interp(mine, other, np.concatenate([[0], np.cumsum(ran)])))


if __name__ == "__main__":
    main()
