"""Tells when SB3 changes what the adapter was written after."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("stable_baselines3")
pytest.importorskip("sb3_contrib")

import sb3_contrib
import stable_baselines3
from sb3_contrib.common.utils import quantile_huber_loss
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.buffers import (
    BaseBuffer,
    DictReplayBuffer,
    NStepReplayBuffer,
    ReplayBuffer,
)
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

WRITTEN_AFTER = "2.9.2"  # of both packages

# SB3's function, the code of ours that says the same in its own way, and the hash of its source.
FUNCTIONS: list[tuple[Callable[..., Any], str, str]] = [
    (DQN.train, "algorithms.PrioritizedDQN", "696507cb4053336a"),
    (TD3.train, "algorithms.DelayedActorLearner", "4f3638f813b0efba"),
    (DDPG.train, "algorithms.DelayedActorLearner", "4f3638f813b0efba"),
    (SAC.train, "algorithms.SoftActorLearner", "0ac7abe1c18ba7fe"),
    (sb3_contrib.QRDQN.train, "contrib.PrioritizedQRDQN", "a6f745272c748318"),
    (sb3_contrib.TQC.train, "contrib.PrioritizedTQC", "eccee1e17ece85ba"),
    (sb3_contrib.CrossQ.train, "contrib.PrioritizedCrossQ", "b6f9119066e3c1af"),
    (quantile_huber_loss, "losses.quantile_huber", "231840f2c652b69e"),
    (OffPolicyAlgorithm._setup_model, "learner.Learner._setup_model", "d5de65cb8d9bfe04"),
    (OffPolicyAlgorithm._store_transition, "buffers.ReplayBuffer.add", "3acfadcbf8b1ea11"),
    (BaseBuffer.__init__, "buffers.ReplayBuffer.__init__", "cc9192dabb862579"),
    (BaseBuffer.reset, "buffers.ReplayBuffer.reset", "130b02f1b43dc5a1"),
    (BaseBuffer.sample, "buffers.ReplayBuffer.sample", "32e77dec7d96488d"),
    (BaseBuffer.to_torch, "buffers.ReplayBuffer._to_tensor", "1488780ddc744c01"),
    (ReplayBuffer.__init__, "buffers.ReplayBuffer.__init__", "77db2f7872465757"),
    (ReplayBuffer.add, "buffers.ReplayBuffer.add", "310f1d34dc0f4790"),
    (ReplayBuffer.sample, "buffers.ReplayBuffer.sample", "d0aa2fb65a84ec11"),
    (ReplayBuffer._get_samples, "buffers.ReplayBuffer._fields", "ffe73ca3cb22fc4c"),
    (DictReplayBuffer.__init__, "buffers.ReplayBuffer.__init__", "03e7848808885308"),
    (DictReplayBuffer.add, "buffers.ReplayBuffer.add", "edc8a7952e0313b5"),
    (DictReplayBuffer.sample, "buffers.ReplayBuffer.sample", "3063a70da8c113cb"),
    (DictReplayBuffer._get_samples, "buffers.ReplayBuffer._fields", "0eba32ff12043e28"),
    (NStepReplayBuffer.__init__, "buffers.NStepReplayBuffer", "dea86eceb82978a1"),
    (NStepReplayBuffer._get_samples, "returns.Returns", "cea401d3ae5fe6b8"),
]


@pytest.mark.parametrize(
    ("theirs", "ours", "known"), FUNCTIONS, ids=[theirs.__qualname__ for theirs, _, _ in FUNCTIONS]
)
def test_upstream_is_what_the_adapter_was_written_after(
    theirs: Callable[..., Any], ours: str, known: str
) -> None:
    now = hashlib.sha256(inspect.getsource(theirs).encode()).hexdigest()[:16]
    version = stable_baselines3.__version__
    assert now == known, (
        f"{theirs.__module__} {version} has another {theirs.__qualname__} than {WRITTEN_AFTER}, "
        f"after which {ours} of adapters/sb3 was written. Compare the two sources, carry over to "
        f"ours what matters, and then put {now!r} in place of {known!r} in this file."
    )
