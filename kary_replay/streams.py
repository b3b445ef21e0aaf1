"""Random numbers for child processes: none draws what its parent or a sibling draws.

A child's generator is made of the next bits of its parent's, read from a copy, so that the
parent's own draws stay what they are, and of which child it is.  The same program with the same
seed makes the same ones.
"""

from __future__ import annotations

import copy
import itertools
import os

import numpy as np

_path = [0]  # which child of which child ... by forks; last, how many this process had itself


def _count_child() -> None:
    _path[-1] += 1


def _enter_child() -> None:
    _path.append(0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_count_child, after_in_child=_enter_child)


class Lineage:
    """Which process draws from a generator, and to how many children it was handed over."""

    def __init__(self) -> None:
        self._depth = self._first = len(_path)  # getpid would take longer than all the rest
        self._handed_over = itertools.count(1)

    @property
    def is_forked(self) -> bool:
        """Whether this is a forked child of the process where the lineage began."""
        return len(_path) != self._first

    def of_this_process(self, rng: np.random.Generator) -> np.random.Generator:
        """`rng` itself; in a forked child, once, a generator of its own."""
        if len(_path) == self._depth:
            return rng
        self._depth = len(_path)
        return _of_child(rng, 0)

    def of_next_child(self, rng: np.random.Generator) -> np.random.Generator:
        """For a child that is being handed over to, by the process that `rng` is of."""
        return _of_child(rng, next(self._handed_over))


def _of_child(rng: np.random.Generator, handed_over: int) -> np.random.Generator:
    bits = copy.deepcopy(rng).integers(1 << 32, size=4, dtype=np.uint32)
    return np.random.default_rng([*bits.tolist(), *_path, handed_over])
