"""Tianshou's segment tree, as far as a prioritized buffer shows it, on the K-ary sum tree."""

from __future__ import annotations

from typing import Any

import numpy as np

from kary_replay import SumTree


class Weight:
    """The attribute `weight` of a prioritized buffer: each row's priority ** alpha."""

    def __init__(self, tree: SumTree) -> None:
        self._tree = tree

    def __len__(self) -> int:
        return self._tree.capacity

    def __getitem__(self, index: Any) -> Any:
        """In the shape of `index`."""
        rows = np.asarray(index)
        masses = self._tree.masses(rows.reshape(-1)).reshape(rows.shape)
        return masses[()]

    def __setitem__(self, index: Any, value: Any) -> None:
        rows = np.atleast_1d(index)
        self._tree.update(rows, np.broadcast_to(value, rows.shape))

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """The sum of rows start .. end - 1."""
        return self._tree.sum(start, end)

    def get_prefix_sum_idx(self, value: Any) -> Any:
        """The first rows whose running sums are above `value`; `value` stays as it is."""
        targets = np.asarray(value, np.float64)
        return self._tree.find(targets.reshape(-1)).reshape(targets.shape)[()]
