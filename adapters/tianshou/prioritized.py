"""Tianshou's prioritized buffers, with the draws of the K-ary sum tree."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from tianshou import data
from tianshou.data.types import PrioBatchProtocol, RolloutBatchProtocol

from kary_replay import SumTree
from kary_replay.sampler import Draw, LinearSchedule, PrioritizedSampler, generator

from .buffers import ReplayBuffer
from .draws import Draws
from .lanes import Array, Int64s
from .vector import ReadOnlySubBuffer, ReplayBufferManager
from .weight import Weight

NUMPYS = torch.float32, torch.float64


class PrioritizedReplayBuffer(ReplayBuffer, data.PrioritizedReplayBuffer):
    """Takes the place of `tianshou.data.PrioritizedReplayBuffer`: change the import.

    Parameters
    ----------
    size : int >= 1
        Rows.
    alpha : float >= 0
        Exponent of the priorities; 0 draws uniformly.
    beta : float >= 0, or kary_replay.LinearSchedule
        Exponent of the weights.  A schedule moves one step a draw; `set_beta` changes it.
    weight_norm : bool
        Weights are divided by the largest in the batch, or left as (N * probability) ** -beta.
    eps : float >= 0
        Added to abs(TD error).
    stratified : bool
        One draw from each of batch_size equal strata of the total, or independent draws.
    fanout : int, a power of two
        Of the sum tree.
    stack_num, ignore_obs_next, save_only_last_obs, sample_avail
        As for `ReplayBuffer`.
    random_seed : int
        Of the draws.  NumPy's global generator is not used.

    Attributes
    ----------
    stale_updates : int
        Priorities that came too late, see `update_weight`.

    What an algorithm makes of weights and priorities is Tianshou's; the documentation has a table.
    The buffer is for one thread at a time.  ValueError or TypeError names an argument that is
    wrong.
    """

    replaces: ClassVar[type] = data.PrioritizedReplayBuffer

    def __init__(
        self,
        size: int,
        alpha: float,
        beta: float | LinearSchedule,
        weight_norm: bool = True,
        *,
        eps: float = 1e-6,
        stratified: bool = True,
        fanout: int = 8,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int = 42,
    ) -> None:
        ReplayBuffer.__init__(
            self, size, stack_num, ignore_obs_next, save_only_last_obs, sample_avail
        )
        self._prioritize(alpha, beta, weight_norm, eps, stratified, fanout, random_seed)

    def _prioritize(
        self,
        alpha: float,
        beta: float | LinearSchedule,
        weight_norm: bool,
        eps: float,
        stratified: bool,
        fanout: int,
        random_seed: int,
    ) -> None:
        self.options.update(alpha=alpha, beta=beta)
        self._sampler = PrioritizedSampler(
            self.maxsize,
            alpha=alpha,
            beta=beta,
            eps=eps,
            weight_norm="batch" if weight_norm else "none",
            stratified=stratified,
            fanout=fanout,
            rng=generator(random_seed, "random_seed"),
        )
        self._draws = Draws(self.maxsize)
        self.stale_updates = 0

    @property
    def weight(self) -> Weight:  # type: ignore[override]
        """What each row's probability is proportional to, as Tianshou shows it."""
        return Weight(cast(SumTree, self._sampler.tree))

    @property
    def beta(self) -> float:
        """Exponent of the next draw's weights."""
        return self._sampler.beta

    @property
    def _alpha(self) -> float:  # type: ignore[override]
        return self._sampler.alpha

    @property
    def _beta(self) -> float:  # type: ignore[override]
        return self._sampler.beta

    def set_beta(self, beta: float | LinearSchedule) -> None:
        """Takes a number or a schedule for the draws to come."""
        self._sampler.set_beta(beta)

    def add(
        self,
        batch: RolloutBatchProtocol,
        buffer_ids: npt.NDArray[np.int_] | list[int] | None = None,
    ) -> tuple[Array, Array, Array, Array]:
        """Stores transitions, which get the largest priority in the buffer."""
        added = super().add(batch, buffer_ids)
        self.init_weight(added[0])
        return added

    def init_weight(self, index: int | npt.NDArray[Any]) -> None:
        """Gives rows just written, as `add` and `update` call it, the largest priority."""
        written = np.atleast_1d(index)
        self._sampler.update(written, self._sampler.new_mass())
        self._draws.lose(written)
        if self._draws_only_stacks:
            self._withdraw_torn_stacks(written)

    @property
    def _draws_only_stacks(self) -> bool:
        return self._sample_avail and self.stack_num > 1

    def _withdraw_torn_stacks(self, written: Int64s) -> None:
        """New rows may lack a part of their stacks, and others lose it with what they replace."""
        starts = written - written % self._ring_size
        ahead = (written - starts)[:, None] + np.arange(self.stack_num)
        rows = (starts[:, None] + ahead % self._ring_size).reshape(-1)
        self._sampler.update(rows[~self._has_stack(rows)], 0.0)

    def reset(self, keep_statistics: bool = False) -> None:
        """Forgets all rows and their priorities."""
        super().reset(keep_statistics)
        self._sampler.forget()
        self._draws.lose(slice(None))

    def dropnull(self) -> None:
        """Drops rows with NaN or None, as `ReplayBuffer` does; those that stay are like new."""
        super().dropnull()
        self._draws.lose(slice(None))
        self._sampler.forget()
        self.init_weight(self.sample_indices(0))

    def sample(self, batch_size: int | None) -> tuple[PrioBatchProtocol, Int64s]:
        """Draws rows by priority, with replacement.

        Parameters
        ----------
        batch_size : int or None
            0 gives all rows in order, None all rows in random order, a negative number none.

        Returns
        -------
        batch : with `batch.weight`, float32, shape (batch_size,)
        indices : int64 array, shape (batch_size,), for `update_weight`

        Raises ValueError if there is no row to draw.
        """
        self._check_filled()
        if batch_size is None or batch_size < 1:
            indices = self.sample_indices(batch_size)
            batch = self[indices]
        else:
            indices, _, weights = self._draw(batch_size)
            assert weights is not None
            batch = cast(PrioBatchProtocol, self._rows_at(indices))
            batch.weight = weights
        self._draws.note(indices, cast(Any, batch.weight))
        return batch, indices

    def sample_indices(self, batch_size: int | None) -> Int64s:
        """The indices alone, as `sample` draws them."""
        if batch_size is None:
            return self._sampler.rng.permutation(self.sample_indices(0))
        if batch_size < 1:
            return super().sample_indices(batch_size)
        self._check_filled()
        return self._draw(batch_size).slots

    def __getitem__(self, index: Any) -> PrioBatchProtocol:
        """The rows at `index`, copied, and what they would weigh if they were a batch."""
        if isinstance(index, slice):
            index = self._sliced(index)
        batch = cast(PrioBatchProtocol, super().__getitem__(index))
        batch.weight = self.get_weight(index)
        return batch

    def get_weight(self, index: int | npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """What the rows would weigh if they were a batch, in the shape of `index`.

        0 for a row that cannot be drawn.
        """
        rows = self._indices[index]
        return self._sampler.weights(rows.reshape(-1), self._drawable()).reshape(rows.shape)

    def update_weight(self, index: npt.ArrayLike, new_weight: Any) -> None:
        """Gives rows new priorities, abs(TD error) + eps.

        An update answers the last draw at its index.  If the row has been overwritten since
        that draw, or has lost its stack with `sample_avail`, the update is dropped and counted
        in `stale_updates`, until the index is drawn again.

        Parameters
        ----------
        index : int array, shape (B,)
            As `sample` returned it.  The last of duplicates wins; empty does nothing.
        new_weight : shape (B,) or (B, 1)
            TD errors: signed; a list, an array, or a torch tensor on any device, with or
            without grad.

        Raises
        ------
        ValueError
            A TD error that is NaN, infinite or too large; shapes that differ; the weights of the
            last draw, which some algorithms hand back because they have no TD errors.
        IndexError
            An index without a row.
        """
        rows, td_errors = _as_indices(index), _as_array(new_weight)
        masses = self._sampler.masses(td_errors, len(rows))
        if self._draws.has_weights(td_errors):
            raise ValueError(
                "new_weight must be TD errors, got the weights of the last draw: the algorithm has "
                "no TD errors to report, so use a buffer that is not prioritized"
            )
        self._check_within(rows)
        kept = self._still_there(rows)
        if kept is not None:
            self.stale_updates += len(rows) - int(np.count_nonzero(kept))
            rows, masses = rows[kept], masses[kept]
        self._sampler.update(rows, masses)
        self._draws.answer(rows)

    def _still_there(self, rows: Int64s) -> npt.NDArray[np.bool_] | None:
        """Which rows are those that were drawn, and can be drawn again; None for all of them."""
        kept = self._draws.kept(rows)
        if kept is not None:
            self._check_live(rows[kept])
        if self._draws_only_stacks:
            whole = self._has_stack(rows)
            kept = whole if kept is None else kept & whole
        return kept

    def _draw(self, size: int) -> Draw:
        return self._sampler.draw(size, self._drawable())

    def _drawable(self) -> int:
        """How many rows can be drawn; counted only where the weights depend on it."""
        if self._sampler.weight_norm == "batch":
            return 0
        if self._draws_only_stacks:
            return int(np.count_nonzero(self._sampler.tree.masses())) or 1
        return len(self)

    def _check_filled(self) -> None:
        if len(self) == 0:
            raise ValueError("cannot sample from an empty buffer")

    def _check_within(self, rows: Int64s) -> None:
        largest = np.maximum.reduce(rows.view(np.uint64), initial=0)  # of all, if one is negative
        if largest >= self.maxsize:
            outside = (rows < 0) | (rows >= self.maxsize)
            raise IndexError(f"index must be in 0 .. {self.maxsize - 1}, got {rows[outside][0]}")

    def _check_live(self, rows: Int64s) -> None:
        if len(self) == self.maxsize:
            return
        lane, row = np.divmod(rows, self._ring_size)
        blank = row >= self._filled[lane]
        if blank.any():
            raise IndexError(f"index must be that of a row, got {rows[blank][0]}, not written yet")

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({key: value for key, value in state.items() if key != "weight"})
        if "weight" in state:
            self._prioritize_as_tianshou(state)

    def _prioritize_as_tianshou(self, state: dict[str, Any]) -> None:
        """Takes over the priorities in a file of Tianshou's own class."""
        alpha, beta, norm = (state[key] for key in ("_alpha", "_beta", "_weight_norm"))
        eps = float(np.finfo(np.float32).eps)
        self._prioritize(float(alpha), float(beta), bool(norm), eps, True, 8, random_seed=42)
        rows = self.sample_indices(0)
        self._sampler.update(rows, state["weight"][rows])


class PrioritizedVectorReplayBuffer(
    PrioritizedReplayBuffer, ReplayBufferManager, data.PrioritizedVectorReplayBuffer
):
    """Takes the place of `tianshou.data.PrioritizedVectorReplayBuffer`: change the import.

    The rows lie in Tianshou's own storage, one sub-buffer for each environment; a draw is over
    the rows of all of them, by priority.

    Parameters
    ----------
    total_size : int >= 1
        Rows in all; each sub-buffer gets total_size / buffer_num, rounded up.
    buffer_num : int >= 1
        Sub-buffers: at least as many as the collector has environments.
    alpha, beta, weight_norm, eps, stratified, fanout, random_seed
        As for `PrioritizedReplayBuffer`, which says more.
    stack_num, ignore_obs_next, save_only_last_obs, sample_avail
        As for `ReplayBuffer`.
    """

    replaces: ClassVar[type] = data.PrioritizedVectorReplayBuffer
    _child = ReadOnlySubBuffer

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        alpha: float,
        beta: float | LinearSchedule,
        weight_norm: bool = True,
        *,
        eps: float = 1e-6,
        stratified: bool = True,
        fanout: int = 8,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int = 42,
    ) -> None:
        ReplayBufferManager.__init__(
            self,
            total_size,
            buffer_num,
            stack_num,
            ignore_obs_next,
            save_only_last_obs,
            sample_avail,
        )
        self._prioritize(alpha, beta, weight_norm, eps, stratified, fanout, random_seed)


def _as_array(new_weight: Any) -> Any:
    """The memory of a tensor, where NumPy can read it; anything else as it is."""
    if not isinstance(new_weight, torch.Tensor) or not new_weight.is_cpu:
        return new_weight
    return new_weight.detach().numpy() if new_weight.dtype in NUMPYS else new_weight


def _as_indices(index: npt.ArrayLike) -> Int64s:
    given = np.atleast_1d(index)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"index must be integers, got dtype {given.dtype}")
    if given.ndim != 1:
        raise ValueError(f"index must have one axis, got shape {given.shape}")
    return given.astype(np.int64, copy=False)
