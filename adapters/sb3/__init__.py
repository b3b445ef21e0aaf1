"""For Stable-Baselines3: a prioritized buffer, and a DQN that feeds it."""

from kary_replay.adapters.sb3.algorithms import PrioritizedDQN
from kary_replay.adapters.sb3.buffers import PrioritizedReplayBuffer

__all__ = ["PrioritizedDQN", "PrioritizedReplayBuffer"]
