"""SB3's replay buffers with the core behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common import buffers
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay.checks import check_count, check_number
from kary_replay.columns import as_dtype
from kary_replay.sampler import generator

from .layout import Layout
from .observations import Array, Observation, Observations, rows
from .returns import Returns
from .stacks import FrameStack

Fields: TypeAlias = tuple[Any, th.Tensor, Any, th.Tensor, th.Tensor, th.Tensor | None]

CHUNK = 1024  # steps that are copied at a time


class _Stored:
    """An attribute that shows stored columns: arrays of shape (buffer_size, n_envs, ...).

    Assignment copies into them; what their dtype cannot hold is refused.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, buffer: ReplayBuffer | None, owner: type | None = None) -> Any:
        if buffer is None:
            return self
        try:
            return buffer._views[self._name]
        except KeyError:
            raise AttributeError(
                f"{self._name} are not stored by themselves: they follow from the observations"
            ) from None

    def __set__(self, buffer: ReplayBuffer, given: Any) -> None:
        mine = self.__get__(buffer)
        if not isinstance(mine, dict):
            _copy_into(self._name, mine, given)
            return
        if not isinstance(given, Mapping) or set(given) != set(mine):
            raise ValueError(f"{self._name} must be a dict with exactly the keys {list(mine)}")
        for key, column in mine.items():
            _copy_into(f"{self._name}[{key!r}]", column, given[key])


