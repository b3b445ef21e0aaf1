"""Our buffers for Tianshou's experiment builders, which make buffers of their own.

The builders let a collector factory choose what it collects into:
`builder.with_collector_factory(PrioritizedCollectorFactory(alpha=0.6, beta=0.4))`.
"""

from __future__ import annotations

from typing import Any

from tianshou import data
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.env import BaseVectorEnv
from tianshou.highlevel.params.collector import CollectorFactoryDefault

from kary_replay import LinearSchedule

from .buffers import ReplayBuffer
from .prioritized import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer
from .vector import VectorReplayBuffer


class CollectorFactory(CollectorFactoryDefault):
    """Collectors that fill a `ReplayBuffer` or a `VectorReplayBuffer`.

    Its size and options are those of the buffer that the builder made.
    """

    def __init__(self, *, random_seed: int = 42) -> None:
        self.random_seed = random_seed

    def create_collector(
        self,
        algorithm: Algorithm[Any, Any],
        vector_env: BaseVectorEnv,
        buffer: data.ReplayBuffer | None = None,
        exploration_noise: bool = False,
    ) -> data.BaseCollector[Any]:
        """A collector for training; or for evaluation, if there is no buffer."""
        replaced = None if buffer is None else self._in_place_of(buffer)
        return super().create_collector(algorithm, vector_env, replaced, exploration_noise)

    def _in_place_of(self, buffer: data.ReplayBuffer) -> data.ReplayBuffer:
        options = buffer.options | {"random_seed": self.random_seed}
        if isinstance(buffer, data.ReplayBufferManager):
            return VectorReplayBuffer(buffer.maxsize, buffer.buffer_num, **options)
        return ReplayBuffer(buffer.maxsize, **options)


class PrioritizedCollectorFactory(CollectorFactory):
    """Collectors that fill a `PrioritizedReplayBuffer` or a `PrioritizedVectorReplayBuffer`.

    Parameters
    ----------
    alpha, beta, weight_norm, eps, stratified, random_seed
        As for `PrioritizedReplayBuffer`; size and other options are those of the buffer that the
        builder made.
    """

    def __init__(
        self,
        alpha: float,
        beta: float | LinearSchedule,
        weight_norm: bool = True,
        *,
        eps: float = 1e-6,
        stratified: bool = True,
        random_seed: int = 42,
    ) -> None:
        super().__init__(random_seed=random_seed)
        self.alpha = alpha
        self.beta = beta
        self.weight_norm = weight_norm
        self.eps = eps
        self.stratified = stratified

    def _in_place_of(self, buffer: data.ReplayBuffer) -> data.ReplayBuffer:
        options = buffer.options | vars(self)
        if isinstance(buffer, data.ReplayBufferManager):
            return PrioritizedVectorReplayBuffer(buffer.maxsize, buffer.buffer_num, **options)
        return PrioritizedReplayBuffer(buffer.maxsize, **options)
