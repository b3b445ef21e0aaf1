"""How long locks are held, from the outside: differences between calls that differ in one thing.

    update of keys that are gone     finds nothing to do under the lock of one part, or of all
    update of n keys in k parts      k holds, of n leaves in all
    insert of n rows                 two holds of a part for every 16, n copies

All on one core, so no hold contains what it costs to fetch lines that another core has changed.
Times are of the thread's own clock, medians, in microseconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kary_replay import PrioritizedReplayBuffer

Keys = NDArray[np.int64]

ROUNDS = 41
CALLS = 32
BATCH = 256
PARTS = 64
HAND = 16  # slots that adjoin in one part


class LockTimes(NamedTuple):
    """Microseconds."""

    visit: float  # to take a part's lock and release it
    climb: float  # beside it, the nodes of the part above the first leaf that changed
    leaf: float  # each of BATCH leaves of all parts, with the nodes above it
    adjoining: float  # each leaf among many that adjoin
    top: float  # the hold of the top, where all parts have changed
    update: float  # a call of update_priorities, without what it does to parts and top
    insert: float  # a call of add, without the same and without its copies
    copy: float  # one row
    sample: float  # a call that draws BATCH


def measure(buffer: PrioritizedReplayBuffer, rows: dict[str, NDArray[np.generic]]) -> LockTimes:
    """Of a buffer of one lane that has been filled twice; `rows` are BATCH that it takes."""
    ring = buffer._ring
    newest = int(ring.heads[0])
    live = np.arange(newest - buffer.capacity, newest)
    by_slot = live[np.argsort(live % buffer.capacity)]
    gone = by_slot - buffer.capacity
    firsts = HAND * np.arange(PARTS)  # slots, one in each part
    of_one_part = (HAND * PARTS * np.arange(BATCH // HAND)[:, None] + np.arange(HAND)).ravel()
    rng = np.random.default_rng(0)

    def update(keys: Keys) -> Callable[[], object]:
        masses = rng.random(len(keys)) + 0.5
        return lambda: ring.update(keys, masses)

    def insert(count: int) -> Callable[[], object]:
        few = {name: np.ascontiguousarray(column[:count]) for name, column in rows.items()}
        return lambda: buffer.add(**few)

    def spread() -> Keys:
        return rng.choice(by_slot, BATCH)

    calls: dict[str, list[Callable[[], object]]] = {
        "gone, 1": [update(gone[firsts[:1]])] * CALLS,
        "gone, 64": [update(gone[firsts])] * CALLS,
        "1": [update(by_slot[firsts[:1]])] * CALLS,
        "64": [update(by_slot[firsts])] * CALLS,
        "adjoining": [update(by_slot[of_one_part])] * CALLS,
        "spread": [update(spread()) for _ in range(CALLS)],
        "update": [
            partial(buffer.update_priorities, spread(), rng.random(BATCH)) for _ in range(CALLS)
        ],
        "sample": [lambda: buffer.sample(BATCH)] * CALLS,
        "insert 1": [insert(1)] * CALLS,
        "insert": [insert(BATCH)] * CALLS,
    }
    levels = math.ceil(math.log(buffer.capacity // PARTS, buffer._sampler.fanout))
    return _from_differences(_medians(calls), levels)


def _from_differences(us: dict[str, float], levels: int) -> LockTimes:
    """`levels` of the tree lie in a part.

    The top is too short to see: it is reckoned from its nine families and two visits, the second
    for the word that says which parts have changed.
    """
    visit = (us["gone, 64"] - us["gone, 1"]) / (PARTS - 1)
    adjoining = (us["adjoining"] - us["1"]) / (BATCH - 1)
    climb = (us["64"] - us["1"]) / (PARTS - 1) - visit - adjoining
    family = climb / levels
    top = 2 * visit + 9 * family
    in_parts = us["spread"] - us["gone, 1"]
    leaf = (in_parts - PARTS * (visit + climb)) / BATCH
    more_parts = BATCH // HAND - 1
    more = us["insert"] - us["insert 1"] - 2 * more_parts * (visit + climb)
    copy = more / (BATCH - 1) - 2 * adjoining
    insert = us["insert 1"] - 2 * (visit + climb + adjoining) - copy
    update = us["update"] - us["spread"] + us["gone, 1"]
    return LockTimes(visit, climb, leaf, adjoining, top, update, insert, copy, us["sample"])


def _medians(calls: dict[str, list[Callable[[], object]]]) -> dict[str, float]:
    """Microseconds a call, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, turn in calls.items():
            start = time.thread_time()
            for call in turn:
                call()
            times[name].append((time.thread_time() - start) / len(turn))
    return {name: 1e6 * median(measured) for name, measured in times.items()}
