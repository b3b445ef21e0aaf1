"""SB3's replay buffer, drawn by priority."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common import utils
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay import LinearSchedule
from kary_replay.sampler import generator

Array: TypeAlias = npt.NDArray[Any]
Beta: TypeAlias = float | LinearSchedule | Callable[[float], float]

OVER_TRAINING = utils.LinearSchedule(0.4, 1.0, end_fraction=1.0)


class PrioritizedReplayBufferSamples(NamedTuple):
    """SB3's fields of a sample, B rows of each, then what prioritized replay adds.

    `weights` is a float32 tensor of shape (B, 1); `keys` is an int64 array of shape (B,) that
    goes back with the TD errors.
    """

    observations: th.Tensor
    actions: th.Tensor
    next_observations: th.Tensor
    dones: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor | None
    weights: th.Tensor
    keys: npt.NDArray[np.int64]


class _Column:
    """An array attribute of SB3's buffer whose memory is the core's: assignment copies into it.

    The first assignment is that of SB3's constructor, which so declares shape and dtype.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, buffer: ReplayBuffer | None, owner: type | None = None) -> Any:
        return self if buffer is None else vars(buffer)[self._name]

    def __set__(self, buffer: ReplayBuffer, array: Array) -> None:
        if self._name not in vars(buffer):
            vars(buffer)[self._name] = array
            return
        column = vars(buffer)[self._name]
        if np.shape(array) != column.shape:
            raise ValueError(f"{self._name} must have shape {column.shape}, got {np.shape(array)}")
        column[...] = array


