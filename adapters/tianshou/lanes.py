"""Where each sub-buffer of a vector buffer is written to next, and the episode it is in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Int64s: TypeAlias = npt.NDArray[np.int64]
Array: TypeAlias = npt.NDArray[Any]


TIANSHOUS = {
    "heads": "_insertion_idx",
    "lengths": "_size",
    "starts": "_ep_start_idx",
    "steps": "_ep_len",
}


class Added(NamedTuple):
    """What `add` returns, of n rows; return and length are 0 while the episode goes on."""

    rows: Int64s
    returns: Array
    lengths: Int64s
    starts: Int64s


class Lanes:
    """The state of `number` rings of `size` rows each, which lie one behind the other.

    heads     the row of each ring that is written next, from 0
    lengths   how many of its rows are filled
    last      the index, over all rings, of the row that was written last
    starts    the row at which the episode began that goes on
    steps     how many rows of it there are
    returns   and the sum of their rewards
    """

    def __init__(self, number: int, size: int) -> None:
        self.size = size
        self.offsets: Int64s = np.arange(number, dtype=np.int64) * size
        self.heads, self.lengths, self.starts, self.steps = np.zeros((4, number), np.int64)
        self.last = self.offsets.copy()
        # Of the smallest dtype, which gives way to that of the first rewards.
        self.returns: Array = np.zeros(number, np.float16)

    @classmethod
    def of(cls, buffers: Sequence[Any]) -> Lanes:
        """The state of Tianshou's own sub-buffers."""
        lanes = cls(len(buffers), buffers[0].maxsize)
        for name, attribute in TIANSHOUS.items():
            getattr(lanes, name)[:] = [getattr(buffer, attribute) for buffer in buffers]
        lanes.last += np.concatenate([buffer.last_index for buffer in buffers])
        lanes.returns = np.array(np.broadcast_arrays(*(buffer._ep_return for buffer in buffers)))
        return lanes

    def clear(self, lanes: int | slice, keep_statistics: bool) -> None:
        """Forgets the rows; the sums of the episode go on with `keep_statistics`."""
        for zeroed in (self.heads, self.lengths, self.starts):
            zeroed[lanes] = 0
        self.last[lanes] = self.offsets[lanes]
        if not keep_statistics:
            self.steps[lanes] = 0
            self.returns[lanes] = 0

    def next_rows(self, lanes: Array | slice) -> Int64s:
        """The indices of the rows that are written next, one of each of `lanes`."""
        return self.offsets[lanes] + self.heads[lanes]

    def advance(
        self, lanes: Array | slice, rows: Int64s, rewards: Array, done: npt.NDArray[np.bool_]
    ) -> Added:
        """Counts one more row, the next one, in each of `lanes`: all differ; a slice is faster."""
        self._make_room_for(rewards)
        self.last[lanes] = rows
        self.heads[lanes] = (rows - self.offsets[lanes] + 1) % self.size
        self.lengths[lanes] = np.minimum(self.lengths[lanes] + 1, self.size)
        starts = self.offsets[lanes] + self.starts[lanes]
        self.returns[lanes] += rewards
        self.steps[lanes] += 1
        return Added(rows, *self._finish(lanes, done), starts)

    def _make_room_for(self, rewards: Array) -> None:
        """Gives sums the shape of a reward, and its dtype; float64 if that is not a float's."""
        shape = rewards.shape[1:]
        if rewards.dtype == self.returns.dtype and shape == self.returns.shape[1:]:
            return
        exact = rewards.dtype if rewards.dtype.kind in "fc" else np.float64
        dtype = np.result_type(self.returns, exact)
        if dtype != self.returns.dtype or shape != self.returns.shape[1:]:
            before = self.returns.reshape(-1, *(1,) * len(shape))
            self.returns = np.zeros((len(self.heads), *shape), dtype) + before.astype(dtype)

    def _finish(self, lanes: Array | slice, done: npt.NDArray[np.bool_]) -> tuple[Array, Int64s]:
        """Returns and lengths of the episodes that end, 0 for others; new ones begin."""
        returns = np.zeros((len(done), *self.returns.shape[1:]), self.returns.dtype)
        lengths = np.zeros(len(done), np.int64)
        if np.count_nonzero(done):
            ended = np.arange(len(self.heads))[lanes][done]
            returns[done], lengths[done] = self.returns[ended], self.steps[ended]
            self.returns[ended], self.steps[ended] = 0, 0
            self.starts[ended] = self.heads[ended]
        return returns, lengths
