"""For Tianshou 2."""

from .buffers import ReplayBuffer
from .prioritized import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer
from .vector import VectorReplayBuffer

__all__ = [
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "VectorReplayBuffer",
]
