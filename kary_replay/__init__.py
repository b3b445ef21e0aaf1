"""Replay buffers with a K-ary sum tree, for Stable-Baselines3, Tianshou and anyone else."""

try:
    from kary_replay._sum_tree import SumTree
    from kary_replay.batch import Batch
    from kary_replay.buffer import PrioritizedReplayBuffer, ReplayBuffer
    from kary_replay.columns import Columns, Stored
    from kary_replay.expressions import Column, Horizon, t
    from kary_replay.sampler import LinearSchedule
except ModuleNotFoundError as error:
    if error.name not in {
        f"kary_replay.{name}"
        for name in ("_lock", "_parts", "_ring", "_sampling", "_sum_tree", "_windows")
    }:
        raise
    raise ImportError(
        f"{error.name} is not compiled for this Python in {__path__[0]}: "
        "run `pip install kary-replay`, or `pip install -e .` in a checkout"
    ) from error

__all__ = [
    "Batch",
    "Column",
    "Columns",
    "Horizon",
    "LinearSchedule",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "Stored",
    "SumTree",
    "__version__",
    "t",
]
__version__ = "0.1.0"
