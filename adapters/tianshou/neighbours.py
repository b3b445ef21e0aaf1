"""The rows before and behind rows, in rings that lie one behind the other.

Compiled by numba, as Tianshou's are, but for all rings in one pass.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@njit
def rows_before(rows: Int64s, done: Bools, last: Int64s, lengths: Int64s, size: int) -> Int64s:
    """Of each row the one before, or itself where its episode begins."""
    before = np.empty_like(rows)
    for i in range(len(rows)):
        row = rows[i] % len(done)
        lane = row // size
        start, length = lane * size, max(lengths[lane], 1)
        one = start + (row - start - 1) % length
        stays = done[one] or one == last[lane]
        before[i] = start + (one - start + stays) % length
    return before


@njit
def rows_behind(rows: Int64s, done: Bools, last: Int64s, lengths: Int64s, size: int) -> Int64s:
    """Of each row the one behind, or itself where its episode ends or goes on."""
    behind = np.empty_like(rows)
    for i in range(len(rows)):
        row = rows[i] % len(done)
        lane = row // size
        start, length = lane * size, max(lengths[lane], 1)
        stays = done[row] or row == last[lane]
        behind[i] = start + (row - start + 1 - stays) % length
    return behind
