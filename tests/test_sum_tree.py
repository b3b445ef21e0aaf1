"""The sum tree by examples worked out by hand; its laws are in test_sum_tree_laws.py."""

from __future__ import annotations

import array
import copy
import gc
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay import SumTree

FANOUTS = [2, 4, 8, 16, 32, 64]
TINY = 5e-324  # the smallest double > 0
HUGE = np.finfo(np.float64).max


def tree_of(masses: npt.ArrayLike, fanout: int = 2) -> SumTree:
    tree = SumTree(np.size(masses), fanout)
    tree.update(np.arange(np.size(masses)), masses)
    return tree


# --- shape ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fanout", FANOUTS)
@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 513, 4097])
def test_every_leaf_of_any_capacity_has_a_place_of_its_own(capacity: int, fanout: int) -> None:
    tree = tree_of(np.arange(1.0, capacity + 1), fanout)
    tree.check()
    assert tree.masses().tolist() == np.arange(1.0, capacity + 1).tolist()
    assert tree.total == capacity * (capacity + 1) / 2
    edges = np.cumsum(np.arange(1.0, capacity + 1))
    assert tree.find(edges - 1.0).tolist() == list(range(capacity))


def test_a_new_tree_holds_nothing() -> None:
    tree = SumTree(5)
    assert (tree.capacity, tree.fanout, tree.total) == (5, 8, 0.0)
    assert (tree.largest(), tree.smallest(), tree.sum()) == (0.0, math.inf, 0.0)
    assert tree.masses().tolist() == [0.0] * 5
    tree.check()


@pytest.mark.parametrize("capacity", [0, -1, -(2**70), 2**62, 2**63, 2**70])
def test_a_capacity_that_no_memory_has_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity .*{capacity}"):
        SumTree(capacity)


@pytest.mark.parametrize("fanout", [0, 1, -2, 3, 6, 12, 2**62, 2**70])
def test_a_fanout_that_is_no_power_of_two_is_refused(fanout: int) -> None:
    with pytest.raises(ValueError, match=f"fanout .*{fanout}"):
        SumTree(4, fanout)


@pytest.mark.parametrize("wrong", [2.0, "8", None, True, np.bool_(True), [8]])
def test_sizes_are_integers(wrong: Any) -> None:
    with pytest.raises(TypeError, match="capacity"):
        SumTree(wrong)
    with pytest.raises(TypeError, match="fanout"):
        SumTree(8, wrong)


def test_a_tree_cannot_be_had_half_made() -> None:
    with pytest.raises(TypeError):
        SumTree.__new__(SumTree)


def test_sizes_may_be_numpy_integers() -> None:
    assert SumTree(np.int32(3), np.uint8(4)).masses().shape == (3,)


def test_repr_names_what_it_holds() -> None:
    assert repr(tree_of([1.0, 2.5], 4)) == "SumTree(capacity=2, fanout=4, total=3.5)"


# --- find -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fanout", FANOUTS)
def test_an_edge_belongs_to_the_leaf_that_it_opens(fanout: int) -> None:
    tree = tree_of([2, 0, 1, 0, 0, 3, 0], fanout)  # running sums 2 2 3 3 3 6 6
    below = np.nextafter([2.0, 3.0, 6.0], 0.0)
    assert tree.find([0.0, 2.0, 3.0]).tolist() == [0, 2, 5]
    assert tree.find(below).tolist() == [0, 2, 5]


@pytest.mark.parametrize("fanout", FANOUTS)
@pytest.mark.parametrize("mass", [TINY, 1e-310, 1e-300, 0.1, 1.0, 1e300, HUGE])
@pytest.mark.parametrize("leaf", [0, 1, 7, 8, 63, 64, 69])
def test_the_only_mass_is_always_found(leaf: int, mass: float, fanout: int) -> None:
    tree = SumTree(70, fanout)
    tree.update([leaf], [mass])
    targets = [0.0, mass * 0.5 if mass > TINY else 0.0, np.nextafter(mass, 0.0)]
    assert tree.find(targets).tolist() == [leaf] * 3
    found, masses, total = tree.draw([0.0, 0.3, 0.5, np.nextafter(1.0, 0.0), 1.0])
    assert found.tolist() == [leaf] * 5
    assert masses.tolist() == [mass] * 5
    assert total == mass


