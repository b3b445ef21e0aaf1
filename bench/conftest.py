"""A quiet process for all benchmarks, and what the saved figures say about where they were taken.

Every library is held to one thread: a call is timed on one core, as it runs in a training loop
whose other cores are busy.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rivals

SEED = 0
PACKAGES = (
    "kary-replay",
    "numpy",
    "torch",
    "torchrl",
    "tianshou",
    "numba",
    "cpprb",
    "stable-baselines3",
)


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[None]:
    """Holds the process to one core (the last: interrupts prefer the first) and one thread."""
    with rivals.one_thread(SEED):
        if not hasattr(os, "sched_setaffinity"):  # only Linux has it
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(before)})
        yield
        os.sched_setaffinity(0, before)


@pytest.fixture(autouse=True)
def no_gc() -> Iterator[None]:
    """Keeps the garbage collector out of the turns."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def rng() -> np.random.Generator:
    """Of masses, targets, leaves and TD errors."""
    return np.random.default_rng(SEED)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: Any) -> None:
    """Beside the processor's name, which pytest-benchmark saves by itself."""
    machine_info["cores"] = os.cpu_count()
    machine_info["threads"] = 1
    machine_info["seed"] = SEED
    machine_info["versions"] = {name: version(name) for name in PACKAGES}
    machine_info["caches"] = _caches()


def _caches() -> dict[str, int]:
    """Bytes of the data caches of a core, {"L1": 32768, ...}; empty where Linux does not say."""
    caches = {}
    for cache in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        size = (cache / "size").read_text().strip()
        if (cache / "type").read_text().strip() != "Instruction":
            unit = {"K": 1 << 10, "M": 1 << 20}[size[-1]]
            caches["L" + (cache / "level").read_text().strip()] = int(size[:-1]) * unit
    return caches