class ReplayBuffer(buffers.ReplayBuffer):
    """Takes the place of SB3's `ReplayBuffer`.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, handle_timeout_termination
        As SB3's.  The observation space may be a Dict as well.
    optimize_memory_usage : bool
        Store each observation once.  Timeouts may be handled as well, which SB3 refuses.  The
        last observation of an episode takes a row of its own.
    frame_stack : int
        Observations are stacks of so many frames, as VecFrameStack makes them; each frame is
        stored once.  A step that does not continue the stack before it is refused.
    seed : int, numpy.random.Generator or None
        Of the draws.  None takes one from NumPy's global generator, which follows the `seed` of
        the algorithm.

    The attributes `observations`, `next_observations`, `actions`, `rewards`, `dones` and
    `timeouts`, arrays of shape (buffer_size, n_envs, ...), are the stored rows themselves, or
    with Dict observations dictionaries of them.  Where an observation is stored once there is no
    `next_observations`, and `observations` are the frames; where episodes end is then taken from
    what was added, whatever is written to `dones`.  `pos` and `full` may be set, to declare
    filled what was written to the arrays; that and `reset` make new arrays.  Pickling writes the
    rows that are filled.

    A subclass changes what is drawn in `sample`, which calls neither `_get_samples` nor, on the
    CPU, `to_torch`: TypeError for one that has those.

    Raises TypeError or ValueError for an argument out of its range.
    """

    observations = _Stored()
    next_observations = _Stored()
    actions = _Stored()
    rewards = _Stored()
    dones = _Stored()
    timeouts = _Stored()

    n_steps = 1  # whose rewards are summed, at most
    gamma = 1.0

    def __init_subclass__(cls) -> None:
        for name in ("_get_samples", "to_torch"):
            if name in vars(cls):
                raise TypeError(f"{cls.__name__} must override sample, which calls no {name}")

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
        frame_stack: int = 1,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        # Not SB3's constructors, which allocate the arrays.
        buffers.BaseBuffer.__init__(
            self, buffer_size, observation_space, action_space, device, n_envs=n_envs
        )
        self.buffer_size = max(buffer_size // n_envs, 1)
        if self.n_steps > self.buffer_size:
            raise ValueError(
                f"n_steps must be at most buffer_size // n_envs, {self.buffer_size}, "
                f"got {self.n_steps}"
            )
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self._frame_stack = check_count("frame_stack", frame_stack)
        if seed is None:
            # The algorithm has just seeded this generator from its own `seed`, which it does not
            # pass on: one number from here makes the same `seed` the same training.
            seed = int(np.random.randint(2**31 - 1))  # noqa: NPY002
        self._seeds = generator(seed)
        self._begin()

    def _begin(self) -> None:
        """With no rows."""
        observations = Observations(self.observation_space, self.n_envs)
        self._stack = self._new_stack(observations)
        dtype = np.dtype(self._maybe_cast_dtype(self.action_space.dtype))
        self._layout = Layout(
            observations,
            ((self.action_dim,), dtype),
            next_in_time=self.optimize_memory_usage or self._frame_stack > 1,
            stack=self._stack,
            n_steps=self.n_steps,
        )
        self._summed = Returns(self.n_steps, self.gamma)
        self._core = self._new_core()
        self._pos, self._full = 0, False
        self._show_rows()

    def _new_stack(self, observations: Observations) -> FrameStack | None:
        if self._frame_stack == 1:
            return None
        if observations.is_dict:
            raise TypeError(
                f"frame_stack must be 1 with observations in a Dict, got {self._frame_stack}"
            )
        return FrameStack(observations.parts[0], self._frame_stack, self.n_envs)

    def _new_core(self) -> kary_replay.ReplayBuffer:
        return kary_replay.ReplayBuffer(
            self.buffer_size * self.n_envs,
            self._layout.columns,
            lanes=self.n_envs,
            seed=self._next_seed(),
        )

    def _next_seed(self) -> int:
        return int(self._seeds.integers(2**63))

    def _show_rows(self) -> None:
        """Makes the array attributes views of the core, in which slots of one step adjoin."""
        self._views: dict[str, Observation] = {
            name: self._view(name) for name in ("actions", "rewards", "dones", "timeouts")
        }
        for attribute in ("observations", "next_observations")[: 2 - self._layout.next_in_time]:
            self._views[attribute] = self._layout.observations.put_together(attribute, self._view)

    def _view(self, column: str) -> Array:
        stored = self._core.view(column)
        return stored.reshape(self.buffer_size, self.n_envs, *stored.shape[1:])

    # SB3's constructor sets these two.  Everyone else who does has written to the arrays.

    _pos, _full = 0, False

    @property
    def pos(self) -> int:
        """The row of the next step."""
        return self._pos

    @pos.setter
    def pos(self, pos: int) -> None:
        self._declare_filled(pos, self._full)

    @property
    def full(self) -> bool:
        """Whether all rows are filled."""
        return self._full

    @full.setter
    def full(self, full: bool) -> None:
        self._declare_filled(self._pos, full)

    def _declare_filled(self, pos: int, full: bool) -> None:
        """Takes for steps what the arrays hold in the rows before `pos`, or in all if `full`."""
        if (pos, full) == (self._pos, self._full):
            return
        if self._layout.next_in_time:
            raise AttributeError(
                "pos and full cannot be set where observations are stored once: "
                "rows come in by add and extend"
            )
        if not 0 <= pos < self.buffer_size:
            raise IndexError(f"pos must be in 0 .. {self.buffer_size - 1}, got {pos}")
        core = self._core
        self._begin()
        # Round the ring and up to `pos` again, so that the oldest row lies there.
        steps = np.arange(pos + self.buffer_size if full else pos) % self.buffer_size
        for start in range(0, len(steps), CHUNK):
            self._copy_steps(core, steps[start : start + CHUNK])
        self._pos, self._full = pos, full
        for name in self._layout.stored:  # the rest of the arrays too
            self._core.view(name)[...] = core.view(name)

    def _copy_steps(self, core: kary_replay.ReplayBuffer, steps: npt.NDArray[np.int64]) -> None:
        lanes = np.arange(self.n_envs)
        slots = (steps[:, np.newaxis] * self.n_envs + lanes).ravel()
        columns = {name: core.view(name)[slots] for name in self._layout.stored}
        columns |= self._layout.flags(columns["dones"], columns["timeouts"])
        self._core.add(**columns, lanes=np.tile(lanes, len(steps)))

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Array,
        reward: Array,
        done: Array,
        infos: list[dict[str, Any]],
    ) -> None:
        """Inserts one transition of each environment.

        Arguments have a leading axis of n_envs, which may be left out where it is 1.  Raises
        ValueError or TypeError, and inserts nothing, for values that the shapes and dtypes of the
        spaces cannot hold, or that are no stacks of frames where these were announced.
        """
        layout, stack, each = self._layout, self._stack, (self.n_envs,)
        dones = rows("done", np.asarray(done, np.float32), each)
        timeouts = self._timeouts_of(infos)
        observed = layout.observations.taken_apart("obs", "observations", obs)
        observed |= layout.observations.taken_apart("next_obs", "next_observations", next_obs)
        stored = observed if stack is None else stack.frames(**observed)
        stored["actions"] = rows("action", action, (*each, self.action_dim), in_any_shape=True)
        stored["rewards"] = rows("reward", reward, each)
        stored |= layout.flags(dones, timeouts)
        keys = self._core.add(**stored)
        if stack is not None:
            ended = (dones != 0) | (timeouts != 0)
            stack.move_on(observed["next_observations"], stored["next_age"], ended)
        steps = int(keys[0]) // self.n_envs + 1  # keys count the rows of all environments
        self._pos = steps % self.buffer_size
        self._full = steps >= self.buffer_size

    def _timeouts_of(self, infos: list[dict[str, Any]]) -> npt.NDArray[np.float32]:
        timeouts = np.zeros(self.n_envs, np.float32)
        if not self.handle_timeout_termination:
            return timeouts
        if len(infos) != self.n_envs:
            raise ValueError(f"infos must have length {self.n_envs}, got {len(infos)}")
        for env, info in enumerate(infos):
            if info.get("TimeLimit.truncated", False):
                timeouts[env] = 1.0
        return timeouts

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Draws `batch_size` transitions with replacement.

        `env` normalizes observations and rewards, as in SB3.  Tensors lie on `device`; on the
        CPU they are the drawn copies themselves.  ValueError if the buffer is empty or
        `batch_size` is not >= 1.
        """
        return self._kind(*self._fields(self._core.sample(batch_size).columns, env))

    def _get_samples(  # type: ignore[override]
        self, batch_inds: npt.ArrayLike, env: VecNormalize | None = None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """The transitions of these rows, of environments drawn as SB3 draws them."""
        steps = np.asarray(batch_inds)
        envs = np.random.randint(0, self.n_envs, size=len(steps))  # noqa: NPY002
        return self._kind(*self._fields(self._core.read(steps * self.n_envs + envs), env))

    @property
    def _kind(self) -> type[ReplayBufferSamples | DictReplayBufferSamples]:
        is_dict = self._layout.observations.is_dict
        return DictReplayBufferSamples if is_dict else ReplayBufferSamples

    def _fields(self, batch: dict[str, Array], env: VecNormalize | None) -> Fields:
        """SB3's fields of a sample.  It normalizes every reward before it sums them."""
        layout, tensor = self._layout, self._to_tensor()
        obs = layout.observation(batch, "observations")
        next_obs = layout.observation(batch, "next_observations")
        rewards, discounts = layout.rewards(batch), None
        if env is not None:
            obs, next_obs = self._normalize_obs(obs, env), self._normalize_obs(next_obs, env)
            rewards = self._normalize_reward(rewards, env)
        if self.n_steps > 1:
            rewards, discounts = self._summed.of(rewards, layout.steps(batch))
        return (
            _each(tensor, obs),
            tensor(batch["actions"]),
            _each(tensor, next_obs),
            tensor(layout.terminated(batch)),
            tensor(rewards),
            None if discounts is None else tensor(discounts),
        )

    def _to_tensor(self) -> Callable[[Array], th.Tensor]:
        """To the device.  On the CPU nothing is copied: what was drawn is a copy already."""
        device = self.device if isinstance(self.device, th.device) else th.device(self.device)
        return th.from_numpy if device.type == "cpu" else self.to_torch

    def reset(self) -> None:
        """Forgets all rows, keys and priorities; draws go on to new random numbers."""
        del self._core, self._views  # first, lest both need memory
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_views"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._show_rows()


