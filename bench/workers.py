"""Workers, threads or processes, that repeat one step side by side for a short window.

Processes are forked once and wait for work, so that the memory they share is in their page
tables when the clock starts; threads are made for each window.  A window begins and ends at
moments that all have been told, and each counts the steps that it began within them: their sum
is the throughput, whoever was slower.  The clock is the one on the wall: several cores are at
work, and waiting counts.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import NamedTuple

Step = Callable[[], object]
MakeStep = Callable[[int], Step]  # of the worker's number

WINDOW = 0.15  # seconds
LEAD = 0.02  # seconds, in which everybody hears of the window
PATIENCE = 60.0  # seconds; a worker that takes longer hangs


class Window(NamedTuple):
    """What to repeat, and between which moments of time.monotonic."""

    job: str
    begin: float
    end: float


class Pace(NamedTuple):
    """Of all workers together."""

    steps_per_second: float
    cpu_per_step: float  # seconds
    longest_step: float  # seconds, with all that kept its worker waiting


class Threads:
    """Up to `most` threads of this process."""

    def __init__(self, jobs: Mapping[str, MakeStep], most: int) -> None:
        self._steps = {job: [make(worker) for worker in range(most)] for job, make in jobs.items()}

    def run(self, job: str, workers: int) -> Pace:
        window = _next_window(job)
        paces: list[Pace] = []
        threads = [
            threading.Thread(target=lambda step=step: paces.append(_repeat(step, window)))
            for step in self._steps[job][:workers]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return _together(paces)

    def close(self) -> None:
        """Nothing to do: no thread outlives its window."""


class Processes:
    """`most` processes, forked from this one as it is now."""

    def __init__(self, jobs: Mapping[str, MakeStep], most: int) -> None:
        fork = multiprocessing.get_context("fork")
        pipes = [fork.Pipe() for _ in range(most)]
        self._ends = [mine for mine, _ in pipes]
        self._processes = [
            fork.Process(target=_serve, args=(theirs, jobs, worker), daemon=True)
            for worker, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def run(self, job: str, workers: int) -> Pace:
        window = _next_window(job)
        for end in self._ends[:workers]:
            end.send(window)
        return _together([_answer(end) for end in self._ends[:workers]])

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _next_window(job: str) -> Window:
    begin = time.monotonic() + LEAD
    return Window(job, begin, begin + WINDOW)


def _serve(end: Connection, jobs: Mapping[str, MakeStep], worker: int) -> None:
    steps = {job: make(worker) for job, make in jobs.items()}
    while True:
        window = end.recv()
        end.send(_repeat(steps[window.job], window))


def _answer(end: Connection) -> Pace:
    if not end.poll(PATIENCE):
        raise TimeoutError(f"a worker has not answered for {PATIENCE} s")
    pace: Pace = end.recv()
    return pace


def _together(paces: list[Pace]) -> Pace:
    rate = sum(pace.steps_per_second for pace in paces)
    cpu = sum(pace.steps_per_second * pace.cpu_per_step for pace in paces) / rate
    return Pace(rate, cpu, max(pace.longest_step for pace in paces))


def _repeat(step: Step, window: Window) -> Pace:
    """From the beginning of the window to the end of the last step."""
    time.sleep(max(0.0, window.begin - time.monotonic()))
    steps, longest, now, cpu = 0, 0.0, time.monotonic(), time.thread_time()
    while now < window.end or steps == 0:
        began = now
        step()
        steps += 1
        now = time.monotonic()
        longest = max(longest, now - began)
    cpu = time.thread_time() - cpu
    return Pace(steps / (now - window.begin), cpu / steps, longest)
