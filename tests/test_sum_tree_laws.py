"""The sum tree's laws, for any history of updates.

Masses are integers wherever two ways of adding are compared: their sums are exact, so == holds.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from kary_replay import SumTree, _reference

Update: TypeAlias = tuple[list[int], list[float]]  # leaves and masses of one call
AnyTree: TypeAlias = SumTree | _reference.SumTree

# Around the powers, where a level or a family more begins, and anything between.
CAPACITIES = st.sampled_from([1, 2, 3, 8, 9, 64, 65, 127, 129, 512, 513]) | st.integers(1, 600)
FANOUTS = st.sampled_from([2, 4, 8, 16, 32, 64])
WHOLE_MASSES = st.integers(0, 3) | st.integers(0, 2**30)
ANY_MASSES = st.just(0.0) | st.floats(0.0, 1e300) | st.floats(0.0, 1.0)


@st.composite
def histories(draw: st.DrawFn, masses: st.SearchStrategy[float]) -> tuple[int, list[Update]]:
    """A capacity and the updates of a tree of it; leaves repeat within and between them."""
    capacity = draw(CAPACITIES)
    leaves = st.integers(0, capacity - 1) | st.integers(0, min(3, capacity - 1))
    pairs = st.lists(st.tuples(leaves, masses), max_size=40)
    updates = [
        ([leaf for leaf, _ in each], [mass for _, mass in each])
        for each in draw(st.lists(pairs, max_size=6))
    ]
    return capacity, updates


def replay(tree: AnyTree, updates: list[Update]) -> None:
    for leaves, masses in updates:
        tree.update(leaves, masses)


def targets_in(total: float, seed: int) -> npt.NDArray[np.float64]:
    """Targets in [0, total): both ends, whole numbers (the edges of whole masses), and others."""
    rng = np.random.default_rng(seed)
    inside = rng.random(50) * total
    targets = np.concatenate([inside, np.floor(inside), [0.0, np.nextafter(total, 0.0)]])
    return targets[targets < total]


@pytest.fixture(params=[SumTree, _reference.SumTree], ids=["compiled", "reference"], scope="module")
def tree_class(request: pytest.FixtureRequest) -> Any:
    return request.param


# --- laws of both ---------------------------------------------------------------------------


@given(histories(ANY_MASSES), FANOUTS)
def test_masses_are_what_was_last_written(
    tree_class: type[SumTree], history: tuple[int, list[Update]], fanout: int
) -> None:
    capacity, updates = history
    tree, last = tree_class(capacity, fanout), {}
    replay(tree, updates)
    for leaves, masses in updates:
        last.update(zip(leaves, masses, strict=True))
    assert tree.masses().tolist() == [last.get(leaf, 0.0) for leaf in range(capacity)]
    tree.check()


@given(histories(WHOLE_MASSES), FANOUTS, st.integers(0, 2**32))
def test_find_is_the_smallest_leaf_whose_running_sum_is_larger(
    tree_class: type[SumTree], history: tuple[int, list[Update]], fanout: int, seed: int
) -> None:
    tree = tree_class(history[0], fanout)
    replay(tree, history[1])
    running = np.cumsum(tree.masses())
    for target, leaf in zip(
        targets := targets_in(tree.total, seed), tree.find(targets).tolist(), strict=True
    ):
        assert target < running[leaf]
        assert leaf == 0 or running[leaf - 1] <= target


@given(histories(ANY_MASSES), FANOUTS, st.integers(0, 2**32))
def test_a_leaf_of_mass_0_is_never_found(
    tree_class: type[SumTree], history: tuple[int, list[Update]], fanout: int, seed: int
) -> None:
    tree = tree_class(history[0], fanout)
    replay(tree, history[1])
    masses = tree.masses()
    targets = targets_in(tree.total, seed)
    assert (masses[tree.find(targets)] > 0.0).all()
    if tree.total > 0.0:
        running = np.cumsum(masses)
        edges = np.concatenate([running, np.nextafter(running, 0.0)])
        assert (masses[tree.find(edges[(edges >= 0.0) & (edges < tree.total)])] > 0.0).all()
        fractions = np.append(np.random.default_rng(seed).random(50), [0.0, 1.0])
        leaves, drawn, total = tree.draw(fractions)
        assert (drawn > 0.0).all()
        assert (drawn == masses[leaves]).all()
        assert total == tree.total


@given(histories(WHOLE_MASSES), FANOUTS)
def test_one_batch_equals_one_by_one(
    tree_class: type[SumTree], history: tuple[int, list[Update]], fanout: int
) -> None:
    capacity, updates = history
    batched, single = tree_class(capacity, fanout), tree_class(capacity, fanout)
    replay(batched, updates)
    for leaves, masses in updates:
        replay(single, [([leaf], [mass]) for leaf, mass in zip(leaves, masses, strict=True)])
    assert batched.masses().tobytes() == single.masses().tobytes()
    assert (batched.total, batched.sum()) == (single.total, single.sum())


@given(histories(WHOLE_MASSES), FANOUTS, st.integers(0, 2**32))
def test_draw_is_find_at_fractions_of_the_total(
    tree_class: type[SumTree], history: tuple[int, list[Update]], fanout: int, seed: int
) -> None:
    tree = tree_class(history[0], fanout)
    replay(tree, history[1])
    if tree.total > 0.0:
        fractions = np.random.default_rng(seed).random(100)
        inside = fractions[fractions * tree.total < tree.total]
        assert tree.draw(inside)[0].tolist() == tree.find(inside * tree.total).tolist()
        assert tree.draw([1.0])[0] == tree.find([np.nextafter(tree.total, 0.0)])


@given(histories(ANY_MASSES), FANOUTS, st.data())
def test_a_refused_update_leaves_no_trace(
    tree_class: type[SumTree], history: tuple[int, list[Update]], fanout: int, data: st.DataObject
) -> None:
    capacity, updates = history
    tree = tree_class(capacity, fanout)
    replay(tree, updates)
    before = tree.masses().tobytes(), tree.total, tree.largest(), tree.smallest()
    leaves = data.draw(st.lists(st.integers(0, capacity - 1), min_size=1, max_size=20))
    masses = data.draw(st.lists(ANY_MASSES, min_size=len(leaves), max_size=len(leaves)))
    at = data.draw(st.integers(0, len(leaves) - 1))
    if data.draw(st.booleans()):
        leaves[at] = data.draw(st.integers(-(2**63), -1) | st.integers(capacity, 2**63 - 1))
    else:
        masses[at] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf, -5e-324, -1.0]))
    with pytest.raises((ValueError, IndexError)):
        tree.update(leaves, masses)
    assert (tree.masses().tobytes(), tree.total, tree.largest(), tree.smallest()) == before
    tree.check()


# --- laws of the compiled tree --------------------------------------------------------------


@given(histories(WHOLE_MASSES), FANOUTS, st.integers(0, 2**32))
def test_any_history_equals_the_reference(
    history: tuple[int, list[Update]], fanout: int, seed: int
) -> None:
    capacity, updates = history
    tree, law = SumTree(capacity, fanout), _reference.SumTree(capacity, fanout)
    rng = np.random.default_rng(seed)
    for leaves, masses in updates:
        tree.update(leaves, masses)
        law.update(leaves, masses)
        # Queries tighten the bounds, so ask between updates, but not always.
        if rng.random() < 0.5:
            assert (tree.largest(), tree.smallest()) == (law.largest(), law.smallest())
    tree.check()
    assert tree.masses().tolist() == law.masses().tolist()
    assert tree.total == law.total
    assert (tree.largest(), tree.smallest()) == (law.largest(), law.smallest())
    for start, stop in np.sort(rng.integers(0, capacity, (20, 2), endpoint=True)).tolist():
        assert tree.sum(start, stop) == law.sum(start, stop)
        assert tree.sum(start) == law.sum(start)
    targets = targets_in(law.total, seed)
    assert tree.find(targets).tolist() == law.find(targets).tolist()


@given(histories(ANY_MASSES), FANOUTS)
def test_any_history_equals_a_fresh_tree_bit_for_bit(
    history: tuple[int, list[Update]], fanout: int
) -> None:
    """`check` recomputes every inner node from the leaves, and compares exactly."""
    capacity, updates = history
    tree, fresh = SumTree(capacity, fanout), SumTree(capacity, fanout)
    replay(tree, updates)
    fresh.update(np.arange(capacity), tree.masses())
    tree.check()
    fresh.check()
    assert tree.total == fresh.total
    for start in range(0, capacity, 7):
        assert tree.sum(start) == fresh.sum(start)
    targets = targets_in(tree.total, 0)
    assert tree.find(targets).tolist() == fresh.find(targets).tolist()


@given(histories(WHOLE_MASSES), st.integers(0, 2**32))
def test_every_fanout_gives_the_same_answers(history: tuple[int, list[Update]], seed: int) -> None:
    capacity, updates = history
    two, *others = [SumTree(capacity, fanout) for fanout in (2, 4, 8, 16, 32, 64)]
    replay(two, updates)
    targets = targets_in(two.total, seed)
    for other in others:
        replay(other, updates)
        assert other.total == two.total
        assert other.find(targets).tolist() == two.find(targets).tolist()


@given(histories(ANY_MASSES), FANOUTS)
def test_largest_and_smallest_after_any_history(
    history: tuple[int, list[Update]], fanout: int
) -> None:
    capacity, updates = history
    tree = SumTree(capacity, fanout)
    for leaves, masses in updates:
        tree.update(leaves, masses)
        held = tree.masses()
        assert tree.largest() == held.max()
        assert tree.smallest() == held.min(where=held > 0.0, initial=np.inf)
        tree.check()


@settings(max_examples=20)
@given(st.integers(1, 5000), FANOUTS, st.integers(0, 2**32))
def test_extremes_of_many_blocks_as_masses_come_and_go(
    capacity: int, fanout: int, seed: int
) -> None:
    """Rising, falling, vanishing: each leaves bounds that are wrong in another way."""
    rng = np.random.default_rng(seed)
    tree, law = SumTree(capacity, fanout), _reference.SumTree(capacity)
    for scale in (1.0, 10.0, 0.1, 0.0, 1e-3, 1.0, 0.0):
        leaves = rng.integers(0, capacity, rng.integers(1, 200))
        masses = scale * rng.random(leaves.size)
        tree.update(leaves, masses)
        law.update(leaves, masses)
        if rng.random() < 0.7:
            assert (tree.largest(), tree.smallest()) == (law.largest(), law.smallest())
        tree.check()
    tree.update(np.arange(capacity), np.zeros(capacity))
    assert (tree.largest(), tree.smallest(), tree.total) == (0.0, math.inf, 0.0)


@given(histories(ANY_MASSES), FANOUTS)
def test_totals_stay_within_rounding_of_the_truth(
    history: tuple[int, list[Update]], fanout: int
) -> None:
    tree = SumTree(history[0], fanout)
    replay(tree, history[1])
    truth = math.fsum(tree.masses())
    assert tree.total == pytest.approx(truth, rel=history[0] * 2.0**-52, abs=0.0)
    assert tree.sum(0, history[0]) == tree.sum()
