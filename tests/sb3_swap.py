"""A pytest plugin: puts our classes in the place of SB3's, wherever SB3 and its tests find them.

The environment variable `SB3_SWAP` says which: "buffers", or "algorithms", whose default buffers
are prioritized ones.
"""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest
import sb3_contrib  # noqa: F401  (its modules have SB3's names too)
import stable_baselines3
from stable_baselines3.common import buffers

from kary_replay.adapters import sb3 as ours

BUFFERS = ("ReplayBuffer", "DictReplayBuffer", "NStepReplayBuffer")
ALGORITHMS = ("DQN", "DDPG", "TD3", "SAC")

made = 0  # buffers of ours, for the harness to see that the swap took place


def swap_buffers() -> None:
    """In the module of SB3's buffers itself their own code needs them: it gets a double."""
    double = types.ModuleType(buffers.__name__)
    vars(double).update(vars(buffers))
    for name in BUFFERS:
        replace(getattr(buffers, name), getattr(ours, name), double)
    sys.modules[buffers.__name__] = double


def swap_algorithms() -> None:
    for name in ALGORITHMS:
        replace(getattr(stable_baselines3, name), getattr(ours, f"Prioritized{name}"))


def replace(theirs: Any, mine: Any, *more: types.ModuleType) -> None:
    for name, module in [*sys.modules.items(), *((m.__name__, m) for m in more)]:
        package = name.partition(".")[0]
        if package not in ("stable_baselines3", "sb3_contrib") or module is buffers:
            continue
        if vars(module).get(theirs.__name__) is theirs:
            setattr(module, theirs.__name__, mine)


def count(begin: Any) -> Any:
    def counted(buffer: Any) -> None:
        global made
        made += 1
        begin(buffer)

    return counted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"buffers of ours: {made}")


ours.ReplayBuffer._begin = count(ours.ReplayBuffer._begin)  # type: ignore[method-assign]
{"buffers": swap_buffers, "algorithms": swap_algorithms}[os.environ["SB3_SWAP"]]()
