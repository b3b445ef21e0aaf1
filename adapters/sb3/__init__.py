"""For Stable-Baselines3: its replay buffers, one that is prioritized, and algorithms that feed it.

Those of sb3-contrib are imported when they are asked for.
"""

from typing import TYPE_CHECKING, Any

from .algorithms import PrioritizedDDPG, PrioritizedDQN, PrioritizedSAC, PrioritizedTD3
from .buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from .prioritized import PrioritizedReplayBuffer, PrioritizedReplayBufferSamples

if TYPE_CHECKING:
    from .contrib import PrioritizedCrossQ, PrioritizedQRDQN, PrioritizedTQC

__all__ = [
    "DictReplayBuffer",
    "NStepReplayBuffer",
    "PrioritizedCrossQ",
    "PrioritizedDDPG",
    "PrioritizedDQN",
    "PrioritizedQRDQN",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "PrioritizedSAC",
    "PrioritizedTD3",
    "PrioritizedTQC",
    "ReplayBuffer",
]


def __getattr__(name: str) -> Any:
    if name not in ("PrioritizedCrossQ", "PrioritizedQRDQN", "PrioritizedTQC"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import contrib

    return getattr(contrib, name)
