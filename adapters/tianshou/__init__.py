"""For Tianshou 2."""

from .buffers import PrioritizedVectorReplayBuffer

__all__ = ["PrioritizedVectorReplayBuffer"]
