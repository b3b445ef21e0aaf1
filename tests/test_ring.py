"""The ring: which key and slot a row gets, for how long, and that its bytes arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay._ring import Ring
from kary_replay._windows import Gather
from kary_replay.windows import Kind, Output

NUMBER = np.dtype([("number", np.int64)])
Int64s = npt.NDArray[np.int64]


def int64s(*numbers: int) -> Int64s:
    return np.array(numbers, np.int64)


def new_ring(capacity: int, lanes: int, dtype: np.dtype[Any]) -> Ring:
    layout = Ring.layout(capacity, lanes, dtype)
    return Ring({name: np.zeros(shape, kind) for name, (shape, kind) in layout.items()})


def insert(ring: Ring, lanes: Int64s) -> tuple[Int64s, Int64s]:
    """Claims and publishes rows of one number; returns their keys and slots."""
    keys, slots, _, _ = ring.claim(lanes, [np.zeros(len(lanes), np.int64)])
    ring.publish(slots)
    return keys, slots


def read(ring: Ring, slots: Int64s) -> list[npt.NDArray[Any]]:
    """Every field of the rows in `slots`, in their order."""
    fields = [(name, *ring.rows.dtype.fields[name][:1]) for name in ring.rows.dtype.names]
    outputs = [Output(name, Kind.WINDOW, f.shape, f.base, field=name) for name, f in fields]
    return list(Gather(ring, outputs).read(slots).values())


def test_keys_number_the_rows_of_each_lane() -> None:
    ring = new_ring(6, 3, NUMBER)  # two rows a lane
    keys, slots = insert(ring, int64s(2, 0, 2))
    assert (keys.tolist(), slots.tolist()) == ([2, 0, 5], [2, 0, 5])
    keys, slots = insert(ring, int64s(2, 2, 1))
    assert (keys.tolist(), slots.tolist()) == ([8, 11, 1], [2, 5, 1])
    assert ring.heads.tolist() == [1, 1, 4]
    assert ring.counts().tolist() == [1, 1, 2]
    assert len(ring) == 4


@pytest.mark.parametrize(("capacity", "lanes"), [(1, 1), (7, 1), (6, 2), (6, 6), (35, 7)])
def test_a_key_lives_until_its_lane_has_gone_round(capacity: int, lanes: int) -> None:
    rng = np.random.default_rng(0)
    ring = new_ring(capacity, lanes, NUMBER)
    inserted: list[list[int]] = [[] for _ in range(lanes)]
    for _ in range(100):
        lane_of_row = rng.integers(0, lanes, rng.integers(0, 2 * capacity))
        keys, slots = insert(ring, lane_of_row)
        assert (slots == keys % capacity).all()
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
        assert sorted(ring.keys(held).tolist()) == sorted(newest)


@pytest.mark.parametrize("lanes", [1, 3])
def test_a_key_never_handed_out_is_not_live(lanes: int) -> None:
    ring = new_ring(6, lanes, NUMBER)
    never = int64s(0, 1, 5, 6, -1, -2, -3, -6, 2**63 - 1, -(2**63))
    assert not ring.live(never).any()
    insert(ring, int64s(0))
    assert ring.live(never).tolist() == [True] + [False] * 9


def test_a_row_may_be_drawn_from_its_publication_to_its_replacement() -> None:
    ring, nothing = new_ring(2, 1, NUMBER), [int64s(0)]
    keys, slots, retired, _ = ring.claim(int64s(0), nothing)
    assert (len(ring), ring.live(keys).tolist(), retired) == (0, [False], None)
    ring.publish(slots)
    assert (len(ring), ring.live(keys).tolist()) == (1, [True])
    insert(ring, int64s(0))
    _, _, retired, _ = ring.claim(int64s(0), nothing)
    assert (len(ring), ring.live(keys).tolist(), retired.tolist()) == (1, [False], slots.tolist())


def test_of_more_rows_than_fit_the_newest_are_kept() -> None:
    ring = new_ring(4, 2, NUMBER)
    keys, slots, _, whole = ring.claim(int64s(0, 0, 1, 0), [int64s(1, 2, 3, 4)])
    assert not whole
    assert ring.kept(keys).tolist() == [False, True, True, True]
    ring.publish(slots)
    keys, _, _, whole = ring.claim(int64s(0, 1), [int64s(5, 6)])
    assert whole
    assert ring.kept(keys).all()


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
    ring = new_ring(50, 1, FIELDS)
    given = random_rows(rng, rows)
    slots = rng.permutation(50)[:rows]
    ring.write(slots, list(given))
    order = rng.permutation(rows)
    for array, back in zip(given, read(ring, slots[order]), strict=True):
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        assert back.tobytes() == array[order].tobytes()


@pytest.mark.parametrize("size", [*range(1, 36), 63, 64, 65, 255, 256, 257, 300])
def test_fields_of_every_size_are_copied_whole_and_alone(size: int) -> None:
    record = np.dtype([("before", np.uint8), ("field", np.uint8, (size,)), ("after", np.uint8)])
    ring, rng = new_ring(3, 1, record), np.random.default_rng(size)
    edges, field = np.array([7, 8], np.uint8), rng.integers(256, size=(2, size), dtype=np.uint8)
    ring.write(int64s(2, 0), [edges, field, edges])
    before, back, after = read(ring, int64s(2, 0))
    assert back.tobytes() == field.tobytes()
    assert before.tolist() == after.tolist() == [7, 8]
    assert not ring.rows[1].tobytes().strip(b"\0")


def test_a_row_touches_only_its_own_slot() -> None:
    rng = np.random.default_rng(1)
    ring = new_ring(5, 1, FIELDS)
    ring.write(np.arange(5), random_rows(rng, 5))
    before = [row.tobytes() for row in ring.rows]
    ring.write(int64s(3), random_rows(rng, 1))
    after = [row.tobytes() for row in ring.rows]
    assert [slot for slot in range(5) if before[slot] != after[slot]] == [3]


def test_of_rows_for_one_slot_the_last_stays() -> None:
    ring = new_ring(3, 1, NUMBER)
    ring.write(int64s(1, 2, 1), [int64s(10, 20, 30)])
    assert read(ring, int64s(1, 2))[0].tolist() == [30, 20]


def test_strided_arrays_are_written_and_left_alone() -> None:
    ring = new_ring(4, 1, np.dtype([("pair", np.int64, (2,))]))
    given = np.arange(16).reshape(2, 8)[:, ::4].T  # neither C-contiguous nor dense
    ring.write(int64s(2, 0), [given])
    assert read(ring, int64s(2, 0))[0].tolist() == given.tolist() == [[0, 8], [4, 12]]


def test_what_is_read_is_a_copy() -> None:
    ring = new_ring(2, 1, NUMBER)
    ring.write(int64s(0, 1), [int64s(5, 6)])
    read(ring, int64s(0, 1))[0][:] = 9
    assert read(ring, int64s(0, 1))[0].tolist() == [5, 6]
