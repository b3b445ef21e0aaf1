"""Replay buffers with a K-ary sum tree, for Stable-Baselines3, Tianshou and anyone else."""

from kary_replay._sum_tree import SumTree
from kary_replay.buffer import Batch, PrioritizedReplayBuffer, ReplayBuffer
from kary_replay.sampler import LinearSchedule

__all__ = [
    "Batch",
    "LinearSchedule",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "SumTree",
    "__version__",
]
__version__ = "0.1.0"
