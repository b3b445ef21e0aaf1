"""SB3's replay buffer, drawn by priority."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import torch as th
from stable_baselines3.common.type_aliases import TensorDict
from stable_baselines3.common.utils import LinearSchedule as ProgressSchedule
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay import LinearSchedule
from kary_replay.checks import check_count, check_number

from .buffers import ReplayBuffer

Beta: TypeAlias = float | LinearSchedule | Callable[[float], float]

OVER_TRAINING = ProgressSchedule(0.4, 1.0, end_fraction=1.0)
UNANSWERED = 10  # batches without any update, and somebody is told


class PrioritizedReplayBufferSamples(NamedTuple):
    """SB3's fields of a sample, B rows of each, then what prioritized replay adds.

    `weights` is a float32 tensor of shape (B, 1); `keys` is an int64 array of shape (B,) that
    goes back with the TD errors.
    """

    observations: th.Tensor | TensorDict
    actions: th.Tensor
    next_observations: th.Tensor | TensorDict
    dones: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor | None
    weights: th.Tensor
    keys: npt.NDArray[np.int64]


class PrioritizedReplayBuffer(ReplayBuffer):
    """Takes the place of SB3's `ReplayBuffer`, and draws by priority (arXiv 1511.05952).

    Parameters
    ----------
    n_steps, gamma
        As for `NStepReplayBuffer`; 1 step by default, whose rewards are not summed.
    alpha, eps, weight_norm, stratified, fanout
        As for `kary_replay.PrioritizedReplayBuffer`.
    beta : float, kary_replay.LinearSchedule, or callable
        Exponent of the weights.  A schedule moves one step a `sample`.  A callable is given the
        remaining progress of the training, from 1 to 0, as SB3's `learning_rate` is; the default
        moves from 0.4 to 1 over the training.
    *args, **kwargs
        As for `ReplayBuffer`.

    `reset` leaves settings as they are, a beta that was set too (a schedule starts again).

    SB3's own algorithms neither weigh losses nor report TD errors: take `PrioritizedDQN` and the
    like.  Who samples again and again without an `update_priorities` is warned, once.

    Raises TypeError or ValueError for an argument out of its range.
    """

    _core: kary_replay.PrioritizedReplayBuffer

    def __init__(
        self,
        *args: Any,
        n_steps: int = 1,
        gamma: float = 0.99,
        alpha: float = 0.6,
        beta: Beta = OVER_TRAINING,
        eps: float = 1e-6,
        weight_norm: str = "batch",
        stratified: bool = True,
        fanout: int = 8,
        **kwargs: Any,
    ) -> None:
        self.n_steps, self.gamma = check_count("n_steps", n_steps), check_number("gamma", gamma)
        self._settings: dict[str, Any] = {
            "alpha": alpha,
            "eps": eps,
            "weight_norm": weight_norm,
            "stratified": stratified,
            "fanout": fanout,
        }
        self._beta: Beta = beta
        self._progress_remaining = 1.0
        self._is_answered, self._unanswered = False, 0  # by updates; batches before the first one
        super().__init__(*args, **kwargs)

    def _new_core(self) -> kary_replay.PrioritizedReplayBuffer:
        core = kary_replay.PrioritizedReplayBuffer(
            self.buffer_size * self.n_envs,
            self._layout.columns,
            lanes=self.n_envs,
            seed=self._next_seed(),
            **self._settings,
        )
        core.beta = self._evaluated(self._beta)
        return core

    def _evaluated(self, beta: Beta) -> float | LinearSchedule:
        return beta(self._progress_remaining) if callable(beta) else beta

    @property
    def alpha(self) -> float:
        """Exponent of the priorities."""
        return self._core.alpha

    @property
    def beta(self) -> float:
        """Exponent of the next sample's weights.  Set it to all that the constructor takes."""
        return self._core.beta

    @beta.setter
    def beta(self, beta: Beta) -> None:
        self._core.beta = self._evaluated(beta)
        self._beta = beta

    def anneal_beta(self, progress_remaining: float) -> None:
        """Evaluates a beta that is a function of the remaining progress, from 1 to 0.

        ValueError if the function returns no finite number >= 0.
        """
        if callable(self._beta):
            self._core.beta = self._beta(progress_remaining)
        self._progress_remaining = progress_remaining

    @property
    def max_priority(self) -> float:
        """The largest priority of any row now, which new rows get; 1.0 in an empty buffer."""
        return self._core.max_priority

    @property
    def stale_updates(self) -> int:
        """Priority updates that came after their rows had been overwritten."""
        return self._core.stale_updates

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """As `ReplayBuffer.sample`, by priority, with `weights` and `keys`."""
        batch = self._core.sample(batch_size)
        assert batch.weights is not None  # a prioritized core always weighs
        if not self._is_answered:
            self._count_unanswered()
        weights = self._to_tensor()(batch.weights.reshape(-1, 1))
        return PrioritizedReplayBufferSamples(
            *self._fields(batch.columns, env), weights, batch.keys
        )

    def _count_unanswered(self) -> None:
        self._unanswered += 1
        if self._unanswered == UNANSWERED:
            _warn_of_unmoved_priorities()

    def update_priorities(self, keys: npt.ArrayLike, td_errors: Any) -> int:
        """Gives rows the priority abs(td_error) + eps.

        Takes `keys` as `sample` returned them and `td_errors` of shape (B,) or (B, 1), signed: a
        tensor on any device, with or without grad, or an array.  Returns how many were applied;
        the rows of the others have been overwritten since, and `stale_updates` counts them.

        Raises ValueError for a TD error that is not finite, IndexError for an unknown key.
        """
        applied = self._core.update_priorities(keys, td_errors)
        self._is_answered = True
        return applied

    def __getstate__(self) -> dict[str, Any]:
        # A function of the progress may be a lambda, which pickle refuses and SB3's models save.
        return super().__getstate__() | {"_beta": cloudpickle.dumps(self._beta)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state | {"_beta": cloudpickle.loads(state["_beta"])})
        self._is_answered, self._unanswered = False, 0  # perhaps another algorithm draws now


def _warn_of_unmoved_priorities() -> None:
    warnings.warn(
        f"{UNANSWERED} batches were sampled by priority, and no TD errors came back: with an "
        "algorithm of Stable-Baselines3 itself priorities never move, and weights are not used. "
        "Take PrioritizedDQN in place of DQN, PrioritizedSAC in place of SAC, and so on, from "
        "kary_replay.adapters.sb3; in a loop of your own, call update_priorities.",
        stacklevel=4,
    )
