"""The ring: which key and slot a row gets, for how long, and that its bytes arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay._lock import LOCK_NBYTES, Participants
from kary_replay._parts import Parts
from kary_replay._ring import Ring
from kary_replay._sum_tree import SumTree
from kary_replay._windows import Gather
from kary_replay.arena import allocate
from kary_replay.windows import Kind, Output

NUMBER = np.dtype([("number", np.int64)])
STEP, WRITING, DRAWABLE = 4, 16, 32  # of _tags.pxd
Int64s = npt.NDArray[np.int64]


def int64s(*numbers: int) -> Int64s:
    return np.array(numbers, np.int64)


class Made:
    """A ring, and what is made with it."""

    def __init__(self, capacity: int, lanes: int, dtype: np.dtype[Any]) -> None:
        leaves = Parts.leaves(capacity, 8)
        layout = {
            "tree": ((SumTree.doubles(leaves),), np.dtype(np.float64)),
            **Parts.layout(capacity),
            **Ring.layout(capacity, lanes, dtype),
        }
        self.memory = allocate(layout, "private")
        self.counts = self.memory["locks"].view(np.int64)[LOCK_NBYTES // 8 - 1 :: LOCK_NBYTES // 8]
        self.tree = SumTree(leaves, memory=self.memory["tree"])
        self.parts = Parts(self.memory, self.tree, is_shared=False)
        self.participants = Participants(self.memory["participants"], is_shared=False)
        self.ring = Ring(self.memory, self.parts)
        outputs = [
            Output(name, Kind.WINDOW, dtype[name].shape, dtype[name].base, field=name)
            for name in dtype.names or ()
        ]
        self.gather = Gather(self.ring, self.parts, outputs)

    def insert(self, lanes: Int64s) -> Int64s:
        """Rows of one number; returns their keys."""
        return self.ring.insert(lanes, [np.zeros(len(lanes), np.int64)], 1.0)

    def read(self, slots: Int64s) -> list[npt.NDArray[Any]]:
        """Every field of the rows in `slots`, in their order."""
        columns, keys, missed = self.gather.read(slots)
        assert (missed.size, (keys % self.ring.capacity).tolist()) == (0, slots.tolist())
        return list(columns.values())

    def missed(self, slots: Int64s) -> list[int]:
        """The slots of which nothing can be read."""
        return slots[self.gather.read(slots)[2]].tolist()


# --- keys -------------------------------------------------------------------------------------


def test_keys_number_the_rows_of_each_lane() -> None:
    made = Made(6, 3, NUMBER)  # two rows a lane
    ring = made.ring
    assert ring.insert(int64s(2, 0, 2), [int64s(10, 11, 12)], 1.0).tolist() == [2, 0, 5]
    assert ring.rows["number"][[2, 0, 5]].tolist() == [10, 11, 12]
    assert ring.insert(int64s(2, 2, 1), [int64s(13, 14, 15)], 1.0).tolist() == [8, 11, 1]
    assert ring.rows["number"][[2, 5, 1]].tolist() == [13, 14, 15]
    assert made.gather.read(int64s(1, 2, 5))[1].tolist() == [1, 8, 11]
    assert ring.heads.tolist() == [1, 1, 4]
    assert ring.counts().tolist() == [1, 1, 2]
    assert len(ring) == ring.filled == 4


@pytest.mark.parametrize(("capacity", "lanes"), [(1, 1), (7, 1), (6, 2), (6, 6), (35, 7), (900, 1)])
def test_a_key_lives_until_its_lane_has_gone_round(capacity: int, lanes: int) -> None:
    rng = np.random.default_rng(0)
    made = Made(capacity, lanes, NUMBER)
    ring = made.ring
    inserted: list[list[int]] = [[] for _ in range(lanes)]
    for _ in range(100):
        lane_of_row = rng.integers(0, lanes, rng.integers(0, 2 * capacity))
        numbers = rng.integers(0, 1 << 40, len(lane_of_row))
        keys = ring.insert(lane_of_row, [numbers], 1.0)
        assert (keys % lanes == lane_of_row).all()
        for lane, key in zip(lane_of_row.tolist(), keys.tolist(), strict=True):
            inserted[lane].append(key)
        every = np.array([key for lane in inserted for key in lane], np.int64)
        assert np.unique(every).size == every.size
        newest = [key for lane in inserted for key in lane[-(capacity // lanes) :]]
        assert every[ring.live(every)].tolist() == newest
        assert len(ring) == len(newest)
        held = np.sort(np.array(newest, np.int64) % capacity)
        assert np.arange(capacity)[ring.filled_slots()].tolist() == held.tolist()
        _, there, missed = made.gather.read(held)
        assert (sorted(there.tolist()), missed.size) == (sorted(newest), 0)
        kept = ring.live(keys)
        assert made.read(keys[kept] % capacity)[0].tolist() == numbers[kept].tolist()
        assert np.flatnonzero(made.parts.masses()).tolist() == held.tolist()
        made.parts.check()


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_key_never_handed_out_is_not_live(lanes: int) -> None:
    made = Made(6, lanes, NUMBER)
    never = int64s(0, 1, 5, 6, -1, -2, -3, -6, 2**63 - 1, -(2**63))
    assert not made.ring.live(never).any()
    made.insert(int64s(0))
    assert made.ring.live(never).tolist() == [True] + [False] * 9


def test_a_row_may_be_drawn_from_its_publication_to_its_replacement() -> None:
    made = Made(2, 1, NUMBER)
    assert (len(made.ring), made.missed(int64s(0, 1))) == (0, [0, 1])
    keys = made.insert(int64s(0))
    assert (len(made.ring), made.ring.live(keys).tolist(), made.tree.total) == (1, [True], 1.0)
    assert made.missed(int64s(0, 1)) == [1]
    made.insert(int64s(0))
    made.insert(int64s(0))
    assert (len(made.ring), made.ring.live(keys).tolist(), made.tree.total) == (2, [False], 2.0)


def test_of_more_rows_than_fit_the_newest_are_kept() -> None:
    made = Made(4, 2, NUMBER)
    keys = made.ring.insert(int64s(0, 0, 1, 0), [int64s(1, 2, 3, 4)], 1.0)
    assert made.ring.live(keys).tolist() == [False, True, True, True]
    assert made.ring.rows["number"].tolist() == [4, 3, 2, 0]
    assert (len(made.ring), made.tree.total) == (3, 3.0)
    keys = made.ring.insert(int64s(0, 1), [int64s(5, 6)], 1.0)
    assert made.ring.live(keys).all()


# --- writers ----------------------------------------------------------------------------------


def test_a_row_that_is_written_is_not_drawn_and_its_place_left_to_its_writer() -> None:
    made = Made(3, 1, NUMBER)
    made.ring.insert(int64s(0, 0, 0), [int64s(1, 2, 3)], 1.0)
    writing = 3 << 16 | made.participants.me << 8 & 0xFF00 | STEP | WRITING
    made.ring.update(int64s(0), np.zeros(1))
    made.memory["tags"][0], made.memory["heads"][0, 0] = writing, 4
    assert made.ring.live(int64s(0, 3)).tolist() == [False, False]
    assert made.missed(int64s(0, 1, 2)) == [0]
    keys = made.ring.insert(int64s(0, 0, 0), [int64s(4, 5, 6)], 1.0)
    assert keys.tolist() == [4, 5, 7]  # 6 would lie where 3 does
    assert made.memory["tags"][0] == writing
    assert made.ring.rows["number"].tolist() == [1, 6, 5]


def test_a_row_that_a_dead_writer_left_is_taken() -> None:
    made = Made(3, 1, NUMBER)
    made.insert(int64s(0, 0, 0))
    made.ring.update(int64s(0), np.zeros(1))
    made.memory["tags"][0], made.memory["heads"][0, 0] = 3 << 16 | 200 << 8 | STEP | WRITING, 4
    made.counts[0] -= 1
    assert made.insert(int64s(0, 0, 0)).tolist() == [4, 5, 6]
    assert made.ring.live(int64s(4, 5, 6)).all()
    assert len(made.ring) == 3


def test_what_recovers_gives_up_rows_on_their_way_and_counts_again() -> None:
    made = Made(30, 1, NUMBER)
    made.insert(np.zeros(25, np.int64))
    made.memory["tags"][4] = 4 << 16 | 200 << 8 | STEP | WRITING
    made.memory["updates"][:] = 7
    made.memory["locks"][:] = 255
    made.memory["tree"][-1 - np.arange(8)] = 99.0  # the total
    made.ring.recover()
    alive = [key for key in range(25) if key != 4]
    assert np.flatnonzero(made.ring.live(np.arange(30))).tolist() == alive
    assert len(made.ring) == 24
    assert np.flatnonzero(made.parts.masses()).tolist() == alive
    made.parts.check()


# --- masses -----------------------------------------------------------------------------------


def test_masses_are_updated_by_key_and_late_ones_counted() -> None:
    made = Made(600, 1, NUMBER)
    keys = made.ring.insert(np.zeros(601, np.int64), [np.arange(601)], np.arange(1.0, 602.0))
    assert made.parts.masses().tolist() == [601.0, *range(2, 601)]
    assert made.ring.update(int64s(599, 0, 1, 599, 600), np.array([5.0, 9.0, 6.0, 7.0, 0.0])) == 4
    assert made.ring.stale == 1
    assert made.parts.masses(keys[[600, 1, 599]] % 600).tolist() == [0.0, 6.0, 7.0]
    assert made.ring.live(int64s(600)).all()  # a mass of 0 is one
    made.parts.check()


# --- bytes ------------------------------------------------------------------------------------


FIELDS = np.dtype(
    [
        ("byte", np.uint8),
        ("half", np.float16),
        ("three", np.uint8, (3,)),
        ("single", np.float32),
        ("double", np.float64),
        ("matrix", np.int16, (3, 5)),
        ("wide", np.complex128),
        ("image", np.uint8, (4, 30, 30)),
    ]
)


def random_rows(rng: np.random.Generator, rows: int) -> list[npt.NDArray[Any]]:
    """Arrays of any bytes, one for each field of FIELDS."""
    arrays = []
    for name in FIELDS.names or ():
        dtype, shape = FIELDS[name].base, FIELDS[name].shape
        size = rows * FIELDS[name].itemsize
        arrays.append(np.frombuffer(rng.bytes(size), dtype).reshape(rows, *shape))
    return arrays


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 40])
def test_rows_come_back_byte_for_byte(rows: int) -> None:
    rng = np.random.default_rng(rows)
    made = Made(50, 50, FIELDS)
    given = random_rows(rng, rows)
    slots = rng.permutation(50)[:rows]
    assert made.ring.insert(slots, list(given), 1.0).tolist() == slots.tolist()
    order = rng.permutation(rows)
    for array, back in zip(given, made.read(slots[order]), strict=True):
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array[order].tobytes()


@pytest.mark.parametrize("size", [*range(1, 36), 63, 64, 65, 255, 256, 257, 300])
def test_fields_of_every_size_are_copied_whole_and_alone(size: int) -> None:
    record = np.dtype([("before", np.uint8), ("field", np.uint8, (size,)), ("after", np.uint8)])
    made, rng = Made(3, 3, record), np.random.default_rng(size)
    edges, field = np.array([7, 8], np.uint8), rng.integers(256, size=(2, size), dtype=np.uint8)
    made.ring.insert(int64s(2, 0), [edges, field, edges], 1.0)
    before, back, after = made.read(int64s(2, 0))
    assert back.tobytes() == field.tobytes()
    assert before.tolist() == after.tolist() == [7, 8]
    assert not made.ring.rows[1].tobytes().strip(b"\0")


def test_a_row_touches_only_its_own_slot() -> None:
    rng = np.random.default_rng(1)
    made = Made(5, 5, FIELDS)
    made.ring.insert(np.arange(5), random_rows(rng, 5), 1.0)
    before = [row.tobytes() for row in made.ring.rows]
    made.ring.insert(int64s(3), random_rows(rng, 1), 1.0)
    after = [row.tobytes() for row in made.ring.rows]
    assert [slot for slot in range(5) if before[slot] != after[slot]] == [3]


def test_of_rows_for_one_slot_the_last_stays() -> None:
    made = Made(3, 3, NUMBER)
    made.ring.insert(int64s(1, 2, 1), [int64s(10, 20, 30)], 1.0)
    assert made.read(int64s(1, 2))[0].tolist() == [30, 20]


def test_strided_arrays_are_written_and_left_alone() -> None:
    made = Made(4, 4, np.dtype([("pair", np.int64, (2,))]))
    given = np.arange(16).reshape(2, 8)[:, ::4].T  # neither C-contiguous nor dense
    made.ring.insert(int64s(2, 0), [given], 1.0)
    assert made.read(int64s(2, 0))[0].tolist() == given.tolist() == [[0, 8], [4, 12]]


def test_what_is_read_is_a_copy() -> None:
    made = Made(2, 1, NUMBER)
    made.ring.insert(int64s(0, 0), [int64s(5, 6)], 1.0)
    made.read(int64s(0, 1))[0][:] = 9
    assert made.read(int64s(0, 1))[0].tolist() == [5, 6]


@pytest.mark.parametrize("capacity", [1, 7, 64, 65, 257, 1000, 5000])
@pytest.mark.parametrize("fanout", [2, 8, 64])
def test_each_row_has_a_leaf_of_its_own(capacity: int, fanout: int) -> None:
    leaves = Parts.leaves(capacity, fanout)
    tree = SumTree(leaves, fanout)
    parts = Parts(allocate(Parts.layout(capacity), "private"), tree, is_shared=False)
    masses = np.arange(1.0, capacity + 1.0)
    parts.restore(masses)
    assert parts.masses().tolist() == masses.tolist()
    assert np.sort(tree.masses())[-capacity:].tolist() == masses.tolist()
    slots, drawn, total = parts.draw(np.linspace(0.0, 1.0, 999))
    assert (masses[slots] == drawn).all()
    assert total == tree.total == parts.total


def test_a_tree_of_another_size_is_refused() -> None:
    memory = allocate(Parts.layout(257), "private")
    with pytest.raises(ValueError, match="tree must have 264 leaves for 257 rows, got 257"):
        Parts(memory, SumTree(257), is_shared=False)
