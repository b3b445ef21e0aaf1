"""Replay buffers with a K-ary sum tree, for Stable-Baselines3, Tianshou and anyone else."""

try:
    from kary_replay._sum_tree import SumTree
    from kary_replay.buffer import Batch, PrioritizedReplayBuffer, ReplayBuffer
    from kary_replay.sampler import LinearSchedule
except ModuleNotFoundError as error:
    if error.name not in ("kary_replay._ring", "kary_replay._sum_tree"):
        raise
    raise ImportError(
        f"{error.name} is not compiled for this Python in {__path__[0]}: "
        "run `pip install kary-replay`, or `pip install -e .` in a checkout"
    ) from error

__all__ = [
    "Batch",
    "LinearSchedule",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "SumTree",
    "__version__",
]
__version__ = "0.1.0"
