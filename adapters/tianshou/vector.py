"""Tianshou's vector buffer: many rings of rows, worked on all at once.

The state of its sub-buffers lies in arrays (`Lanes`); the sub-buffers that it hands out are views
of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from tianshou import data
from tianshou.data.types import RolloutBatchProtocol

from kary_replay.checks import check_count

from .buffers import ReplayBuffer
from .lanes import Array, Int64s, Lanes
from .neighbours import rows_before, rows_behind

OPTIONS = ("stack_num", "ignore_obs_next", "save_only_last_obs", "sample_avail")


class ReplayBufferManager(ReplayBuffer, data.ReplayBufferManager):
    """A buffer of sub-buffers of one size, each with the rows of one environment."""

    replaces: ClassVar[type] = data.ReplayBufferManager

    _child: type[SubBuffer]  # of which sub-buffers are

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int = 42,
    ) -> None:
        check_count("total_size", total_size)
        check_count("buffer_num", buffer_num)
        check_count("stack_num", stack_num)
        lanes = Lanes(int(buffer_num), -(-int(total_size) // int(buffer_num)))
        options = (stack_num, ignore_obs_next, save_only_last_obs, sample_avail)
        children = [self._child(lanes, lane, *options) for lane in range(buffer_num)]
        data.ReplayBufferManager.__init__(self, children)  # type: ignore[arg-type]
        self._random_state = np.random.RandomState(random_seed)
        self._checked = self._meta
        self._take_over(lanes)

    def _take_over(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._lengths, self.last_index = lanes.lengths, lanes.last  # Tianshou's names for them

    def add(
        self,
        batch: RolloutBatchProtocol,
        buffer_ids: npt.NDArray[np.int_] | list[int] | None = None,
    ) -> tuple[Array, Array, Array, Array]:
        """Stores one transition in each of some sub-buffers.

        Parameters
        ----------
        batch : Batch of n rows
            With obs, act, rew, terminated, truncated, and obs_next unless it is ignored.  Keys
            that are not Tianshou's own are left out.
        buffer_ids : integers, shape (n,), or None
            The sub-buffer of each row; None for one row of each.

        Returns
        -------
        Indices, and of the episodes that end return and length (0 of others); the indices at
        which episodes began.  Arrays of shape (n,).

        Raises ValueError or IndexError for what does not fit, and leaves the buffer as it was.
        """
        lanes = np.arange(self.buffer_num) if buffer_ids is None else np.asarray(buffer_ids)
        values = self._values(batch, (len(lanes),))
        rewards, done = np.asarray(values.rew), np.asarray(values.done)
        if not len(rewards) == len(done) == len(lanes):
            raise ValueError(
                f"batch must have one row for each of buffer_ids, got {len(rewards)} for {lanes}"
            )
        rows = self._lanes.next_rows(lanes)
        in_order = rows.tolist()
        if len(set(in_order)) < len(rows):
            return self._add_in_turn(batch, lanes)
        self._store(rows, values, (len(lanes),))
        everyone = len(rows) == self.buffer_num and in_order == sorted(in_order)
        return self._lanes.advance(slice(None) if everyone else lanes, rows, rewards, done)

    def _add_in_turn(self, batch: Any, lanes: Array) -> tuple[Array, Array, Array, Array]:
        """Several rows for one sub-buffer."""
        added = [self.add(batch[row : row + 1], lanes[row : row + 1]) for row in range(len(lanes))]
        return tuple(np.concatenate(of_all) for of_all in zip(*added, strict=True))  # type: ignore[return-value]

    def _stored(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Those of a batch's fields that are stored: Tianshou's own."""
        return {key: fields[key] for key in self._reserved_keys if key in fields}

    def _columns_changed(self) -> None:
        super()._columns_changed()
        self._set_batch_for_children()

    def _set_batch_for_children(self) -> None:
        if self._meta.get_keys():
            for child, start in zip(self.buffers, self._lanes.offsets.tolist(), strict=True):
                child._meta = self._meta[start : start + self._lanes.size]

    def dropnull(self) -> None:
        """Refused: rows that move would leave the sub-buffers wrong, as they do in Tianshou."""
        raise NotImplementedError("dropnull is for buffers without sub-buffers")

    def reset(self, keep_statistics: bool = False) -> None:
        """Forgets all rows, and the sums of the episodes that go on, unless they are kept."""
        self._lanes.clear(slice(None), keep_statistics)

    def unfinished_index(self) -> Int64s:
        """The newest rows of the episodes that go on."""
        newest = self._lanes.last[self._lanes.lengths > 0]
        if not len(newest):
            return newest
        going_on: Int64s = newest[~self.done[newest]]
        return going_on

    def prev(self, index: Any) -> Any:
        """The indices of the rows before, or the same where an episode begins."""
        return self._neighbours(index, rows_before)

    def next(self, index: Any) -> Any:
        """The indices of the rows behind, or the same where an episode ends or goes on."""
        return self._neighbours(index, rows_behind)

    def _neighbours(self, index: Any, of: Any) -> Any:
        rows, lanes = np.asarray(index, np.int64), self._lanes
        found = of(rows.reshape(-1), np.asarray(self.done), lanes.last, lanes.lengths, lanes.size)
        # An array for an array or a list, a number for a number.
        return found.reshape(rows.shape) if isinstance(index, (list, np.ndarray)) else found[0]

    def sample_indices(self, batch_size: int | None) -> Array:
        """Draws indices, each row with the same probability, with replacement.

        0 gives those of all rows in order, None of all rows in random order, a negative number
        none.  ValueError if there is none to draw.
        """
        if batch_size is None or batch_size < 0:
            return ReplayBuffer.sample_indices(self, batch_size)
        if batch_size == 0 or (self._sample_avail and self.stack_num > 1):
            rows = self._all_rows()
            return self._random_state.choice(rows, batch_size) if batch_size else rows
        if len(self) == 0:
            raise ValueError("cannot sample from an empty buffer")
        return self._nth_rows(self._random_state.randint(len(self), size=batch_size))

    def _nth_rows(self, nth: Array) -> Int64s:
        """The rows of these numbers, if filled rows are numbered from 0."""
        lanes = self._lanes
        if len(self) == self.maxsize:
            return nth
        ends = np.cumsum(lanes.lengths)
        lane = np.searchsorted(ends, nth, side="right")
        rows: Int64s = nth - (ends - lanes.lengths - lanes.offsets)[lane]
        return rows

    def _all_rows(self) -> Int64s:
        """All rows that may be drawn, lane by lane, the oldest first."""
        lanes = self._lanes
        age = [np.roll(np.arange(n), -h) for n, h in zip(lanes.lengths, lanes.heads, strict=True)]
        rows = np.concatenate([a + start for a, start in zip(age, lanes.offsets, strict=True)])
        return rows[self._has_stack(rows)] if self._sample_avail else rows

    @property
    def _ring_size(self) -> int:
        return self._lanes.size

    @property
    def _filled(self) -> Int64s:
        return self._lanes.lengths

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        for view in ("buffers", "_lengths", "last_index"):
            del state[view]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A file of Tianshou's own class has sub-buffers with a state of their own.
        self._take_over(state["_lanes"] if "_lanes" in state else Lanes.of(state["buffers"]))
        self.buffers = np.empty(self.buffer_num, object)
        options = [self.options[name] for name in OPTIONS]
        for lane in range(self.buffer_num):
            fresh = Lanes(self.buffer_num, self._lanes.size)
            self.buffers[lane] = self._child(fresh, lane, *options)
            self.buffers[lane]._lanes = self._lanes
        self._set_batch_for_children()