class PrioritizedReplayBuffer(ReplayBuffer):
    """Takes the place of SB3's `ReplayBuffer`, and draws by priority (arXiv 1511.05952).

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination
        As SB3's.  The observation space must be a Box.
    optimize_memory_usage : False
        Each row holds both of its observations.
    alpha, eps, weight_norm, stratified, fanout
        As for `kary_replay.PrioritizedReplayBuffer`.
    beta : float, kary_replay.LinearSchedule, or callable
        Exponent of the weights.  A schedule moves one step a `sample`.  A callable is given the
        remaining progress of the training, from 1 to 0, as SB3's `learning_rate` is; the default
        moves from 0.4 to 1 over the training.
    seed : int, numpy.random.Generator or None
        Of the draws.  None takes one from NumPy's global generator, which follows the `seed` of
        the algorithm.

    The attributes `observations`, `next_observations`, `actions`, `rewards`, `dones` and
    `timeouts`, arrays of shape (buffer_size, n_envs, ...), are the stored rows themselves.  Rows
    enter by `add` or `extend` alone.  Pickling writes the rows that are filled.

    Raises TypeError for another observation space, ValueError for `optimize_memory_usage` and
    for an argument out of its range.
    """

    observations = _Column()
    next_observations = _Column()
    actions = _Column()
    rewards = _Column()
    dones = _Column()
    timeouts = _Column()

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: th.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        alpha: float = 0.6,
        beta: Beta = OVER_TRAINING,
        eps: float = 1e-6,
        weight_norm: str = "batch",
        stratified: bool = True,
        fanout: int = 8,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        _check_supported(observation_space, optimize_memory_usage)
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device=device,
            n_envs=n_envs,
            handle_timeout_termination=handle_timeout_termination,
        )
        if seed is None:
            # The algorithm has just seeded this generator from its own `seed`, which it does not
            # pass on: one number from here makes the same `seed` the same training.
            seed = int(np.random.randint(2**31 - 1))  # noqa: NPY002
        self._seeds = generator(seed)
        self._make_core = partial(
            kary_replay.PrioritizedReplayBuffer,
            self.buffer_size * self.n_envs,
            self._take_declarations(),
            alpha=alpha,
            eps=eps,
            weight_norm=weight_norm,
            stratified=stratified,
            lanes=self.n_envs,
            fanout=fanout,
        )
        self._progress_remaining = 1.0
        self._use_new_core(beta)

    def _take_declarations(self) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of SB3's arrays.  They go, before they were touched, for the core's."""
        arrays = {name: vars(self).pop(name) for name in _COLUMNS}
        return {name: (array.shape[2:], array.dtype) for name, array in arrays.items()}

    def _use_new_core(self, beta: Beta) -> None:
        self._core = self._make_core(seed=int(self._seeds.integers(2**63)))
        self.beta = beta
        self._show_rows()

    def _show_rows(self) -> None:
        """Makes the array attributes views of the core, in which slots of one step adjoin."""
        for name in _COLUMNS:
            rows = self._core.view(name)
            vars(self)[name] = rows.reshape(self.buffer_size, self.n_envs, *rows.shape[1:])

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
        self._core.beta = beta(self._progress_remaining) if callable(beta) else beta
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

    def add(
        self,
        obs: Array,
        next_obs: Array,
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Inserts one transition of each environment, with the largest priority now stored.

        Arguments have a leading axis of n_envs, which may be left out where it is 1.  Raises
        ValueError or TypeError, and inserts nothing, for values that the shapes and dtypes of the
        spaces cannot hold.
        """
        keys = self._core.add(
            observations=_rows("obs", obs, self.observations),
            next_observations=_rows("next_obs", next_obs, self.next_observations),
            actions=_rows("action", self._flat_actions(action), self.actions),
            rewards=_rows("reward", reward, self.rewards),
            dones=_rows("done", np.asarray(done, np.float32), self.dones),
            timeouts=_rows("infos", self._timeouts_of(infos), self.timeouts),
        )
        steps = int(keys[0]) // self.n_envs + 1  # keys count the rows of all environments
        self.pos = steps % self.buffer_size
        self.full = steps >= self.buffer_size

    def _flat_actions(self, action: npt.ArrayLike) -> Array:
        """Actions as SB3 stores them, whatever the shape of the action space."""
        array = np.asarray(action)
        shape = self.n_envs, self.action_dim
        return array.reshape(shape) if array.size == math.prod(shape) else array

    def _timeouts_of(self, infos: list[dict[str, Any]]) -> npt.NDArray[np.float32]:
        if not self.handle_timeout_termination:
            return np.zeros(self.n_envs, np.float32)
        return np.array([info.get("TimeLimit.truncated", False) for info in infos], np.float32)

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """Draws `batch_size` transitions by priority, with replacement.

        `env` normalizes observations and rewards, as in SB3.  Tensors lie on `device`; on the
        CPU they are the drawn copies themselves.  ValueError if the buffer is empty or
        `batch_size` is not >= 1.
        """
        batch = self._core.sample(batch_size)
        assert batch.weights is not None  # a prioritized core always weighs
        terminated = batch["dones"] * (1 - batch["timeouts"])
        rewards = self._normalize_reward(batch["rewards"].reshape(-1, 1), env)
        return PrioritizedReplayBufferSamples(
            observations=self._tensor(self._normalize_obs(batch["observations"], env)),
            actions=self._tensor(batch["actions"]),
            next_observations=self._tensor(self._normalize_obs(batch["next_observations"], env)),
            dones=self._tensor(terminated.reshape(-1, 1)),
            rewards=self._tensor(rewards),
            discounts=None,
            weights=self._tensor(batch.weights.reshape(-1, 1)),
            keys=batch.keys,
        )

    def _tensor(self, array: Any) -> th.Tensor:
        return self.to_torch(array, copy=False)  # drawn rows are copies already

    def update_priorities(self, keys: npt.ArrayLike, td_errors: Any) -> int:
        """Gives rows the priority abs(td_error) + eps.

        Takes `keys` as `sample` returned them and `td_errors` of shape (B,) or (B, 1), signed: a
        tensor on any device, with or without grad, or an array.  Returns how many were applied;
        the rows of the others have been overwritten since, and `stale_updates` counts them.

        Raises ValueError for a TD error that is not finite, IndexError for an unknown key.
        """
        return self._core.update_priorities(keys, td_errors)

    def reset(self) -> None:
        """Forgets all rows, priorities and keys.

        Settings stay, a beta that was set too (a schedule starts again), and draws go on to new
        random numbers.
        """
        super().reset()
        self._use_new_core(self._beta)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name not in _COLUMNS}
        # A function of the progress may be a lambda, which pickle refuses and SB3's models save.
        return state | {"_beta": cloudpickle.dumps(self._beta)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _beta=cloudpickle.loads(state["_beta"]))
        self._show_rows()


_COLUMNS = [
    name for name, value in vars(PrioritizedReplayBuffer).items() if isinstance(value, _Column)
]


def _check_supported(observation_space: spaces.Space[Any], optimize_memory_usage: bool) -> None:
    if not isinstance(observation_space, spaces.Box):
        raise TypeError(f"observation_space must be a Box, got {observation_space}")
    if optimize_memory_usage:
        raise ValueError(
            "optimize_memory_usage must be False: each row holds both of its observations"
        )


def _rows(name: str, values: npt.ArrayLike, column: Array) -> Array:
    """`values` if they are a row of `column`; a single environment may leave out its axis."""
    array, shape = np.asarray(values), column.shape[1:]
    if array.shape == shape:
        return array
    if shape[0] == 1 and array.shape == shape[1:]:
        return array[np.newaxis]
    raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
