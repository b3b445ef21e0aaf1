"""weight_norm="none": weights that are (N * probability) ** -beta and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from kary_replay import PrioritizedReplayBuffer
from kary_replay.sampler import PrioritizedSampler


def sampler(weight_norm: str, masses: list[float]) -> PrioritizedSampler:
    made = PrioritizedSampler(
        8,
        alpha=1.0,
        beta=0.5,
        eps=0.0,
        weight_norm=weight_norm,
        stratified=True,
        fanout=2,
        rng=np.random.default_rng(0),
    )
    made.tree.update(np.arange(len(masses)), masses)
    return made


def test_by_hand() -> None:
    # Masses 1, 3, 4 of total 8 in 3 rows: N * P is 3/8, 9/8, 12/8.
    weights = sampler("none", [1.0, 3.0, 4.0]).weights(np.array([0, 1, 2]), live=3)
    np.testing.assert_allclose(weights, [(8 / 3) ** 0.5, (8 / 9) ** 0.5, (8 / 12) ** 0.5])
    assert weights.dtype == np.float32


@pytest.mark.parametrize("weight_norm", ["batch", "buffer", "none"])
def test_weights_are_those_of_the_draw(weight_norm: str) -> None:
    drawing = sampler(weight_norm, [1.0, 3.0, 4.0, 0.5])
    draw = drawing.draw(3, live=4)
    np.testing.assert_array_equal(draw.weights, drawing.weights(draw.slots, live=4))


def test_norms_differ_by_a_factor() -> None:
    slots = np.array([1, 2, 2])
    none, batch, buffer = (
        sampler(norm, [1.0, 3.0, 4.0]).weights(slots, live=3)
        for norm in ("none", "batch", "buffer")
    )
    np.testing.assert_allclose(batch, none / none.max(), rtol=1e-6)
    np.testing.assert_allclose(buffer, batch * (1 / 3) ** 0.5, rtol=1e-6)


def test_a_row_without_mass_weighs_nothing() -> None:
    weights = sampler("batch", [2.0, 0.0, 8.0]).weights(np.array([0, 1, 2, 7]), live=3)
    np.testing.assert_array_equal(weights, np.float32([1.0, 0.0, 0.5, 0.0]))
    assert sampler("batch", []).weights(np.array([3]), live=0).tolist() == [0.0]


def test_buffer_counts_its_own_rows() -> None:
    buffer = PrioritizedReplayBuffer(
        10, {"x": ((), np.float32)}, beta=0.7, weight_norm="none", seed=1
    )
    buffer.add(x=np.arange(4), td_errors=[0.1, 1.0, 2.0, 5.0])
    batch = buffer.sample(6)
    assert batch.probabilities is not None
    np.testing.assert_allclose(batch.weights, (4 * batch.probabilities) ** -0.7, rtol=1e-6)