class DictReplayBuffer(ReplayBuffer, buffers.DictReplayBuffer):  # type: ignore[misc]
    """Takes the place of SB3's `DictReplayBuffer`: a `ReplayBuffer` of Dict observations.

    Raises TypeError for another observation space.
    """

    def __init__(
        self, buffer_size: int, observation_space: spaces.Dict, *args: Any, **kwargs: Any
    ) -> None:
        if not isinstance(observation_space, spaces.Dict):
            raise TypeError(f"observation_space must be a Dict, got {observation_space}")
        super().__init__(buffer_size, observation_space, *args, **kwargs)


class NStepReplayBuffer(ReplayBuffer, buffers.NStepReplayBuffer):  # type: ignore[misc]
    """Takes the place of SB3's `NStepReplayBuffer`: a `ReplayBuffer` of n-step returns.

    Parameters
    ----------
    n_steps : int >= 1
        Rewards are summed over so many steps, or as many as there are before the episode ends or
        the newest step comes.
    gamma : float >= 0
        What each further one counts less.
    *args, **kwargs
        As for `ReplayBuffer`.  Observations may be stored once here too.
    """

    def __init__(self, *args: Any, n_steps: int = 3, gamma: float = 0.99, **kwargs: Any) -> None:
        self.n_steps, self.gamma = check_count("n_steps", n_steps), check_number("gamma", gamma)
        super().__init__(*args, **kwargs)

    def _fields(self, batch: dict[str, Array], env: VecNormalize | None) -> Fields:
        *fields, discounts = super()._fields(batch, env)
        if discounts is None:  # of one step
            discounts = th.full_like(fields[4], self.gamma)
        return (*fields, discounts)


def _each(tensor: Callable[[Array], th.Tensor], observation: Observation) -> Any:
    if isinstance(observation, dict):
        return {key: tensor(array) for key, array in observation.items()}
    return tensor(observation)


def _copy_into(name: str, column: Array, given: Any) -> None:
    if np.shape(given) != column.shape:
        raise ValueError(f"{name} must have shape {column.shape}, got {np.shape(given)}")
    column[...] = as_dtype(name, np.asarray(given), column.dtype)
