"""A hundred million updates and draws against plain leaves.  Minutes: run with -m slow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay import SumTree

BATCH = 4096
ROUNDS = 2150  # x 2 x BATCH x 6 trees: 1.06e8 updates and draws
CHECKED = 200  # rounds between checks of the whole tree

Float64s = npt.NDArray[np.float64]


def some_masses(rng: np.random.Generator, whole: bool) -> Float64s:
    """Whole masses, whose sums are exact, or any over 30 decades; many of them 0."""
    if whole:
        return rng.integers(0, 1000, BATCH) * rng.integers(0, 2, BATCH) * 1.0
    return 10.0 ** rng.uniform(-15, 15, BATCH) * rng.integers(0, 2, BATCH)


def assert_found_exactly(shadow: Float64s, targets: Float64s, found: npt.NDArray[np.int64]) -> None:
    assert np.array_equal(found, np.searchsorted(np.cumsum(shadow), targets, side="right"))


def assert_equals_a_fresh_tree(tree: SumTree, shadow: Float64s) -> None:
    """`check` recomputes each inner node from the leaves, and compares exactly."""
    tree.check()
    assert tree.masses().tobytes() == shadow.tobytes()
    fresh = SumTree(tree.capacity, tree.fanout)
    fresh.update(np.arange(tree.capacity), shadow)
    assert tree.total == fresh.total
    assert tree.largest() == shadow.max()
    assert tree.smallest() == shadow.min(where=shadow > 0.0, initial=np.inf)
    fractions = np.linspace(0.0, 1.0, 10_001)
    assert np.array_equal(tree.draw(fractions)[0], fresh.draw(fractions)[0])


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "float"])
@pytest.mark.parametrize(("capacity", "fanout"), [(1000, 2), (99_991, 8), (262_145, 64)])
def test_a_long_life_leaves_no_trace(capacity: int, fanout: int, whole: bool) -> None:
    rng = np.random.default_rng(capacity)
    tree, shadow = SumTree(capacity, fanout), np.zeros(capacity)
    for each in range(ROUNDS):
        leaves, masses = rng.integers(0, capacity, BATCH), some_masses(rng, whole)
        tree.update(leaves, masses)
        shadow[leaves] = masses  # NumPy too lets the last of duplicates win
        found, drawn, total = tree.draw(rng.random(BATCH))
        assert total == tree.total
        assert np.array_equal(drawn, shadow[found])
        assert (drawn > 0.0).all()
        if whole and each % 10 == 0:
            targets = rng.random(BATCH) * total
            assert_found_exactly(shadow, targets, tree.find(targets))
        if each % CHECKED == 0:
            assert_equals_a_fresh_tree(tree, shadow)
    assert_equals_a_fresh_tree(tree, shadow)
