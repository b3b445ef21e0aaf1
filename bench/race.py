"""Times rivals in turns, so that whatever the machine does meanwhile, it does to all of them.

pytest-benchmark times one function to its end before the next, and a machine's clock and its
other work drift in between.  So one test is one race of ROUNDS rounds.  In each round every rival
takes a turn of the same number of calls: first calls that are not timed, which bring part of its
memory back into the caches that the others have filled with theirs; then SEGMENTS segments that
are.  Every call has arguments of its own, made before the clock starts and never used again, so
no cache holds an answer; of a tree larger than the caches, most leaves lie outside them, as in a
training loop, where networks fill the caches between two draws.

The peers' turns are in the `setup` of our segments, which pytest-benchmark does not count.  Its
own table therefore shows ours, per segment; `extra_info["us"]` shows everybody, per call: the
median of all segments.

The clock is the process's own (time.process_time): it stands still while the machine gives the
core to somebody else, which would hit slow rivals more often than fast ones.  All run on one
thread and wait for nothing, so on a quiet machine it is the time on the wall.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from pytest_benchmark.fixture import BenchmarkFixture

ROUNDS = 10
SEGMENTS = 8  # in a turn

Call = Callable[[], object]
Segment = list[Call]


class Runner(NamedTuple):
    """Who runs, and how to make n calls ready, each with arguments of its own."""

    name: str
    prepare: Callable[[int], list[Call]]


def race(
    benchmark: BenchmarkFixture, calls: int, ours: Runner, *peers: Runner, rounds: int = ROUNDS
) -> None:
    """Puts {name: µs per call} into `extra_info["us"]`, ours first; `calls` to a segment."""
    seconds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    waiting: deque[Segment] = deque()  # in their order: a step follows the one before it

    def next_segment() -> tuple[tuple[Segment], dict[str, object]]:
        if not waiting:
            for peer in peers:
                seconds[peer.name] += map(_timed, _turn(peer, calls))
            waiting.extend(_turn(ours, calls))
        return (waiting.popleft(),), {}

    benchmark.pedantic(_run, setup=next_segment, rounds=rounds * SEGMENTS)
    figures = {name: median(times) for name, times in seconds.items()}
    if benchmark.stats:  # there are none with --benchmark-disable
        figures = {ours.name: benchmark.stats.stats.median} | figures
    benchmark.extra_info["us"] = {name: 1e6 * figures[name] / calls for name in figures}


def _turn(runner: Runner, calls: int) -> list[Segment]:
    """The segments of a turn, after calls that warm it up."""
    _run(runner.prepare(calls * SEGMENTS))
    return [runner.prepare(calls) for _ in range(SEGMENTS)]


def _timed(segment: Segment) -> float:
    start = time.process_time()  # as --benchmark-timer in pytest.ini
    _run(segment)
    return time.process_time() - start


def _run(segment: Segment) -> None:
    for call in segment:
        call()
