"""What bench_sb3.py compares with: the usual prioritized buffer in Python, and a DQN on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from rivals import PlainTree
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer

from kary_replay.adapters.sb3 import PrioritizedDQN, PrioritizedReplayBufferSamples

ALPHA, EPS = 0.6, 1e-6
EPISODE = 200  # steps


class ArrayTree(PlainTree):
    """The same with its nodes in a NumPy array, as it is seen more often, though it is slower."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.nodes: Any = np.array(self.nodes)


class PythonTreeBuffer(ReplayBuffer):
    """SB3's buffer, drawn by priority with a sum tree in plain Python, for one environment.

    It has what `PrioritizedDQN` asks for.
    """

    stale_updates = 0

    def __init__(self, *args: Any, tree: type[PlainTree] = PlainTree, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tree = tree(self.buffer_size)
        self.max_priority, self.beta = 1.0, 0.4

    def anneal_beta(self, progress_remaining: float) -> None:
        self.beta = 1.0 - 0.6 * progress_remaining

    def add(self, *transition: Any) -> None:
        row = np.array([self.pos])
        super().add(*transition)
        self.tree.update(row, np.array([self.max_priority**ALPHA]))

    def sample(self, batch_size: int, env: Any = None) -> Any:
        total = self.tree.nodes[1]
        strata = (np.arange(batch_size) + np.random.random(batch_size)) / batch_size  # noqa: NPY002
        rows = np.minimum(self.tree.find(strata * total), self.size() - 1)
        masses = np.array([self.tree.nodes[self.tree.first_leaf + row] for row in rows.tolist()])
        weights = (self.size() * masses / total) ** -self.beta
        return PrioritizedReplayBufferSamples(
            *self._get_samples(rows, env),
            self.to_torch((weights / weights.max()).astype(np.float32)[:, np.newaxis]),
            rows,
        )

    def update_priorities(self, rows: NDArray[np.int64], td_errors: Any) -> None:
        if isinstance(td_errors, torch.Tensor):
            td_errors = td_errors.cpu().numpy()
        priorities = np.abs(td_errors).ravel() + EPS
        self.max_priority = max(self.max_priority, float(priorities.max()))
        self.tree.update(rows, priorities**ALPHA)


class PythonTreeDQN(PrioritizedDQN):
    """Our prioritized DQN on that buffer."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, replay_buffer_class=PythonTreeBuffer, **kwargs)

    def _setup_model(self) -> None:
        DQN._setup_model(self)

    def _prioritized_buffer(self) -> Any:
        return self.replay_buffer


def transitions(observations: spaces.Space[Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Arguments of `add`; the first number of an action is that of the step.

    Stacks of frames begin an episode with frames of zeros.  The last step ends one.
    """
    rng = np.random.default_rng(2)
    obs: Any = None
    for step in range(count):
        if step % EPISODE == 0:
            obs = _first(observations, rng)
        next_obs = _following(observations, obs, rng)
        action = rng.random((1, 6), dtype=np.float32)
        action[0, 0] = step
        done = np.array([step == count - 1 or step % EPISODE == EPISODE - 1])
        yield obs, next_obs, action, rng.random(1, dtype=np.float32), done, [{}]
        obs = next_obs


def _first(space: spaces.Space[Any], rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _first(subspace, rng) for key, subspace in space.spaces.items()}
    obs = _random(space, rng)
    if space.dtype == np.uint8 and space.shape[0] > 1:
        obs[:, :-1] = 0
    return obs


def _following(space: spaces.Space[Any], obs: Any, rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _following(s, obs[key], rng) for key, s in space.spaces.items()}
    if space.dtype == np.uint8 and space.shape[0] > 1:
        return np.concatenate([obs[:, 1:], _random(space, rng)[:, -1:]], axis=1)
    return _random(space, rng)


def _random(space: spaces.Space[Any], rng: np.random.Generator) -> NDArray[Any]:
    shape = (1, *space.shape)
    if space.dtype == np.uint8:
        return rng.integers(256, size=shape, dtype=np.uint8)
    return rng.random(shape, dtype=np.float32)