@pytest.mark.parametrize("fanout", FANOUTS)
def test_zeros_at_both_ends_are_never_found(fanout: int) -> None:
    masses = np.zeros(300)
    masses[100:200:3] = 0.1  # sums that round
    tree = tree_of(masses, fanout)
    edges = np.cumsum(masses)
    targets = np.concatenate([edges, np.nextafter(edges, 0.0), np.nextafter(edges, 9e9), [0.0]])
    targets = np.append(targets[targets < tree.total], np.nextafter(tree.total, 0.0))
    assert (masses[tree.find(targets)] > 0.0).all()


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("fanout", FANOUTS)
def test_a_target_that_rounds_up_to_the_mass_of_its_part_stays_in_it(
    fanout: int, levels: int
) -> None:
    """1.5 + mass rounds up to even, and so does the target less 1.5: to the mass itself."""
    mass, target = 2.0**52 + 2, 2.0**52 + 3
    assert (1.5 + mass, target - 1.5) == (2.0**52 + 4, mass)
    tree = SumTree(fanout**levels, fanout)
    leaf = fanout ** (levels - 1)
    tree.update([0, leaf], [1.5, mass])
    assert tree.find([1.0, 1.5, target]).tolist() == [0, leaf, leaf]


@pytest.mark.parametrize("fanout", FANOUTS)
def test_masses_over_three_hundred_decades(fanout: int) -> None:
    rng = np.random.default_rng(0)
    masses = 10.0 ** rng.uniform(-300, 0, 1000)
    masses[rng.random(1000) < 0.5] = 0.0
    masses[[0, -1]] = 0.0
    tree = tree_of(masses, fanout)
    targets = np.concatenate([10.0 ** rng.uniform(-320, 0, 5000) * tree.total, [0.0]])
    targets = np.append(targets, np.nextafter(tree.total, 0.0))
    assert (masses[tree.find(targets)] > 0.0).all()
    assert tree.find([0.0])[0] == np.flatnonzero(masses)[0]


@pytest.mark.parametrize("fanout", FANOUTS)
def test_denormal_masses_divide_the_range_exactly(fanout: int) -> None:
    masses = np.array([0, 3, 0, 1, 2, 0] * 15)  # in units of the smallest double
    tree = tree_of(masses * TINY, fanout)
    units = np.arange(masses.sum())
    assert tree.find(units * TINY).tolist() == np.repeat(np.arange(90), masses).tolist()


def test_find_keeps_the_shape_of_its_targets() -> None:
    tree = tree_of([1.0, 1.0, 1.0])
    assert tree.find(1.5).shape == ()
    assert int(tree.find(1.5)) == 1
    assert tree.find([[0.5, 1.5], [2.5, 0.0]]).tolist() == [[0, 1], [2, 0]]
    assert tree.find(np.asfortranarray([[0.5, 1.5], [2.5, 0.0]])).tolist() == [[0, 1], [2, 0]]
    assert tree.find(np.empty((0, 3))).shape == (0, 3)
    assert tree.find([]).dtype == np.int64


@pytest.mark.parametrize("wrong", [-TINY, -1.0, 3.0, 4.0, math.nan, math.inf, -math.inf])
def test_a_target_outside_is_refused_with_its_position(wrong: float) -> None:
    tree = tree_of([1.0, 0.0, 2.0])
    with pytest.raises(ValueError, match=r"targets must be in \[0, total\)") as error:
        tree.find([0.5, wrong, 0.5])
    assert f"got {wrong} at position 1, total is 3.0" in str(error.value)


def test_nothing_is_found_in_an_empty_tree() -> None:
    tree = SumTree(3)
    with pytest.raises(ValueError, match="total is 0"):
        tree.find([0.0])
    with pytest.raises(ValueError, match="total is 0"):
        tree.draw([0.0])


@pytest.mark.parametrize("wrong", [None, "1", [None], ["1"], [1j], [True], {0.5}])
def test_targets_and_fractions_are_real_numbers(wrong: Any) -> None:
    tree = tree_of([1.0, 2.0])
    with pytest.raises(TypeError, match="targets must be real numbers"):
        tree.find(wrong)
    with pytest.raises(TypeError, match="fractions must be real numbers"):
        tree.draw(wrong)


