"""Buffers that several threads or processes use at once: ours, cpprb's, and ours behind a lock.

The lock is what people put around a buffer that knows nothing of other threads: threading.Lock
around a private one; for processes, which cannot share a private one, multiprocessing.Lock
around our shared one.

"a buffer each" is no rival but a measure: workers that share nothing are as fast as the
machine's cores and memory let them be.
"""

from __future__ import annotations

import multiprocessing
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import cpprb
import numpy as np
from numpy.typing import NDArray

from kary_replay import PrioritizedReplayBuffer

Columns = dict[str, tuple[tuple[int, ...], type]]
Rows = dict[str, NDArray[Any]]

ALPHA, BETA, EPS = 0.6, 0.4, 1e-6
OURS, PEER, EACH = "kary-replay", "cpprb MPPrioritizedReplayBuffer", "a buffer each"


class Buffer(Protocol):
    """What a worker uses."""

    def add(self, rows: Rows) -> object: ...

    def sample(self, size: int) -> Any:
        """Draws rows, and returns what `update` wants to know of them."""

    def update(self, drawn: Any, td_errors: NDArray[np.float64]) -> object: ...


def for_threads(capacity: int, columns: Columns, workers: int) -> dict[str, list[Buffer]]:
    """Name to the buffer of each worker, ours first."""

    def kary(lock: AbstractContextManager[Any] | None = None) -> Buffer:
        return Kary(capacity, columns, "private", lock)

    return {
        OURS: [kary()] * workers,
        PEER: [Cpprb(capacity, columns)] * workers,
        "threading.Lock": [kary(threading.Lock())] * workers,
        EACH: [kary() for _ in range(workers)],
    }


def for_processes(capacity: int, columns: Columns, workers: int) -> dict[str, list[Buffer]]:
    """As `for_threads`; a fork hands them over."""

    def kary(lock: AbstractContextManager[Any] | None = None) -> Buffer:
        return Kary(capacity, columns, "shared", lock)

    return {
        OURS: [kary()] * workers,
        PEER: [Cpprb(capacity, columns)] * workers,
        "multiprocessing.Lock": [kary(multiprocessing.Lock())] * workers,
        EACH: [kary() for _ in range(workers)],
    }


class Kary:
    """Ours, with a lock around each call or none."""

    def __init__(
        self,
        capacity: int,
        columns: Columns,
        storage: str,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.lock = lock or nullcontext()
        self.buffer = PrioritizedReplayBuffer(
            capacity, columns, alpha=ALPHA, beta=BETA, eps=EPS, storage=storage, seed=0
        )

    def add(self, rows: Rows) -> object:
        with self.lock:
            return self.buffer.add(**rows)

    def sample(self, size: int) -> Any:
        with self.lock:
            return self.buffer.sample(size).keys

    def update(self, drawn: Any, td_errors: NDArray[np.float64]) -> object:
        with self.lock:
            return self.buffer.update_priorities(drawn, td_errors)


class Cpprb:
    """cpprb's, which has locks of its own.  An update leaves part of its work to the next draw."""

    def __init__(self, capacity: int, columns: Columns) -> None:
        fields = {n: {"shape": shape or 1, "dtype": dtype} for n, (shape, dtype) in columns.items()}
        fork = multiprocessing.get_context("fork")
        self.buffer = cpprb.MPPrioritizedReplayBuffer(
            capacity, fields, alpha=ALPHA, eps=EPS, ctx=fork
        )

    def add(self, rows: Rows) -> object:
        return self.buffer.add(**rows)

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size, BETA)["indexes"]

    def update(self, drawn: Any, td_errors: NDArray[np.float64]) -> object:
        return self.buffer.update_priorities(drawn, td_errors)
