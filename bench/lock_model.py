"""What more cores than we have would do: a model of the locks, from the times that we measured.

    python bench/lock_model.py [out/bench.json]

Workers repeat the jobs of bench_concurrency.py against 64 locks of parts and one of the top, as
_parts.pyx takes them:

    insert   the rows' part: retire | copy | the rows' part: publish
    draw     top, if it is owed anything
    update   the parts that 256 drawn rows lie in, one by one, from any one on

What a lock protects lies in cache lines, and a holder fetches those that another core has
changed; rows that adjoin are copied by several at once.  lock_times.py, on one core, cannot see
that: it is fitted (Fetch).  Who waits spins, then naps (_lock.h).  Where there are more workers
than cores, these change hands every SLICE, in the middle of a hold too.

Prints what it says of as many cores as there are, beside what bench_concurrency.py measured with
processes; then draws a picture of more cores, beside the file or in out/, for the layout that
there is, and for the one that there was, where the part that the head is in is hot:

    dealt out      every 16 rows lie in the next part
    in one piece   all rows of a part adjoin

Memory's bandwidth is no part of it: a learner's step moves 0.2 MB, 1 GB/s for each worker.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import simpy
from bench_concurrency import NARROW, random_rows
from lock_times import LockTimes, measure

from kary_replay import PrioritizedReplayBuffer

Process = Generator[simpy.Event, Any, None]
Hold = Generator[simpy.Event, Any, float]  # and how long

PARTS = 64
TOP = PARTS
BATCH = 256
SLICE = 3000.0  # µs
SPIN = 4.0  # µs, KARY_SPINS pauses
SPINS = 4  # releases that a waiter sees others profit from in that time
NAP = 100.0  # µs, the shortest, with what the kernel adds to it
CAPACITY = 2**20
CORES = 1, 2, 4, 8, 16, 32, 64
EFFICIENT = 0.8  # of a linear speedup; below it, locks are said to saturate


class Mix(NamedTuple):
    """`adds` calls with `rows` rows each, and for a learner a draw and an update."""

    adds: int
    rows: int
    learns: bool = True


JOBS = {  # as bench_concurrency.py calls them
    "insert 1 row": Mix(16, 1, learns=False),
    "insert 16 rows": Mix(16, 16, learns=False),
    "learn: 4 inserts of 1 row": Mix(4, 1),
    "learn: 16 inserts of 16 rows": Mix(16, 16),
}
LAYOUTS: dict[str, Callable[[int], int]] = {  # number of a row to its part
    "dealt out": lambda row: row // 16 % PARTS,
    "in one piece": lambda row: row % CAPACITY * PARTS // CAPACITY,
}


class Fetch(NamedTuple):
    """What a holder waits for lines that another core has changed since, µs.

    Fitted to inserts of 1 to 64 rows by two processes (side_by_side.py) whose cores were near each
    other; what learners cost each other then came out right.
    """

    part: float = 0.05  # lock and count, bounds, inner nodes
    row: float = 0.01  # tag and leaf
    top: float = 0.03
    beside: float = 0.02  # under no lock: of each row, next to those that another core is copying

    def from_afar(self) -> Fetch:
        """Between cores that share no cache; fitted to the same, when a host had moved them."""
        return Fetch(*(7 * time for time in self))


@dataclass
class Lock:
    """Who holds it, and who did last; how long it was held in all."""

    released: simpy.Event
    holder: int | None = None
    last: int | None = None
    held: float = 0.0


@dataclass
class Machine:
    """Cores, locks, and what is owed to the top."""

    env: simpy.Environment
    cores: simpy.Resource
    times: LockTimes
    fetch: Fetch
    layout: Callable[[int], int]
    locks: list[Lock]
    owed: set[int] = field(default_factory=set)
    head: int = 0  # rows that were ever put in
    newest: int | None = None  # whose the newest are
    head_held: float = 0.0  # how long inserts held parts
    steps: int = 0

    def next_parts(self, rows: int) -> dict[int, int]:
        """Where the rows that come now lie: part to how many."""
        self.head += rows
        return Counter(map(self.layout, range(self.head - rows, self.head)))


class Worker:
    """Repeats a mix for ever."""

    def __init__(self, number: int, machine: Machine, mix: Mix) -> None:
        self.number, self.machine, self.mix = number, machine, mix
        self.rng, self.left = np.random.default_rng(number), 0.0
        self.env = machine.env

    def run(self) -> Process:
        times = self.machine.times
        yield from self._take_core()
        while True:
            for _ in range(self.mix.adds):
                yield from self._insert(self.mix.rows)
            if self.mix.learns:
                yield from self._hold(TOP, times.top, self.machine.fetch.top)
                yield from self._work(times.sample)
                yield from self._update()
            self.machine.steps += 1

    def _insert(self, rows: int) -> Process:
        times, fetch = self.machine.times, self.machine.fetch
        yield from self._work(times.insert)
        parts = self.machine.next_parts(rows)
        is_beside = self.machine.newest not in (None, self.number)
        self.machine.newest = self.number
        for work_after in (rows * (times.copy + is_beside * fetch.beside), 0.0):
            for part, here in parts.items():
                hold = times.visit + times.climb + here * times.adjoining
                held = yield from self._hold(part, hold, fetch.part + here * fetch.row)
                self.machine.head_held += held
                self.machine.owed.add(part)
            yield from self._work(work_after)

    def _update(self) -> Process:
        times, fetch = self.machine.times, self.machine.fetch
        yield from self._work(times.update)
        leaves = np.bincount(self.rng.integers(PARTS, size=BATCH), minlength=PARTS)
        first = int(self.rng.integers(PARTS))
        for part in (*range(first, PARTS), *range(first)):
            if not leaves[part]:
                continue
            hold = times.visit + times.climb + leaves[part] * times.leaf
            yield from self._hold(part, hold, fetch.part)
            self.machine.owed.add(part)

    def _hold(self, number: int, hold: float, fetch: float) -> Hold:
        """Waits for a lock and holds it; not the top's, if nothing is owed any more."""
        lock, is_top = self.machine.locks[number], number == TOP
        naps = 0
        while lock.holder is not None:
            yield from self._wait(lock, naps)
            naps += 1
        if is_top and not self.machine.owed:
            return 0.0
        if is_top:
            self.machine.owed.clear()
        if lock.last not in (None, self.number):
            hold += fetch
        lock.holder = lock.last = self.number
        began = self.env.now
        yield from self._work(hold)
        held = self.env.now - began
        lock.held += held
        lock.holder = None
        lock.released.succeed()
        lock.released = self.env.event()
        return held

    def _wait(self, lock: Lock, naps: int) -> Process:
        """Spins until somebody releases it; later, naps without a core."""
        began = self.env.now
        if naps < SPINS:
            yield lock.released | self.env.timeout(SPIN)
            self.left -= self.env.now - began
            return
        self._give_core()
        yield self.env.timeout(NAP)
        yield from self._take_core()

    def _work(self, time: float) -> Process:
        """Needs a core for so long."""
        while time > 0.0:
            if self.left <= 0.0:
                if self.machine.cores.queue:
                    self._give_core()
                    yield from self._take_core()
                else:
                    self.left = SLICE
            turn = min(time, self.left)
            yield self.env.timeout(turn)
            self.left, time = self.left - turn, time - turn

    def _take_core(self) -> Process:
        self.core = self.machine.cores.request()
        yield self.core
        self.left = SLICE * self.rng.uniform(0.5, 1.0)

    def _give_core(self) -> None:
        self.machine.cores.release(self.core)