# --- draw -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fanout", FANOUTS)
def test_a_fraction_that_rounds_up_to_the_total_finds_the_last_mass(fanout: int) -> None:
    below_one = np.nextafter(1.0, 0.0)
    for total in (TINY, 3 * TINY, 0.1, 1.0, 3.0, 1e300, HUGE):
        tree = SumTree(10, fanout)
        tree.update([4], [total])
        assert tree.draw([below_one, 1.0])[0].tolist() == [4, 4]
    tree = tree_of([0, 1, 0, 0.7, 0], fanout)
    assert below_one * tree.total <= tree.total
    assert tree.draw([0.0, below_one, 1.0])[0].tolist() == [1, 3, 3]


@pytest.mark.parametrize("fanout", FANOUTS)
def test_the_whole_fraction_counts_as_the_largest_target(fanout: int) -> None:
    """Even where masses are too small to show in the total, so that no target means them."""
    for capacity in (2, 2 * fanout):  # one level and two
        tree = SumTree(capacity, fanout)
        tree.update([0, 1, capacity - 1], [1.0, 1e-300, 1e-300])
        assert tree.find([np.nextafter(tree.total, 0.0)]).tolist() == [0]
        assert tree.draw([1.0])[0].tolist() == [0]


@pytest.mark.parametrize("wrong", [-TINY, np.nextafter(1.0, 2.0), 2.0, math.nan, math.inf])
def test_a_fraction_outside_is_refused_with_its_position(wrong: float) -> None:
    with pytest.raises(ValueError, match=r"fractions must be in \[0, 1\].* at position 2"):
        tree_of([1.0, 2.0]).draw([0.0, 0.5, wrong])


def test_draw_refuses_more_than_one_axis() -> None:
    with pytest.raises(ValueError, match=r"fractions .*\(1, 2\)"):
        tree_of([1.0, 2.0]).draw([[0.1, 0.2]])


