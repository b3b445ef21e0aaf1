"""The law of the sum tree: cumulative sums over plain leaves, O(n), and no tree.

For tests only.  It says what `_sum_tree.SumTree` must answer wherever sums are exact (masses that
are integers); elsewhere the two add up in different orders and may differ by rounding.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64s = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


class SumTree:
    """The interface of the compiled tree.  `fanout` is kept and means nothing here."""

    def __init__(self, capacity: int, fanout: int = 8) -> None:
        if capacity < 1 or fanout < 2 or fanout & (fanout - 1):
            raise ValueError(
                f"capacity must be >= 1 and fanout a power of two, got {capacity}, {fanout}"
            )
        self.capacity = capacity
        self.fanout = fanout
        self._leaves = np.zeros(capacity)

    @property
    def total(self) -> float:
        return self.sum()

    def update(self, leaves: npt.ArrayLike, masses: npt.ArrayLike) -> None:
        after = self._leaves.copy()
        for leaf, mass in zip(np.atleast_1d(leaves), np.atleast_1d(masses), strict=True):
            if not 0 <= leaf < self.capacity:
                raise IndexError(f"leaves must be in 0 .. {self.capacity - 1}, got {leaf}")
            if not 0.0 <= mass < np.inf:
                raise ValueError(f"masses must be finite and >= 0, got {mass}")
            after[int(leaf)] = mass
        if not np.isfinite(np.cumsum(after)[-1]):
            raise ValueError("masses must have a finite total")
        self._leaves = after

    def find(self, targets: npt.ArrayLike) -> Int64s:
        wanted = np.asarray(targets, np.float64)
        if not ((wanted >= 0.0) & (wanted < self.total)).all():
            raise ValueError(f"targets must be in [0, {self.total}), got {wanted}")
        return np.searchsorted(np.cumsum(self._leaves), wanted, side="right").astype(np.int64)

    def draw(self, fractions: npt.ArrayLike) -> tuple[Int64s, Float64s, float]:
        wanted = np.asarray(fractions, np.float64) * self.total
        found = self.find(np.minimum(wanted, np.nextafter(self.total, 0.0)))
        return found, self.masses(found), self.total

    def masses(self, leaves: npt.ArrayLike | None = None) -> Float64s:
        return self._leaves.copy() if leaves is None else self._leaves[np.atleast_1d(leaves)]

    def sum(self, start: int = 0, stop: int | None = None) -> float:
        stop = self.capacity if stop is None else stop
        if not 0 <= start <= stop <= self.capacity:
            raise IndexError(f"0 <= start <= stop <= {self.capacity}, got {start} and {stop}")
        return float(np.append(0.0, np.cumsum(self._leaves[start:stop]))[-1])

    def largest(self) -> float:
        return float(self._leaves.max())

    def smallest(self) -> float:
        return float(np.min(self._leaves, where=self._leaves > 0.0, initial=np.inf))

    def check(self) -> None:
        if not (np.isfinite(self._leaves) & (self._leaves >= 0.0)).all():
            raise RuntimeError("a leaf is negative, infinite or NaN")
