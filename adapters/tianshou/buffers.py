"""Tianshou's replay buffers, with the draws of the K-ary sum tree."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tianshou import data
from tianshou.data.types import PrioBatchProtocol

from kary_replay.checks import check_count
from kary_replay.sampler import (
    Draw,
    Int64s,
    LinearSchedule,
    PrioritizedSampler,
    generator,
)

# Of each index: no TD error is awaited; its row was drawn, and its TD error is awaited; the row
# that was drawn has been overwritten while its TD error was awaited.
IDLE, DRAWN, LOST = np.uint8(0), np.uint8(1), np.uint8(2)


class PrioritizedVectorReplayBuffer(data.PrioritizedVectorReplayBuffer):
    """Takes the place of `tianshou.data.PrioritizedVectorReplayBuffer`: change the import.

    The rows lie in Tianshou's own storage, one sub-buffer for each environment; a draw is over
    the rows of all of them, by priority.

    What an algorithm makes of weights and priorities is Tianshou's: DQN with `huber_loss_delta`
    ignores the weights; BCQ, CQL, CRR and imitation hand weights back in place of TD errors, and
    multi-agent training hands nothing back.  Do not prioritize those.

    Parameters
    ----------
    total_size : int >= 1
        Rows in all; each sub-buffer gets total_size / buffer_num, rounded up.
    buffer_num : int >= 1
        Sub-buffers: at least as many as the collector has environments.
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
        As for `tianshou.data.ReplayBuffer`; `sample_avail` cannot be had with a `stack_num`
        above 1 (Tianshou's class ignores it).
    random_seed : int
        Of the draws.  NumPy's global generator is not used.

    Attributes
    ----------
    stale_updates : int
        Priorities that came for rows overwritten since their draw, see `update_weight`.

    There is no attribute `weight`: Tianshou's segment tree is not kept.  The buffer is for one
    thread at a time.  ValueError or TypeError names an argument that is wrong.
    """

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
        check_count("total_size", total_size)
        check_count("buffer_num", buffer_num)
        if sample_avail and stack_num > 1:
            raise ValueError("sample_avail must be False with stack_num > 1: draws are by priority")
        children = [
            data.ReplayBuffer(
                -(-total_size // buffer_num),
                stack_num=stack_num,
                ignore_obs_next=ignore_obs_next,
                save_only_last_obs=save_only_last_obs,
                sample_avail=sample_avail,
            )
            for _ in range(buffer_num)
        ]
        # The parent would build a segment tree for itself and one for each child.  All that
        # uses them is replaced below.
        data.ReplayBufferManager.__init__(self, children)
        self.options.update(alpha=alpha, beta=beta)
        self._weight_norm = False  # read by __getitem__; what get_weight returns is normalised
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
        self._draws = np.full(self.maxsize, IDLE)
        self.stale_updates = 0

    @property
    def beta(self) -> float:
        """Exponent of the next draw's weights."""
        return self._sampler.beta

    def set_beta(self, beta: float | LinearSchedule) -> None:
        """Takes a number or a schedule for the draws to come."""
        self._sampler.set_beta(beta)

    def init_weight(self, index: int | npt.NDArray[Any]) -> None:
        """Gives rows just written, as `add` calls it, the largest priority in the buffer."""
        written = np.atleast_1d(index)
        self._sampler.update(written, self._sampler.new_mass())
        self._lose(written)

    def reset(self, keep_statistics: bool = False) -> None:
        """Forgets all rows and their priorities."""
        super().reset(keep_statistics)
        self._sampler.forget()
        self._lose(slice(None))

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

        Raises ValueError if the buffer is empty.
        """
        self._check_filled()
        if batch_size is None or batch_size < 1:
            batch, indices = super().sample(batch_size)
        else:
            indices, _, weights = self._draw(batch_size)
            assert weights is not None
            batch = cast(PrioBatchProtocol, data.ReplayBufferManager.__getitem__(self, indices))
            batch.weight = weights
        self._draws[indices] = DRAWN
        return batch, indices

    def sample_indices(self, batch_size: int | None) -> Int64s:
        """The indices alone, as `sample` draws them."""
        if batch_size is None:
            return self._sampler.rng.permutation(self.sample_indices(0))
        if batch_size < 1:
            return super().sample_indices(batch_size)
        self._check_filled()
        return self._draw(batch_size).slots

    def get_weight(self, index: int | npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """What the rows would weigh if they were a batch, in the shape of `index`.

        0 for a row that cannot be drawn.
        """
        rows = self._indices[index]
        return self._sampler.weights(rows.reshape(-1), len(self)).reshape(rows.shape)

    def update_weight(self, index: npt.ArrayLike, new_weight: Any) -> None:
        """Gives rows new priorities, abs(TD error) + eps.

        An update answers the last draw at its index.  If the row has been overwritten since
        that draw, the update is dropped and counted in `stale_updates`, until the index is
        drawn again.

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
            A TD error that is NaN, infinite or too large; shapes that differ.
        IndexError
            An index without a row.
        """
        rows = _as_indices(index)
        masses = self._sampler.masses(new_weight, len(rows))
        self._check_within(rows)
        draws = self._draws[rows]
        if (draws != DRAWN).any():
            kept = draws != LOST
            rows, masses = rows[kept], masses[kept]
            self._check_live(rows)
        self._sampler.update(rows, masses)
        self._draws[rows] = IDLE
        self.stale_updates += len(draws) - len(rows)

    def _draw(self, size: int) -> Draw:
        return self._sampler.draw(size, len(self))

    def _check_filled(self) -> None:
        if len(self) == 0:
            raise ValueError("cannot sample from an empty buffer")

    def _lose(self, index: slice | npt.NDArray[Any]) -> None:
        """Rows that draws at `index` gave are gone."""
        self._draws[index] = np.where(self._draws[index] == IDLE, IDLE, LOST)

    def _check_within(self, rows: Int64s) -> None:
        outside = (rows < 0) | (rows >= self.maxsize)
        if outside.any():
            raise IndexError(f"index must be in 0 .. {self.maxsize - 1}, got {rows[outside][0]}")

    def _check_live(self, rows: Int64s) -> None:
        child, row = np.divmod(rows, self.maxsize // self.buffer_num)
        blank = row >= self._lengths[child]
        if blank.any():
            raise IndexError(f"index must be that of a row, got {rows[blank][0]}, not written yet")

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the children's views of the rows, which would be saved as copies."""
        state = self.__dict__.copy()
        state["buffers"] = np.array([_without_rows(child) for child in self.buffers], object)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if len(self._meta.get_keys()):
            self._set_batch_for_children()


def _without_rows(child: data.ReplayBuffer) -> data.ReplayBuffer:
    blank = data.ReplayBuffer.__new__(data.ReplayBuffer)
    blank.__dict__.update(child.__dict__, _meta=data.Batch())
    return blank


def _as_indices(index: npt.ArrayLike) -> Int64s:
    given = np.atleast_1d(index)
    if given.dtype.kind not in "iu" and given.size:
        raise TypeError(f"index must be integers, got dtype {given.dtype}")
    if given.ndim != 1:
        raise ValueError(f"index must have one axis, got shape {given.shape}")
    return given.astype(np.int64, copy=False)