@pytest.mark.parametrize("written", range(9))
def test_sums_that_are_being_rewritten_lead_to_a_leaf(written: int) -> None:
    """From left to right, so that a target may be below none of those of the real children."""
    memory = np.zeros(SumTree.doubles(257) + 8)
    memory = memory[-memory.ctypes.data % 64 // 8 :][: SumTree.doubles(257)]
    tree = SumTree(257, memory=memory)
    tree.update(np.arange(257), 1.0)
    sums = memory[8 + 40 + 264 :][:8]  # of the five nodes below the root, behind all nodes
    assert sums.tolist() == [64.0, 128.0, 192.0, 256.0, 257.0, 257.0, 257.0, 257.0]
    sums[:written] -= 60.0
    leaves, masses, _ = tree.draw(np.linspace(0.0, 1.0, 100))
    assert (leaves < 257).all()
    assert (masses == 1.0).all()


def test_draw_says_what_it_drew_from() -> None:
    leaves, masses, total = tree_of([1.0, 0.0, 3.0]).draw([0.0, 0.25, 0.5])
    assert (leaves.dtype, masses.dtype, type(total)) == (np.int64, np.float64, float)
    assert (leaves.tolist(), masses.tolist(), total) == ([0, 2, 2], [1.0, 3.0, 3.0], 4.0)


# --- update: what is taken ------------------------------------------------------------------

NUMBERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
REALS = [*NUMBERS, "f2", "f4", "f8", "longdouble"]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", NUMBERS)
def test_leaves_of_every_integer_dtype(dtype: str, order: str) -> None:
    tree = SumTree(6)
    leaves = np.array([4, 0, 2]).astype(np.dtype(dtype).newbyteorder(order))
    tree.update(leaves, [1.0, 2.0, 3.0])
    assert tree.masses().tolist() == [2.0, 0.0, 3.0, 0.0, 1.0, 0.0]
    assert tree.masses(leaves).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", REALS)
def test_masses_and_targets_of_every_real_dtype(dtype: str, order: str) -> None:
    tree = SumTree(3)
    masses = np.array([4, 0, 2]).astype(np.dtype(dtype).newbyteorder(order))
    tree.update([0, 1, 2], masses)
    assert tree.masses().tolist() == [4.0, 0.0, 2.0]
    assert tree.find(masses).tolist() == [2, 0, 0]


def misaligned(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    memory = bytearray(b"x" + values.tobytes())
    return np.frombuffer(memory, values.dtype, offset=1)


def read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    values = values.copy()
    values.flags.writeable = False
    return values


LAYOUTS: dict[str, Callable[[npt.NDArray[Any]], Any]] = {
    "list": lambda values: values.tolist(),
    "tuple": lambda values: tuple(values.tolist()),
    "strided": lambda values: np.repeat(values, 3)[::3],
    "reversed": lambda values: values[::-1].copy()[::-1],
    "column": lambda values: np.column_stack([values, values])[:, 1],
    "read only": read_only,
    "misaligned": misaligned,
    "memoryview": lambda values: memoryview(values),
    "array.array": lambda values: array.array(values.dtype.char, values.tolist()),
    "broadcast": lambda values: np.broadcast_to(values, (2, *values.shape))[1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_every_layout_are_taken_and_left_alone(layout: str) -> None:
    lay_out = LAYOUTS[layout]
    leaves, masses = lay_out(np.array([5, 1, 5])), lay_out(np.array([7.0, 2.0, 3.0]))
    tree = SumTree(6)
    tree.update(leaves, masses)
    assert tree.masses().tolist() == [0.0, 2.0, 0.0, 0.0, 0.0, 3.0]
    targets = lay_out(np.array([4.5, 0.5, 2.0]))
    assert tree.find(targets).tolist() == [5, 1, 5]
    assert tree.draw(lay_out(np.array([0.1, 0.9])))[0].tolist() == [1, 5]
    assert tree.masses(leaves).tolist() == [3.0, 2.0, 3.0]
    assert (list(leaves), list(masses), list(targets)) == (
        [5, 1, 5],
        [7.0, 2.0, 3.0],
        [4.5, 0.5, 2],
    )


def test_one_leaf_may_come_without_an_axis() -> None:
    tree = SumTree(3)
    tree.update(1, 2.5)
    tree.update(np.int8(2), np.float16(0.5))
    assert tree.masses().tolist() == [0.0, 2.5, 0.5]


def test_one_array_may_be_both_leaves_and_masses() -> None:
    both = np.array([3, 1, 2])
    tree = SumTree(4)
    tree.update(both, both)
    assert tree.masses().tolist() == [0.0, 1.0, 2.0, 3.0]


def test_masses_are_copies_both_ways() -> None:
    tree, masses = SumTree(3), np.array([1.0, 2.0, 3.0])
    tree.update(np.arange(3), masses)
    masses[:] = 9.0
    tree.masses()[:] = 9.0
    tree.masses([0, 1])[:] = 9.0
    assert tree.masses().tolist() == [1.0, 2.0, 3.0]
    tree.check()


@pytest.mark.parametrize("empty", [[], (), np.empty(0), np.empty(0, np.int8), np.empty(0, "u8")])
def test_an_empty_batch_does_nothing(empty: Any) -> None:
    tree = tree_of([1.0, 2.0])
    tree.update(empty, [])
    tree.update([], empty)
    assert tree.masses(empty).shape == (0,)
    assert tree.masses().tolist() == [1.0, 2.0]


def test_the_last_of_duplicates_wins() -> None:
    tree = SumTree(20, 4)
    tree.update([3, 7, 3, 7, 3], [9.0, 1.0, 8.0, 2.0, 5.0])
    assert (tree.total, tree.largest(), tree.smallest()) == (7.0, 5.0, 2.0)
    assert tree.masses([3, 7]).tolist() == [5.0, 2.0]
    tree.update([3] * 1000, np.arange(1000.0)[::-1])
    assert (tree.total, tree.largest(), tree.smallest()) == (2.0, 2.0, 2.0)
    tree.check()


def test_minus_zero_is_zero() -> None:
    tree = tree_of([-0.0, 1.0, -0.0])
    assert tree.find([0.0]).tolist() == [1]
    assert (tree.total, tree.smallest()) == (1.0, 1.0)
    tree.check()


# --- update: what is refused ----------------------------------------------------------------

WRONG_LEAVES = [
    ([0, -1], IndexError),
    ([0, 5], IndexError),
    ([0, 2**31], IndexError),
    ([0, 2**32], IndexError),  # 0 as an int32
    ([0, 2**63 - 1], IndexError),
    ([0, -(2**63)], IndexError),
    (np.array([0, 2**63], np.uint64), IndexError),
    (np.array([0, 2**64 - 1], np.uint64), IndexError),  # -1 as an int64
    ([0, 2**70], IndexError),
    ([0, -(2**70)], IndexError),
    ([0.0, 1.0], TypeError),
    (np.array([0.0, 1.0], np.float32), TypeError),
    ([True, False], TypeError),
    ([None, 1], TypeError),
    (["0", "1"], TypeError),
    ([0j, 1j], TypeError),
    ("01", TypeError),
    (b"01", TypeError),
    (None, TypeError),
    (np.array(["2020", "2021"], "M8[Y]"), TypeError),
    (np.array([0, 1], "m8[s]"), TypeError),
    ({0, 1}, TypeError),
    ([[0, 1]], ValueError),
    ([[0], [1]], ValueError),
    ([[0], [1, 2]], ValueError),
    ([0, 1, 2], ValueError),
    (0, ValueError),
]


@pytest.mark.parametrize(("wrong", "error"), WRONG_LEAVES, ids=lambda value: repr(value)[:40])
def test_wrong_leaves_change_nothing(wrong: Any, error: type[Exception]) -> None:
    tree = tree_of([1.0, 2.0, 3.0, 4.0, 5.0])
    before = pickle.dumps(tree)
    with pytest.raises(error):
        tree.update(wrong, [7.0, 8.0])
    assert pickle.dumps(tree) == before
    tree.check()


@pytest.mark.parametrize("wrong", [-1, 5, 2**63 - 1, -(2**63), 2**64, -(2**64)])
def test_a_leaf_outside_is_named_with_its_position(wrong: int) -> None:
    tree = SumTree(5)
    for refused in (
        lambda: tree.update([0, 0, wrong], [1, 1, 1]),
        lambda: tree.masses([0, 0, wrong]),
    ):
        with pytest.raises(IndexError, match=f"leaves must be in 0 .. .*got {wrong} at position 2"):
            refused()


WRONG_MASSES = [
    ([1.0, math.nan], ValueError),
    ([1.0, math.inf], ValueError),
    ([1.0, -math.inf], ValueError),
    ([1.0, -1.0], ValueError),
    ([1.0, -TINY], ValueError),
    (np.array([1, -1], np.int8), ValueError),
    (np.array([1.0, math.nan], np.float16), ValueError),
    (np.array([1, 2], np.longdouble) * np.longdouble("1e4000"), ValueError),
    ([HUGE, HUGE], ValueError),  # each is finite, their total is not
    ([1.0, None], TypeError),
    (["1", "2"], TypeError),
    ([1j, 2j], TypeError),
    ([True, False], TypeError),
    (None, TypeError),
    ([[1.0, 2.0]], ValueError),
    (np.ones((2, 1)), ValueError),
    ([1.0, 2.0, 3.0], ValueError),
    ([1.0], ValueError),
    (True, TypeError),
    (np.bool_(True), TypeError),
    (math.nan, ValueError),
    (np.float32(-1.0), ValueError),
    (HUGE, ValueError),
]


@pytest.mark.parametrize(("wrong", "error"), WRONG_MASSES, ids=lambda value: repr(value)[:40])
@pytest.mark.parametrize("fanout", [2, 8])
def test_wrong_masses_change_nothing(wrong: Any, error: type[Exception], fanout: int) -> None:
    tree = tree_of([1.0, 2.0, 3.0, 0.1, 0.7], fanout)
    before = pickle.dumps(tree), tree.total, tree.largest(), tree.smallest()
    with pytest.raises(error):
        tree.update([1, 3], wrong)
    assert (pickle.dumps(tree), tree.total, tree.largest(), tree.smallest()) == before
    tree.check()


@pytest.mark.parametrize("mass", [5.0, 5, np.float32(5), np.int8(5), np.float64(5)], ids=repr)
def test_a_number_is_the_mass_of_all_the_leaves(mass: float) -> None:
    tree = tree_of([1.0, 2.0, 3.0, 0.1, 0.7], 2)
    tree.update([1, 3, 3], mass)
    tree.update([], 7.0)
    assert tree.masses().tolist() == [1.0, 5.0, 3.0, 5.0, 0.7]
    tree.check()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_a_wrong_mass_is_named_with_its_position(wrong: float) -> None:
    rule = f"masses must be finite and >= 0, got {wrong} at position 2"
    with pytest.raises(ValueError, match=rule):
        SumTree(5).update([0, 1, 2], [1, 1, wrong])


def test_a_total_that_overflows_in_many_small_steps_is_refused() -> None:
    tree = SumTree(100, 4)
    tree.update(np.arange(99), np.full(99, HUGE / 100))
    before = pickle.dumps(tree)
    with pytest.raises(ValueError, match="masses must have a finite total"):
        tree.update([98, 99, 98], [0.0, HUGE / 50, HUGE / 100])
    assert pickle.dumps(tree) == before
    tree.check()
    tree.update([0, 99], [0.0, HUGE / 100])  # and what fits still goes in
    tree.check()


# --- sum, largest, smallest -----------------------------------------------------------------


@pytest.mark.parametrize("fanout", FANOUTS)
def test_sums_of_every_range(fanout: int) -> None:
    masses = np.arange(1.0, 71.0)
    tree = tree_of(masses, fanout)
    for start in range(71):
        for stop in range(start, 71):
            assert tree.sum(start, stop) == masses[start:stop].sum()
        assert tree.sum(start) == masses[start:].sum()
    assert tree.sum() == tree.total


@pytest.mark.parametrize("limits", [(-1, 3), (0, 6), (4, 3), (6, 6), (0, 2**70), (-(2**70), 0)])
def test_a_range_outside_is_refused(limits: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match=r"0 <= start <= stop <= 5") as error:
        SumTree(5).sum(*limits)
    assert all(str(limit) in str(error.value) for limit in limits)


@pytest.mark.parametrize("wrong", [1.0, "1", True])
def test_limits_of_a_range_are_integers(wrong: Any) -> None:
    with pytest.raises(TypeError, match="start"):
        SumTree(5).sum(wrong)
    with pytest.raises(TypeError, match="stop"):
        SumTree(5).sum(0, wrong)


def test_an_outlier_long_gone_is_forgotten() -> None:
    tree = tree_of(np.linspace(1.0, 2.0, 1000), 8)
    tree.update([500, 501], [1e9, 1e-9])
    assert (tree.largest(), tree.smallest()) == (1e9, 1e-9)
    tree.update([500, 501], [1.5, 1.5])
    assert (tree.largest(), tree.smallest()) == (2.0, 1.0)
    tree.update([0, 999], [0.0, 0.0])
    assert tree.largest() == tree.masses().max()
    assert tree.smallest() == np.sort(tree.masses())[2]
    tree.check()


# --- copies and damage ----------------------------------------------------------------------


@pytest.mark.parametrize("fanout", [2, 8, 64])
@pytest.mark.parametrize(
    "twin_of", [copy.deepcopy, copy.copy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_a_copy_is_equal_and_independent(
    twin_of: Callable[[SumTree], SumTree], fanout: int
) -> None:
    tree = tree_of(np.random.default_rng(1).random(77), fanout)
    twin = twin_of(tree)
    twin.check()
    assert (twin.capacity, twin.fanout, twin.total) == (77, fanout, tree.total)
    assert twin.masses().tobytes() == tree.masses().tobytes()
    twin.update([3], [9.0])
    assert tree.masses([3])[0] < 1.0
    tree.check()


def zeros(doubles: int, offset: int = 0) -> npt.NDArray[np.float64]:
    """Zeros that begin `offset` bytes behind the beginning of a cache line."""
    block = np.zeros(8 * doubles + 64 + offset, np.uint8)
    first = -block.ctypes.data % 64 + offset
    return block[first : first + 8 * doubles].view(np.float64)


def leaves_in(memory: npt.NDArray[np.float64], tree: SumTree) -> npt.NDArray[np.float64]:
    """The leaves where they lie: the last of the nodes."""
    widths = [padded(tree.capacity, tree.fanout)]
    while widths[-1] > tree.fanout:
        widths.append(padded(widths[-1] // tree.fanout, tree.fanout))
    return memory[sum(widths[1:]) : sum(widths)]


def gap(capacity: int, fanout: int) -> int:
    """Where the bounds end, and nothing lies up to the total's cache line."""
    memory = zeros(SumTree.doubles(capacity, fanout))
    SumTree(capacity, fanout, memory=memory).update(np.arange(capacity), 1.0)
    return int(np.flatnonzero(memory[:-8])[-1]) + 1


def padded(leaves: int, fanout: int) -> int:
    return -(-leaves // fanout) * fanout


# 100 leaves, fanout 8: levels of 8, 16 and 104 nodes; running sums of the 24 inner ones; bounds of
# 13 blocks, since a family of leaves is a part here; what fills the cache line; the total.
NODES, SUMS, UPPER, LOWER, TOTAL = 0, 128, 152, 165, 184


@pytest.mark.parametrize(
    ("at", "damage", "found"),
    [
        (NODES, 1e9, "node of level 0 is not the sum"),
        (NODES + 9, 0.0, "node of level 1 is not the sum"),
        (NODES + 24 + 17, 0.5, "not the sum of its children"),
        (NODES + 24 + 17, -1.0, "negative, infinite or NaN"),
        (NODES + 24 + 17, math.nan, "negative, infinite or NaN"),
        (NODES + 127, 1.0, "padding"),
        (SUMS + 3, 0.0, "running sum of level 0"),
        (SUMS + 23, 1.0, "running sum of level 1"),
        (UPPER, 7.0, "larger than the upper bound"),
        (UPPER + 12, 99.0, "larger than the upper bound"),
        (LOWER, 1.5, "smaller than the lower bound"),
        (LOWER + 12, 98.0, "smaller than the lower bound"),
        (TOTAL, 5049.0, "total is 5049.0, but its children add up to 5050.0"),
    ],
)
def test_check_finds_damage(at: int, damage: float, found: str) -> None:
    memory = zeros(192)
    tree = SumTree(100, memory=memory)
    tree.update(np.arange(100), np.arange(1.0, 101.0))
    tree.check()
    memory[at] = damage
    with pytest.raises(RuntimeError, match=found):
        tree.check()


def test_nbytes_are_all_the_arrays_held() -> None:
    nodes, sums, blocks, gap, total, alignment = 8 + 16 + 104, 8 + 16, 13, 6, 8, 8
    held = nodes + sums + 2 * blocks + gap + total + alignment
    assert SumTree(100, 8).nbytes == 8 * held


# --- memory handed in -----------------------------------------------------------------------


def test_doubles_are_nodes_running_sums_bounds_and_the_total_on_a_line_of_its_own() -> None:
    used = (8 + 16 + 104) + (8 + 16) + 2 * 13
    assert SumTree.doubles(100, 8) == SumTree.doubles(100) == used + 6 + 8
    assert SumTree.doubles(1, 2) == 2 + 2 + 4 + 8
    with pytest.raises(ValueError, match=r"capacity .*0"):
        SumTree.doubles(0)
    with pytest.raises(ValueError, match=r"fanout .*3"):
        SumTree.doubles(1, 3)


@pytest.mark.parametrize("fanout", FANOUTS)
@pytest.mark.parametrize("capacity", [1, 2, 8, 9, 65, 600, 5000])
def test_a_tree_lies_in_its_memory_and_nowhere_else(capacity: int, fanout: int) -> None:
    memory = zeros(SumTree.doubles(capacity, fanout))
    guest, own = SumTree(capacity, fanout, memory=memory), SumTree(capacity, fanout)
    rng = np.random.default_rng(0)
    for _ in range(3):
        leaves, masses = rng.integers(0, capacity, 50), rng.random(50)
        guest.update(leaves, masses)
        own.update(leaves, masses)
        guest.check()
    assert guest.masses().tobytes() == own.masses().tobytes()
    fractions = rng.random(100)
    assert guest.draw(fractions)[0].tolist() == own.draw(fractions)[0].tolist()
    assert (guest.largest(), guest.smallest()) == (own.largest(), own.smallest())
    assert guest.nbytes == memory.nbytes == 8 * SumTree.doubles(capacity, fanout)
    assert own.nbytes == memory.nbytes + 64


@pytest.mark.parametrize("garbage", [0.0, -1.0, 7.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("fanout", FANOUTS)
@pytest.mark.parametrize("capacity", [1, 2, 8, 9, 65, 127, 600])
def test_a_rebuilt_tree_is_a_fresh_one_bit_for_bit_whatever_lay_above_its_leaves(
    capacity: int, fanout: int, garbage: float
) -> None:
    masses = np.random.default_rng(capacity).random(capacity)
    masses[::3] = 0.0
    fresh, torn = zeros(SumTree.doubles(capacity, fanout)), zeros(SumTree.doubles(capacity, fanout))
    expected = SumTree(capacity, fanout, memory=fresh)
    expected.update(np.arange(capacity), masses)
    tree = SumTree(capacity, fanout, memory=torn)
    torn[: gap(capacity, fanout)] = garbage
    torn[-8] = garbage
    leaves_in(torn, tree)[:] = 0.0
    leaves_in(torn, tree)[:capacity] = masses
    tree.rebuild()
    tree.check()
    assert torn.tobytes() == fresh.tobytes()
    assert tree.total == expected.total


def test_rebuilding_a_whole_tree_changes_nothing() -> None:
    memory = zeros(SumTree.doubles(1000))
    tree = SumTree(1000, memory=memory)
    tree.update(np.arange(1000), np.random.default_rng(0).random(1000))
    before = memory.tobytes(), tree.total
    tree.rebuild()
    assert (memory.tobytes(), tree.total) == before


def test_a_second_tree_goes_on_from_the_leaves_of_the_first() -> None:
    memory = zeros(SumTree.doubles(100))
    SumTree(100, memory=memory).update([3, 98], [1.0, 2.0])
    tree = SumTree(100, memory=memory)
    tree.rebuild()
    assert (tree.total, tree.largest(), tree.smallest()) == (3.0, 2.0, 1.0)
    assert tree.find([0.0, 1.0]).tolist() == [3, 98]


def test_a_second_tree_has_the_bounds_of_the_first_if_it_is_not_fresh() -> None:
    memory = zeros(SumTree.doubles(1000))
    masses = np.random.default_rng(0).random(1000)
    SumTree(1000, memory=memory).update(np.arange(1000), masses)
    before = memory.tobytes()
    tree = SumTree(1000, memory=memory, fresh=False)
    tree.check()
    assert memory.tobytes() == before
    assert (tree.largest(), tree.smallest()) == (masses.max(), masses.min())
    assert tree.total == tree.sum()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0, -TINY])
@pytest.mark.parametrize("leaf", [0, 41, 99])
def test_rebuild_refuses_leaves_that_no_update_wrote(leaf: int, wrong: float) -> None:
    memory = zeros(SumTree.doubles(100))
    tree = SumTree(100, memory=memory)
    leaves_in(memory, tree)[leaf] = wrong
    before = memory.tobytes()
    with pytest.raises(ValueError, match=f"masses .*{wrong} at position {leaf}"):
        tree.rebuild()
    assert memory.tobytes() == before
    assert tree.total == 0.0


def test_rebuild_refuses_a_mass_behind_the_last_leaf_and_a_total_beyond_float64() -> None:
    memory = zeros(SumTree.doubles(100))
    tree = SumTree(100, memory=memory)
    leaves_in(memory, tree)[100] = 1.0
    with pytest.raises(ValueError, match="padding"):
        tree.rebuild()
    leaves_in(memory, tree)[:] = 0.0
    leaves_in(memory, tree)[[3, 70]] = HUGE
    with pytest.raises(ValueError, match="finite total"):
        tree.rebuild()
    assert tree.total == 0.0


@pytest.mark.parametrize(
    ("memory", "error", "rule"),
    [
        (zeros(191), ValueError, r"shape \(192,\), got \(191,\)"),
        (zeros(193), ValueError, r"shape \(192,\), got \(193,\)"),
        (zeros(192).reshape(2, 96), ValueError, r"shape \(192,\), got \(2, 96\)"),
        (zeros(384)[::2], ValueError, "contiguous, got strides of 16 bytes"),
        (zeros(192, offset=8), ValueError, "begin at a multiple of 64 bytes"),
        (np.broadcast_to(0.0, 192), ValueError, "contiguous"),
        (np.frombuffer(bytes(8 * 192)), ValueError, "must be writable|multiple of 64"),
        (zeros(192).view(np.int64), TypeError, "float64 array, got dtype.*int64"),
        (zeros(192).view(">f8"), TypeError, "float64 array, got dtype.*>f8"),
        ([0.0] * 192, TypeError, "float64 array, got"),
        (b"", TypeError, "float64 array, got b''"),
    ],
)
def test_memory_that_cannot_hold_the_tree_is_refused(
    memory: Any, error: type[Exception], rule: str
) -> None:
    assert SumTree.doubles(100) == 192
    with pytest.raises(error, match=rule):
        SumTree(100, memory=memory)


def test_memory_must_be_writable() -> None:
    memory = zeros(192)
    memory.flags.writeable = False
    with pytest.raises(ValueError, match="memory must be writable"):
        SumTree(100, memory=memory)


def test_memory_lives_as_long_as_the_tree() -> None:
    tree = SumTree(100, memory=zeros(192))
    tree.update(np.arange(100), np.arange(100.0))
    gc.collect()
    tree.check()


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))],
    ids=["copy", "pickle"],
)
def test_copies_of_a_tree_have_memory_of_their_own(
    duplicate: Callable[[SumTree], SumTree],
) -> None:
    memory = zeros(192)
    tree = SumTree(100, memory=memory)
    tree.update([5], [2.0])
    twin = duplicate(tree)
    tree.update([5], [3.0])
    assert (twin.total, twin.nbytes) == (2.0, memory.nbytes + 64)
