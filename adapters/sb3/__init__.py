"""For Stable-Baselines3: a prioritized buffer."""

from kary_replay.adapters.sb3.buffers import PrioritizedReplayBuffer

__all__ = ["PrioritizedReplayBuffer"]
