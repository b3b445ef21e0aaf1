"""For Stable-Baselines3: a prioritized buffer, and a DQN that feeds it."""

from .algorithms import PrioritizedDQN
from .buffers import PrioritizedReplayBuffer

__all__ = ["PrioritizedDQN", "PrioritizedReplayBuffer"]