class Outcome(NamedTuple):
    """Of a run of the model."""

    steps_per_second: float
    top: float  # share of the time that it was held
    hot: float  # the same of parts that rows went into, together; in one piece that is one


def simulate(
    workers: int,
    cores: int,
    mix: Mix,
    times: LockTimes,
    fetch: Fetch,
    *,
    layout: str = "dealt out",
) -> Outcome:
    """Until each worker has made some steps, of which the first quarter does not count."""
    steps = max(12, 200 // workers)
    env = simpy.Environment()
    locks = [Lock(env.event()) for _ in range(PARTS + 1)]
    machine = Machine(env, simpy.Resource(env, cores), times, fetch, LAYOUTS[layout], locks)
    for number in range(workers):
        env.process(Worker(number, machine, mix).run())
    _run_until(env, machine, workers * steps // 4)
    before, began = machine.steps, env.now
    machine.head_held = 0.0
    for lock in locks:
        lock.held = 0.0
    _run_until(env, machine, workers * steps)
    passed = env.now - began
    held = [lock.held / passed for lock in locks]
    rate = 1e6 * (machine.steps - before) / passed
    return Outcome(rate, held[TOP], machine.head_held / passed)


def _run_until(env: simpy.Environment, machine: Machine, steps: int) -> None:
    while machine.steps < steps:
        env.step()


class Curve(NamedTuple):
    """The speedup that a layout has on more and more cores, a worker on each."""

    job: str
    layout: str
    afar: bool
    outcomes: list[Outcome]

    @property
    def speedups(self) -> list[float]:
        alone = self.outcomes[0].steps_per_second
        return [outcome.steps_per_second / alone for outcome in self.outcomes]

    @property
    def verdict(self) -> str:
        """Up to which number of cores it pays."""
        efficient = [c for c, s in zip(CORES, self.speedups, strict=True) if s >= EFFICIENT * c]
        last = self.outcomes[-1]
        lock = "top" if last.top > last.hot else "part of the new rows"
        saturates = "" if efficient[-1] == CORES[-1] else f"; on {CORES[-1]} the {lock} is held "
        saturates += f"{max(last.top, last.hot):.0%} of the time" if saturates else ""
        return f"{efficient[-1]}{saturates}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", help="what --benchmark-json wrote")
    file = parser.parse_args().file
    times = _lock_times()
    print("µs:", ", ".join(f"{name} {us:.3f}" for name, us in times._asdict().items()))
    measured = _measured(file) if file else {}
    cores = os.cpu_count() or 1
    print(f"\n| {cores} cores | workers | measured | model |\n|---|---|---|---|")
    for job, mix in JOBS.items():
        alone = simulate(1, cores, mix, times, Fetch()).steps_per_second
        for workers in (2, 4, 8):
            model = simulate(workers, cores, mix, times, Fetch()).steps_per_second / alone
            seen = measured.get((job, workers))
            print(f"| {job} | {workers} | {f'{seen:.2f}' if seen else ''} | {model:.2f} |")
    curves = _curves(times)
    print(f"\n| job | layout | lines | {' | '.join(map(str, CORES))} | efficient up to |")
    print("|---" * (len(CORES) + 4) + "|")
    for curve in curves:
        speedups = " | ".join(f"{speedup:.1f}" for speedup in curve.speedups)
        lines = "from afar" if curve.afar else "near"
        print(f"| {curve.job} | {curve.layout} | {lines} | {speedups} | {curve.verdict} |")
    picture = (file or Path("out/bench.json")).with_name("locks.png")
    picture.parent.mkdir(exist_ok=True)
    _draw(curves, picture)
    print(f"\nThe picture is in {picture}.")


def _lock_times() -> LockTimes:
    rng = np.random.default_rng(0)
    buffer = PrioritizedReplayBuffer(CAPACITY, NARROW, storage="shared", seed=0)
    rows = random_rows(rng, CAPACITY // 16, NARROW)
    for _ in range(2 * 16 + 1):
        buffer.add(**rows)
    for _ in range(100):
        buffer.update_priorities(buffer.sample(BATCH).keys, rng.random(BATCH))
    few = {name: column[:BATCH] for name, column in rows.items()}
    return min((measure(buffer, few) for _ in range(3)), key=lambda times: times.sample)


def _measured(file: Path) -> dict[tuple[str, int], float]:
    """Job and number of processes to speedup of ours."""
    speedups = {}
    for benchmark in json.loads(file.read_text(encoding="utf-8"))["benchmarks"]:
        info = benchmark["extra_info"]
        if info.get("workers") == "processes":
            for job, rivals in info["paces"].items():
                ours = next(iter(rivals.values()))
                rates = {int(n): median(rate for rate, *_ in ours[n]) for n in ours}
                speedups |= {(job, n): rate / rates[1] for n, rate in rates.items()}
    return speedups


def _curves(times: LockTimes) -> list[Curve]:
    return [
        Curve(job, layout, afar, [simulate(n, n, mix, times, fetch, layout=layout) for n in CORES])
        for job, mix in JOBS.items()
        if mix.learns
        for layout in LAYOUTS
        for afar, fetch in ((False, Fetch()), (True, Fetch().from_afar()))
    ]


def _draw(curves: list[Curve], picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    jobs = list(dict.fromkeys(curve.job for curve in curves))
    figure, panels = pyplot.subplots(1, len(jobs), figsize=(11, 5), layout="constrained")
    for job, axes in zip(jobs, panels, strict=True):
        axes.plot(CORES, CORES, color="grey", linestyle=":", label="linear")
        for curve in curves:
            if curve.job == job:
                color = f"C{list(LAYOUTS).index(curve.layout)}"
                style = "o--" if curve.afar else "o-"
                label = f"{curve.layout}, lines from {'afar' if curve.afar else 'near'}"
                axes.plot(CORES, curve.speedups, style, color=color, label=label)
        axes.set(title=job, xlabel="cores, a worker on each", ylabel="times one worker")
        axes.set(xscale="log", yscale="log", xticks=CORES, yticks=CORES)
        axes.set(xticklabels=CORES, yticklabels=CORES)
        axes.minorticks_off()
    panels[0].legend()
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main()
