"""The replay buffers: a ring of rows, and a sampler that says which of them are drawn."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from kary_replay import arena, checkpoint, streams
from kary_replay._parts import Parts
from kary_replay._ring import Ring
from kary_replay._sum_tree import SumTree
from kary_replay._windows import Gather
from kary_replay.batch import Batch
from kary_replay.checks import check_count
from kary_replay.columns import Array, Columns, Declaration, Schema
from kary_replay.journal import Journal
from kary_replay.sampler import (
    Float64s,
    Int64s,
    LinearSchedule,
    PrioritizedSampler,
    UniformSampler,
    generator,
)
from kary_replay.windows import outputs

PATIENCE = 8  # looks for rows that may be drawn, before the dead are looked for


class ReplayBuffer:
    """A ring of transitions that are drawn uniformly, with replacement.

    Parameters
    ----------
    capacity : int >= 1
        Rows in all; `lanes` divides it.
    columns : mapping of name to (shape of one row, dtype), Stored, or an expression of time
    lanes : int >= 1
        Streams of transitions, one for each environment, that overwrite only their own rows.
    storage : "private", "shared", or a directory
        Memory of this process, or memory that its child processes have too, or memory-mapped
        files, which outlive it: a buffer made with the same arguments goes on with what the
        directory holds, its own seed aside.  A directory is a Path, or a string with a separator
        in it; one buffer at a time has it open.
    seed : int, numpy.random.Generator or None
        Of the draws.  A generator that is handed in is used, not copied.

    Threads may use the buffer at once.  It can be pickled and deep-copied, generator included, as
    it can be saved.  ValueError or TypeError names an argument that is wrong; MemoryError says
    that shared memory is more than what is free.

    A shared buffer among the arguments of a `multiprocessing.Process`, and any that a forked
    child finds, is the buffer itself and no copy; one in a directory is so to forked children
    alone.  It draws there from a generator of its own, which the seed determines too.  Closing
    it, in any process, takes it from no other; the memory goes with the last of them.  Pickled
    elsewhere, it is copied like others, into a private one.
    """

    _kind: ClassVar[str] = "uniform"
    _sampler: UniformSampler | PrioritizedSampler

    def __init__(
        self,
        capacity: int,
        columns: Columns,
        *,
        lanes: int = 1,
        storage: str | os.PathLike[str] = "private",
        seed: int | np.random.Generator | None = None,
    ) -> None:
        rng = generator(seed)
        self._declare(capacity, columns, lanes)
        self._place(storage)
        self._sampler = UniformSampler(self._ring, rng)
        self._resume()

    def _declare(self, capacity: int, columns: Columns, lanes: int) -> None:
        capacity, lanes = check_count("capacity", capacity), check_count("lanes", lanes)
        if capacity % lanes:
            raise ValueError(f"capacity must be a multiple of lanes, got {capacity} and {lanes}")
        self._schema = Schema(columns)
        self._outputs = outputs(self._schema, capacity // lanes)
        ring = Ring.layout(capacity, lanes, self._schema.record)
        self._layout = Parts.layout(capacity) | ring
        self._each_lane = np.arange(lanes)

    def _place(
        self, storage: str | os.PathLike[str], fanout: int | None = None, /, **settings: Any
    ) -> None:
        """Allocates ring and tree, if it has a fanout; the settings say what their bytes mean."""
        capacity = self._layout["tags"][0][0]
        journal = {"journal": ((Journal.SIZE,), np.uint8)} if arena.is_directory(storage) else {}
        tree = {}
        if fanout is not None:
            leaves = Parts.leaves(capacity, fanout)
            tree = {"tree": ((SumTree.doubles(leaves, fanout),), np.float64)}
        meaning = {
            "kind": self._kind,
            "capacity": capacity,
            "lanes": len(self._each_lane),
            **settings,
            "columns": self._schema.declaration(),
        }
        self._arena = arena.allocate({**self._layout, **tree, **journal}, storage, meaning)
        self._journal = Journal(self._arena["journal"]) if journal else None
        grown = None
        if fanout is not None:
            memory, fresh = self._arena["tree"], self._arena.fresh
            grown = SumTree(leaves, fanout, memory=memory, fresh=fresh)
        self._parts = Parts(self._arena, grown, is_shared=self._arena.is_inherited)
        self._ring = Ring(
            self._arena,
            self._parts,
            in_time=self._schema.in_time,
            observed=self._schema.observed,
            back=max(output.back for output in self._outputs),
        )
        self._gather = Gather(self._ring, self._parts, self._outputs)
        self._lineage = streams.Lineage()

    def _resume(self) -> None:
        """Goes on with what a directory holds; a new one gets its first record."""
        record = None
        if self._journal is not None and not self._arena.fresh:
            self._arena["participants"][:] = 0  # they had it open before, in this process or others
            self._ring.recover()
            record = self._journal.read()
        if record is not None:
            self._restore_settings(record)
        self._record()

    @property
    def capacity(self) -> int:
        """Rows that fit, over all lanes."""
        return self._ring.capacity

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return self._ring.lanes

    @property
    def columns(self) -> dict[str, Declaration]:
        """The declared columns: name to (shape of one row, dtype), Stored, or an expression."""
        return dict(self._schema.declared)

    @property
    def nbytes(self) -> int:
        """Bytes of rows, priorities, and of all that is kept beside them."""
        return self._arena.nbytes + self._each_lane.nbytes

    def __len__(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        name = type(self).__name__
        if isinstance(self._ring, _Closed):
            return f"{name}(closed)"
        rows = f"{len(self)} of {self.capacity} rows"
        return f"{name}({rows}, {self.lanes} lanes, columns {', '.join(self._schema.declared)})"

    def add(self, /, *, lanes: npt.ArrayLike | None = None, **columns: npt.ArrayLike) -> Int64s:
        """Inserts one transition, or n of them, which replace the oldest of their lanes.

        Parameters
        ----------
        lanes : int or array-like of int, shape (n,)
            The lane of each row.  May be left out with one lane, and with one row for each.
        **columns
            Every declared column, of the declared shape for one transition, or with a leading
            axis of n.  Values are copied.

        Returns
        -------
        int64 array, shape (n,): the keys of the rows, (1,) for one transition.  Of more rows
        than a lane holds, the newest are kept.

        Raises
        ------
        ValueError, TypeError, IndexError
            A column or lane that does not fit its declaration; nothing is changed.
        """
        rows, arrays = self._rows(columns)
        return self._ring.insert(self._lanes_of(lanes, rows), arrays, 0.0)

    def _rows(self, columns: dict[str, npt.ArrayLike]) -> tuple[int, list[Array]]:
        """The number of rows in `columns`, and their arrays as the ring takes them."""
        fitting = self._ring.arrays(columns)
        if fitting is None:
            fitting = self._ring.arrays(self._schema.cast(columns))
            assert fitting is not None  # else cast would have raised
        return fitting

    def _lanes_of(self, lanes: npt.ArrayLike | None, rows: int) -> Int64s:
        if lanes is None:
            if rows == len(self._each_lane):
                return self._each_lane
            if self.lanes == 1 or rows == 0:
                return np.zeros(rows, np.int64)
            raise ValueError(f"lanes must say which of {self.lanes} each of {rows} rows belongs to")
        given = np.atleast_1d(np.asarray(lanes))
        if given.dtype.kind not in "iu" and given.size:
            raise TypeError(f"lanes must be integers, got dtype {given.dtype}")
        if given.shape != (rows,):
            raise ValueError(f"lanes must have shape ({rows},), got {given.shape}")
        wrong = (given < 0) | (given >= self.lanes)
        if wrong.any():
            position = int(np.argmax(wrong))
            raise IndexError(
                f"lanes must be in 0 .. {self.lanes - 1}, got {given[position]} "
                f"at position {position}"
            )
        return given.astype(np.int64)

    def sample(self, batch_size: int) -> Batch:
        """Draws `batch_size` transitions with replacement; it may be larger than the buffer.

        Raises ValueError if the buffer is empty or `batch_size` is not >= 1.
        """
        check_count("batch_size", batch_size)
        live = self._live_rows()
        self._own_generator()
        found = self._sampler.find(batch_size)
        columns, keys, missed = self._gather.read(found.slots)
        rounds = 0
        while missed.size:  # observations alone, rows whose windows are not whole, or overwritten
            rounds += 1
            if rounds % PATIENCE == 0:  # somebody died, perhaps, before the sums were right
                self._parts.settle()
            live = self._live_rows()
            self._sampler.find_again(found, missed)
            missed = self._gather.again(columns, keys, found.slots, missed)
        draw = self._sampler.finish(found, live)
        self._record()
        return Batch(columns, keys, draw)

    def _live_rows(self) -> int:
        """How many rows may be drawn; waits while all of them are being replaced."""
        vain = 0
        while vain < PATIENCE:
            live = len(self._ring)
            if live > 0 and self._sampler.has_mass:
                return live
            if self._ring.filled == 0:
                break
            if not self._parts.settle():  # or the last one was cut for a row that is yet to come
                vain += 1
                time.sleep(0.001)
        if live > 0:
            raise ValueError("cannot draw where no row has a mass > 0")
        raise ValueError("cannot sample from an empty buffer")

    def _own_generator(self) -> np.random.Generator:
        """The sampler's generator: in each forked child one of its own.

        Of its parent's another thread may have had the lock, which nobody releases in the child.
        """
        self._sampler.rng = self._lineage.of_this_process(self._sampler.rng)
        return self._sampler.rng

    def read(self, slots: npt.ArrayLike) -> dict[str, Array]:
        """The columns of a batch of the rows in `slots`: copies, shape (n, *shape of one row).

        For adapters whose framework asks for rows by place.  IndexError for a slot whose row may
        not be drawn.
        """
        wanted = np.atleast_1d(np.asarray(slots, np.int64))
        outside = (wanted < 0) | (wanted >= self.capacity)
        columns, _, missed = self._gather.read(np.where(outside, 0, wanted))
        absent = np.union1d(missed, np.flatnonzero(outside))
        if absent.size:
            raise IndexError(f"slots must hold rows that may be drawn, got {wanted[absent[0]]}")
        return columns

    def view(self, name: str) -> Array:
        """The stored column itself, by slot, shape (capacity, *shape of one row).

        For adapters whose framework looks at or writes to stored rows; everyone else gets
        copies.  KeyError for an unknown name.
        """
        if name not in self._schema.stored:
            raise KeyError(f"no stored column {name!r}, only {list(self._schema.stored)}")
        column: Array = self._ring.rows[name]
        return column

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything that `load` brings back: only rows that are filled.

        Others may go on adding: then it is the buffer of this moment, without the rows that made
        room while they were written.  An older file at `path` is replaced when the new one is
        complete, and not before.
        """
        checkpoint.save(path, self._state())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replaces the content of the buffer by that of a file, while nobody else uses it.

        Rows, keys, write positions and the generator's state come back, so that the next
        draws are those that the saved buffer would have made.

        Raises ValueError, and changes nothing, for a file that is cut off or that belongs to a
        buffer with other columns, capacity, lanes, alpha or kind.
        """
        state = checkpoint.load(path)
        self._check_fits(state)
        self._take_over(state)
        self._record()

    def close(self) -> None:
        """Ends the use of the buffer, so that its directory can be opened again.

        Whatever needs its rows, priorities or generator raises ValueError afterwards; a second
        `close` does nothing.
        """
        if isinstance(self._ring, _Closed):
            return
        # A thread that is still adding keeps the parts, and with them its rows from others.
        self._ring, self._parts, self._gather, self._sampler = cast(Any, (_Closed(),) * 4)
        self._arena.close()
        self._journal = None

    def _record(self) -> None:
        """Lets a directory know what is not in its arrays, and is the opener's own."""
        if self._journal is not None and not self._lineage.is_forked:
            self._journal.write(self._settings())

    def _settings(self) -> checkpoint.State:
        """The state that is not in arrays."""
        return {"generator": checkpoint.generator_state(self._own_generator())}

    def _restore_settings(self, state: checkpoint.State) -> None:
        self._sampler.rng = checkpoint.generator(state["generator"])

    def _state(self) -> checkpoint.State:
        return {
            "kind": self._kind,
            "capacity": self.capacity,
            **self._ring.state(),
            "columns": self._schema.declaration(),
        } | self._settings()

    def _check_fits(self, state: checkpoint.State) -> None:
        kind = state.get("kind")  # anything may be missing from the file of something else
        if kind != self._kind:
            raise ValueError(f"kind must be that of the file, {kind!r}, got {self._kind!r}")
        mine = (self.capacity, self.lanes, self._schema.declaration())
        theirs = (state["capacity"], len(state["heads"]), state["columns"])
        for what, here, there in zip(("capacity", "lanes", "columns"), mine, theirs, strict=True):
            if here != there:
                raise ValueError(f"{what} must be that of the file, {there}, got {here}")
        self._ring.check(state)

    def _take_over(self, state: checkpoint.State) -> None:
        """Becomes what `state` describes; whoever dies in the middle leaves rows of one at most."""
        self._ring.clear()
        self._restore(state)
        self._ring.restore_tags(state)

    def _restore(self, state: checkpoint.State) -> None:
        self._restore_settings(state)
        self._ring.restore(state)

    def __getstate__(self) -> checkpoint.State:
        if self._arena.is_being_handed_over:
            return self._handle()
        return {"arguments": self._arguments(), "state": self._state()}

    def _handle(self) -> checkpoint.State:
        """What a child process needs, beside the memory, to use this very buffer."""
        arguments = self._arguments() | {"storage": self._arena}
        rng = self._lineage.of_next_child(self._own_generator())
        state = self._settings() | {"generator": checkpoint.generator_state(rng)}
        return {"arguments": arguments, "state": state}

    def __setstate__(self, pickled: checkpoint.State) -> None:
        ReplayBuffer.__init__(self, **pickled["arguments"])
        self._unpickle(pickled["state"])

    def _unpickle(self, state: checkpoint.State) -> None:
        """Takes the whole state of a copy, or of a handle what is not in its memory."""
        if self._arena.fresh:
            self._take_over(state)
        else:
            self._restore_settings(state)

    def _arguments(self) -> dict[str, Any]:
        """What makes an empty buffer like this one."""
        return {"capacity": self.capacity, "columns": self.columns, "lanes": self.lanes}


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ring of transitions that are drawn by priority (arXiv 1511.05952).

    Parameters
    ----------
    capacity, columns, lanes, storage, seed
        As for `ReplayBuffer`.
    alpha : float >= 0
        Exponent of the priorities: 0 draws uniformly, 1 in proportion to the priority.
    beta : float >= 0, or LinearSchedule
        Exponent of the weights: 0 corrects nothing, 1 all of the bias.  A schedule moves one
        step a `sample`.
    eps : float >= 0
        What is added to abs(td_error); with 0, a row whose TD error is 0 is never drawn.
    weight_norm : "batch", "buffer" or "none"
        Weights are divided by the largest in the batch, by the largest that any row could
        have, or by nothing: then they are (N * probability) ** -beta, and can be above 1.
    stratified : bool
        One draw from each of batch_size equal strata of the total, or independent draws.
    fanout : int, a power of two
        Of the sum tree.
    """

    _kind = "prioritized"
    _sampler: PrioritizedSampler

    def __init__(
        self,
        capacity: int,
        columns: Columns,
        *,
        alpha: float = 0.6,
        beta: float | LinearSchedule = 0.4,
        eps: float = 1e-6,
        weight_norm: str = "batch",
        stratified: bool = True,
        lanes: int = 1,
        storage: str | os.PathLike[str] = "private",
        fanout: int = 8,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        rng = generator(seed)
        self._declare(capacity, columns, lanes)
        sampler = PrioritizedSampler(
            capacity,
            alpha=alpha,
            beta=beta,
            eps=eps,
            weight_norm=weight_norm,
            stratified=stratified,
            fanout=fanout,
            rng=rng,
        )
        self._place(storage, sampler.fanout, alpha=sampler.alpha, fanout=sampler.fanout)
        sampler.move(self._parts)
        self._sampler = sampler
        self._resume()

    @property
    def alpha(self) -> float:
        """Exponent of the priorities."""
        return self._sampler.alpha

    @property
    def beta(self) -> float:
        """Exponent of the next sample's weights.  Set it to a number or a LinearSchedule."""
        return self._sampler.beta

    @beta.setter
    def beta(self, beta: float | LinearSchedule) -> None:
        self._sampler.set_beta(beta)
        self._record()

    @property
    def max_priority(self) -> float:
        """The largest priority of any row now, which new rows get; 1.0 in an empty buffer.

        With alpha = 0 priorities make no difference and are not kept: 1.0.
        """
        return self._sampler.max_priority

    @property
    def stale_updates(self) -> int:
        """Priority updates that came when their rows could not be drawn any more."""
        return self._ring.stale

    def add(
        self,
        /,
        *,
        td_errors: Any = None,
        lanes: npt.ArrayLike | None = None,
        **columns: npt.ArrayLike,
    ) -> Int64s:
        """As `ReplayBuffer.add`.

        Parameters
        ----------
        td_errors : shape (n,) or (n, 1), optional
            Initial TD errors, as `update_priorities` takes them.  Without them, new rows get
            the largest priority now in the buffer.
        """
        rows, arrays = self._rows(columns)
        lane_of_row = self._lanes_of(lanes, rows)
        masses: float | Float64s
        if td_errors is None:
            masses = self._sampler.new_mass()
        else:
            masses = self._sampler.masses(td_errors, rows)
        return self._ring.insert(lane_of_row, arrays, masses)

    def update_priorities(self, keys: npt.ArrayLike, td_errors: Any) -> int:
        """Gives rows new priorities, abs(td_error) + eps.

        Parameters
        ----------
        keys : int64 array, shape (n,)
            As `add` or `Batch.keys` returned them.  The last of duplicates wins.
        td_errors : shape (n,) or (n, 1)
            Signed; a list, an array, or a torch tensor on any device, with or without grad.

        Returns
        -------
        int : how many were applied.  The rows of the others may not be drawn any more; they are
        counted in `stale_updates`.

        Raises
        ------
        ValueError
            A TD error that is NaN, infinite or too large; shapes that differ.
        IndexError
            A key that is negative, or of a row that is yet to come.
        """
        given = self._as_keys(keys)
        masses = self._sampler.masses(td_errors, len(given))
        return self._ring.update(given, masses)

    def _as_keys(self, keys: npt.ArrayLike) -> Int64s:
        given = np.asarray(keys)
        if given.dtype.kind not in "iu" and given.size:
            raise TypeError(f"keys must be integers of 64 bits, got dtype {given.dtype}")
        if given.ndim != 1:
            raise ValueError(f"keys must have one axis, got shape {given.shape}")
        plain = given.dtype == np.int64 and given.flags.c_contiguous and given.flags.aligned
        return given if plain else np.require(given, np.int64, ["C", "A"])

    def _state(self) -> checkpoint.State:
        return super()._state() | {"alpha": self.alpha, "stale_updates": self.stale_updates}

    def _settings(self) -> checkpoint.State:
        beta, step = self._sampler.beta_state
        return super()._settings() | {
            "beta": dataclasses.asdict(beta) if isinstance(beta, LinearSchedule) else beta,
            "beta_step": step,
        }

    def _check_fits(self, state: checkpoint.State) -> None:
        super()._check_fits(state)
        if state["alpha"] != self.alpha:
            raise ValueError(f"alpha must be that of the file, {state['alpha']}, got {self.alpha}")
        masses, tags = state["masses"], state["tags"]
        if masses.shape != tags.shape or not ((masses >= 0.0) & np.isfinite(masses)).all():
            raise ValueError(f"masses must be {len(tags)} numbers, finite and >= 0, got {masses}")

    def _restore(self, state: checkpoint.State) -> None:
        super()._restore(state)
        masses = np.zeros(self.capacity)
        masses[self._ring.filled_slots()] = state["masses"]
        self._parts.restore(masses)
        self._ring.stale = state["stale_updates"]

    def _restore_settings(self, state: checkpoint.State) -> None:
        super()._restore_settings(state)
        beta = state["beta"]
        self._sampler.set_beta(
            LinearSchedule(**beta) if isinstance(beta, dict) else beta, state["beta_step"]
        )

    def __setstate__(self, pickled: checkpoint.State) -> None:
        PrioritizedReplayBuffer.__init__(self, **pickled["arguments"])
        self._unpickle(pickled["state"])

    def _arguments(self) -> dict[str, Any]:
        sampler = self._sampler
        return super()._arguments() | {
            "alpha": sampler.alpha,
            "eps": sampler.eps,
            "weight_norm": sampler.weight_norm,
            "stratified": sampler.stratified,
            "fanout": sampler.fanout,
        }


class _Closed:
    """What a closed buffer has in place of its parts."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("the buffer is closed")

    def __len__(self) -> int:
        raise ValueError("the buffer is closed")
