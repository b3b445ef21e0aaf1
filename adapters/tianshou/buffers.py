"""Tianshou's replay buffer: its storage and its semantics, by shorter ways."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import h5py  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from tianshou import data
from tianshou.data.batch import alloc_by_keys_diff, create_value
from tianshou.data.types import RolloutBatchProtocol
from tianshou.data.utils.converter import to_hdf5

from kary_replay.checks import check_count

from .lanes import Array, Int64s
from .rows import any_nan, null_rows, plain_copies, put, shallow

REQUIRED = frozenset({"obs", "act", "rew", "terminated", "truncated"})
STACKED = frozenset({"obs", "obs_next", "info", "policy"})
# Of every batch, behind obs; in Tianshou's order.
FIELDS = ("act", "rew", "terminated", "truncated", "done", "obs_next", "info", "policy")
NOTHING = data.Batch()


class InPlaceOf(type):
    """Counts as instances those of the class that is replaced, too.

    So checks hold whose import was changed, for buffers that Tianshou makes by itself; its
    `CachedReplayBuffer` asks whether its own buffers are instances of the main one's class.
    """

    def __instancecheck__(cls, instance: Any) -> bool:
        replaced = cls.__dict__.get("replaces")  # a subclass's own, and so not a user's
        return isinstance(instance, replaced) if replaced else super().__instancecheck__(instance)


class ReplayBuffer(data.ReplayBuffer, metaclass=InPlaceOf):
    """Takes the place of `tianshou.data.ReplayBuffer`: change the import.

    Parameters
    ----------
    size : int >= 0
        Rows.
    stack_num : int >= 1
        Observations in a stack, none of them of another episode.
    ignore_obs_next : bool
        Next observations are not stored: they are those of the next rows.
    save_only_last_obs : bool
        Of observations that come as stacks the last is stored.
    sample_avail : bool
        Only rows with `stack_num` rows of their episode behind them, their own included, are drawn.
    random_seed : int
        Of the draws, which are those of Tianshou's class.

    `hasnull` takes constant time: rows are looked at when they are written by a method of the
    buffer.  What is written past it, into the arrays themselves, `isnull` finds.

    What `add` refuses leaves the buffer as it was.
    """

    replaces: ClassVar[type] = data.ReplayBuffer

    def __init__(
        self,
        size: int,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int = 42,
    ) -> None:
        if size != 0:
            check_count("size", size)
        check_count("stack_num", stack_num)
        # By its name: the next class of a prioritized buffer takes other arguments.
        data.ReplayBuffer.__init__(
            self,
            int(size),
            stack_num,
            ignore_obs_next,
            save_only_last_obs,
            sample_avail,
            random_seed,
        )
        self._checked: Any = self._meta

    def add(
        self,
        batch: RolloutBatchProtocol,
        buffer_ids: npt.NDArray[np.int_] | list[int] | None = None,
    ) -> tuple[Array, Array, Array, Array]:
        """Stores one transition.

        Parameters
        ----------
        batch : Batch
            With obs, act, rew, terminated, truncated, and obs_next unless it is ignored.
        buffer_ids : [0] or None
            [0] says that `batch` has a leading axis of 1.

        Returns
        -------
        Its index, and of the episode that it ends, if it does, return and length (else 0); the
        index at which its episode began.  Arrays of shape (1,).

        Raises ValueError for what does not fit, and leaves the buffer as it was.
        """
        lead = () if buffer_ids is None else (1,)
        if lead and (list(buffer_ids) != [0] or len(batch) != 1):  # type: ignore[arg-type]
            raise ValueError(
                "buffer_ids must be [0], for a batch of one row, or None; got "
                f"{buffer_ids!r} for {len(batch)} rows"
            )
        values = self._values(batch, lead)
        reward, done = (values.rew[0], values.done[0]) if lead else (values.rew, values.done)
        self._store(np.array([self._insertion_idx]), values, lead)
        index, *episode = self._update_state_pre_add(reward, done)
        return np.array([index]), *(np.array([of_it]) for of_it in episode)  # type: ignore[return-value]

    def _values(self, batch: Any, lead: tuple[int, ...]) -> data.Batch:
        """What is stored of `batch`, which stays as it is."""
        missing = REQUIRED - batch.get_keys()
        if missing:
            raise ValueError(f"batch must have {sorted(REQUIRED)}, {sorted(missing)} are missing")
        values = data.Batch()
        fields = values.__dict__
        fields.update(self._stored(batch.__dict__))
        fields["done"] = np.logical_or(batch.terminated, batch.truncated)
        if not self._save_obs_next:
            fields.pop("obs_next", None)
        if self._save_only_last_obs:
            newest = (*(slice(None),) * len(lead), -1)
            for key in fields.keys() & {"obs", "obs_next"}:
                values[key] = values[key][newest]
        return values

    def _stored(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Those of a batch's fields that are stored: all of them."""
        return fields

    def _store(self, rows: Int64s, values: data.Batch, lead: tuple[int, ...]) -> None:
        """Writes rows; all of them, or none and an error."""
        copies = plain_copies(cast(data.Batch, self._meta), values, lead)
        if copies is None:
            self._store_anything(rows, values, stack=not lead)
            return
        for column, value in copies:
            column[rows] = value
        if any_nan(copies):
            self._doubt()

    def _store_anything(self, rows: Int64s, values: data.Batch, stack: bool) -> None:
        """As Tianshou stores objects, tensors, and keys that are missing or new."""
        columns = shallow(cast(data.Batch, self._meta))
        before = self._meta[rows] if self._meta.get_keys() else None
        try:
            self._assign(rows, values, stack)
        except Exception:
            self._meta = cast(Any, columns)
            self._columns_changed()
            if before is not None:
                self._meta[rows] = before
            raise
        if null_rows(cast(data.Batch, self._meta[rows]), len(rows)).any():
            self._doubt()

    def _assign(self, rows: Int64s, values: data.Batch, stack: bool) -> None:
        try:
            self._meta[rows] = values
        except ValueError:  # there are columns to make
            for key, dtype in (
                ("rew", float),
                ("done", bool),
                ("terminated", bool),
                ("truncated", bool),
            ):
                values[key] = values[key].astype(dtype)
            if self._meta.get_keys():
                alloc_by_keys_diff(self._meta, cast(Any, values), self.maxsize, stack)
            else:
                self._meta = cast(Any, create_value(values, self.maxsize, stack))
            self._columns_changed()
            self._meta[rows] = values

    def _columns_changed(self) -> None:
        self._doubt()  # rows that are there already have None in a new column of objects

    def update(self, buffer: data.ReplayBuffer) -> Array:
        """Takes over the rows of another buffer; returns the indices that they have here."""
        self._doubt()
        return super().update(buffer)

    def set_array_at_key(self, *args: Any, **kwargs: Any) -> None:
        """Sets values of one key, as Tianshou does."""
        self._doubt()
        super().set_array_at_key(*args, **kwargs)

    def hasnull(self) -> bool:
        """Whether a row holds NaN or None; in constant time while none does."""
        if self._checked is self._meta:
            return False
        has_null = super().hasnull()
        if not has_null:
            self._checked = self._meta
        return has_null

    def dropnull(self) -> None:
        """Drops rows that hold NaN or None; the others move up, the oldest first.

        Unlike in Tianshou, room stays for as many rows as before, and the row in front of a gap
        becomes the last of an episode that was truncated, so that nothing is joined across it.
        """
        if not len(self):
            return
        oldest = self._insertion_idx if len(self) == self.maxsize else 0
        rows = (oldest + np.arange(len(self))) % self.maxsize
        meta = cast(Any, self._meta)
        null = null_rows(meta[rows], len(rows))
        loses_steps = null[_behind(meta.done[rows]) :].any()  # the episode that goes on
        in_front = rows[:-1][null[1:] & ~meta.done[rows[:-1]]]
        meta.truncated[in_front] = meta.done[in_front] = True
        self._move_up(rows[~null])
        if loses_steps:
            self._sum_again()

    def _move_up(self, kept: Int64s) -> None:
        """Rows are these from now on."""
        count = len(kept)
        self._meta[:count] = self._meta[kept]
        self._size, self._insertion_idx = count, count % self.maxsize
        self.last_index = np.array([max(count - 1, 0)])
        self._ep_start_idx = _behind(self.done[:count]) % self.maxsize
        self._checked = self._meta

    def _sum_again(self) -> None:
        """Length and return of the episode that goes on, of its rows."""
        begun = _behind(self.done[: len(self)])
        self._ep_len = len(self) - begun
        self._ep_return = self.rew[begun : len(self)].sum(axis=0)

    def _doubt(self) -> None:
        """The next `hasnull` has to look at all rows."""
        self._checked = None

    def sample_indices(self, batch_size: int | None) -> Array:
        """Draws indices, with replacement.

        0 gives those of all rows in order, None of all rows in random order, a negative number
        none.
        """
        if batch_size is None:
            return self._random_state.permutation(self.sample_indices(0))
        return super().sample_indices(batch_size)

    def __getitem__(self, index: Any) -> RolloutBatchProtocol:
        """The rows at `index`, copied; observations are stacked if `stack_num` is above 1."""
        if isinstance(index, slice):
            index = self._sliced(index)
        rows = np.array(index) if isinstance(index, list) else index
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "iu":
            return cast(RolloutBatchProtocol, self._rows_at(rows))
        return data.ReplayBuffer.__getitem__(self, index)

    def _sliced(self, index: slice) -> Array:
        """The indices of a slice, as Tianshou has it: of all rows the oldest comes first."""
        if index == slice(None):
            return self.sample_indices(0)
        return self._indices[: len(self)][index]

    def _rows_at(self, rows: Array) -> data.Batch:
        columns, batch = self._meta.__dict__, data.Batch()
        stacks = self._stacks_of(rows)
        put(batch, "obs", columns["obs"], stacks)  # its KeyError says that there are no rows
        for key in FIELDS:
            put(batch, key, columns.get(key, NOTHING), stacks if key in STACKED else rows)
        if not self._save_obs_next:
            put(batch, "obs_next", columns["obs"], self._stacks_of(self.next(rows)))
        for key in columns.keys() - {"obs", *FIELDS}:
            put(batch, key, columns[key], rows)
        return batch

    @property
    def _ring_size(self) -> int:
        """The rows of one environment."""
        return self.maxsize

    @property
    def _filled(self) -> Int64s:
        """How many of them are filled, for each environment."""
        return np.array([self._size])

    def _has_stack(self, rows: Int64s) -> npt.NDArray[np.bool_]:
        """Which rows have a stack of `stack_num` rows of their episode, each another one."""
        first = rows
        for _ in range(self.stack_num - 2):
            first = self.prev(first)
        return np.asarray((first != self.prev(first)) | (self.stack_num == 1))

    def _stacks_of(self, rows: Array) -> Array:
        """The rows of the observations that are seen at `rows`: the stack is the last axis."""
        if self.stack_num == 1:
            return rows
        stack = [rows]
        for _ in range(self.stack_num - 1):
            stack.append(self.prev(stack[-1]))
        return np.stack(stack[::-1], axis=-1)

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Writes everything to an HDF5 file."""
        with h5py.File(path, "w") as file:
            to_hdf5(self.__getstate__(), file, compression=compression)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_checked"]  # refers to rows that would be saved again
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_checked": None})


def _behind(done: npt.NDArray[np.bool_]) -> int:
    """Where the rows behind the last end begin."""
    ends = np.flatnonzero(done)
    return int(ends[-1]) + 1 if len(ends) else 0