class _Shared:
    """An attribute of a sub-buffer that lies in the arrays of all of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, buffer: Any, owner: type) -> Any:
        return getattr(buffer._lanes, self._name)[buffer._lane]

    def __set__(self, buffer: Any, value: Any) -> None:
        getattr(buffer._lanes, self._name)[buffer._lane] = value


class SubBuffer(ReplayBuffer):
    """One environment's part of a vector buffer: its rows and its state are views."""

    _insertion_idx = _Shared("heads")
    _size = _Shared("lengths")
    _ep_start_idx = _Shared("starts")
    _ep_len = _Shared("steps")
    _ep_return = _Shared("returns")

    def __init__(self, lanes: Lanes, lane: int, *options: Any) -> None:
        self._lanes, self._lane = lanes, lane
        super().__init__(lanes.size, *options)

    def _update_state_pre_add(self, rew: Any, done: Any) -> Any:
        lane = slice(self._lane, self._lane + 1)
        rows = self._lanes.next_rows(lane)
        added = self._lanes.advance(lane, rows, np.asarray(rew)[None], np.asarray(done)[None])
        start = self._lanes.offsets[self._lane]
        return added.rows[0] - start, added.returns[0], added.lengths[0], added.starts[0] - start

    @property
    def last_index(self) -> Int64s:
        """The index within the sub-buffer of its newest row, shape (1,)."""
        newest: Int64s = self._lanes.last[[self._lane]] - self._lanes.offsets[self._lane]
        return newest

    @last_index.setter
    def last_index(self, index: Int64s) -> None:
        self._lanes.last[self._lane] = self._lanes.offsets[self._lane] + index[0]


class ReadOnlySubBuffer(SubBuffer):
    """A part of a buffer that has more to write than rows, of which the part knows nothing."""

    def add(self, *_: Any, **__: Any) -> Any:
        """Refused, as `update`, `set_array_at_key` and `dropnull` are, and `reset` of rows."""
        raise NotImplementedError("rows are written by the buffer of all sub-buffers: add there")

    update = set_array_at_key = dropnull = add

    def reset(self, keep_statistics: bool = False) -> None:
        if len(self):
            self.add()
        super().reset(keep_statistics)


class VectorReplayBuffer(ReplayBufferManager, data.VectorReplayBuffer):
    """Takes the place of `tianshou.data.VectorReplayBuffer`: change the import.

    Draws are over the rows of all sub-buffers, each with the same probability, by one generator
    that follows `random_seed`.

    Parameters
    ----------
    total_size : int >= 1
        Rows in all; each sub-buffer gets total_size / buffer_num, rounded up.
    buffer_num : int >= 1
        Sub-buffers: at least as many as the collector has environments.
    stack_num, ignore_obs_next, save_only_last_obs, sample_avail, random_seed
        As for `ReplayBuffer`.

    `hasnull` takes constant time, as for `ReplayBuffer`.
    """

    replaces: ClassVar[type] = data.VectorReplayBuffer
    _child = SubBuffer
