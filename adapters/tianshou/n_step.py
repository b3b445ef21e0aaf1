"""The n-step returns of Tianshou's algorithms, from the rows that they need and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tianshou.algorithm.algorithm_base import _nstep_return
from tianshou.data import Batch, ReplayBuffer, to_numpy, to_torch_as


class NStepReturnsOfRows:
    """In front of any algorithm with n-step returns: the same returns, by a shorter way.

    For each batch Tianshou copies the flags of the whole buffer, and all columns of the rows whose
    next observations the networks are asked about.
    """

    @staticmethod
    def compute_nstep_return(
        batch: Any,
        buffer: ReplayBuffer,
        indices: npt.NDArray[Any],
        target_q_fn: Callable[[Any, npt.NDArray[Any]], torch.Tensor],
        gamma: float = 0.99,
        n_step: int = 1,
    ) -> Any:
        """Sets `batch.returns`, and makes `batch.weight` a tensor, as Tianshou's does."""
        steps = [indices]
        for _ in range(n_step):
            steps.append(buffer.next(steps[-1]))
        rows = np.stack(steps)
        ends = rows[:-1] == rows[1:]  # what has no next row ends an episode, or is the newest
        rows = rows[:-1]
        with torch.no_grad():
            target = target_q_fn(_ObsNextAlone(buffer), rows[-1])
        values = to_numpy(target.reshape(len(indices), -1))
        values = values * ~buffer.terminated[rows[-1]][:, None]
        of_these = np.arange(rows.size).reshape(rows.shape)
        returns = _nstep_return(
            buffer.rew[rows].reshape(-1), ends.reshape(-1), values, of_these, gamma, n_step
        )
        batch.returns = to_torch_as(returns, target)
        if "weight" in batch:
            batch.weight = to_torch_as(batch.weight, target)
        return batch


class _ObsNextAlone:
    """A buffer whose `[indices].obs_next` fetches no other column; all else is the buffer's."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._buffer, name)

    def __len__(self) -> int:
        return len(self._buffer)

    def __getitem__(self, index: Any) -> _Rows:
        return _Rows(self._buffer, index)


class _Rows:
    """Rows whose `obs_next` is fetched alone, and all else with all that there is."""

    def __init__(self, buffer: ReplayBuffer, index: Any) -> None:
        self._buffer, self._index = buffer, index

    @property
    def obs_next(self) -> Any:
        if self._buffer.options["ignore_obs_next"]:
            return self._buffer.get(self._buffer.next(self._index), "obs")
        return self._buffer.get(self._index, "obs_next", Batch())

    def __getattr__(self, key: str) -> Any:
        return getattr(self._buffer[self._index], key)

    def __getitem__(self, key: Any) -> Any:
        return self._buffer[self._index][key]

    def __len__(self) -> int:
        return len(self._index)
