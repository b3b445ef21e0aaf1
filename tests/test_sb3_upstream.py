"""Tells when SB3 changes what the adapter was written after."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")

import stable_baselines3
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

WRITTEN_AFTER = "2.9.2"

# SB3's function, the code of ours that says the same in its own way, and the hash of its source.
FUNCTIONS: list[tuple[Callable[..., Any], str, str]] = [
    (DQN.train, "PrioritizedDQN.train", "696507cb4053336a"),
    (OffPolicyAlgorithm._setup_model, "PrioritizedDQN._setup_model", "d5de65cb8d9bfe04"),
    (ReplayBuffer.__init__, "PrioritizedReplayBuffer.__init__", "77db2f7872465757"),
    (ReplayBuffer.add, "PrioritizedReplayBuffer.add", "310f1d34dc0f4790"),
    (ReplayBuffer._get_samples, "PrioritizedReplayBuffer.sample", "ffe73ca3cb22fc4c"),
    (BaseBuffer.reset, "PrioritizedReplayBuffer.reset", "130b02f1b43dc5a1"),
]


@pytest.mark.parametrize(
    ("theirs", "ours", "known"), FUNCTIONS, ids=[theirs.__qualname__ for theirs, _, _ in FUNCTIONS]
)
def test_upstream_is_what_the_adapter_was_written_after(
    theirs: Callable[..., Any], ours: str, known: str
) -> None:
    now = hashlib.sha256(inspect.getsource(theirs).encode()).hexdigest()[:16]
    assert now == known, (
        f"SB3 {stable_baselines3.__version__} has another {theirs.__qualname__} than SB3 "
        f"{WRITTEN_AFTER}, after which {ours} was written. Compare the two sources, carry over to "
        f"ours what matters, and then put {now!r} in place of {known!r} in this file."
    )
