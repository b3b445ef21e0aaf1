"""The buffers by examples: what goes in, what comes out, what is refused."""

from __future__ import annotations

import copy
import math
import pickle
import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay import Batch, PrioritizedReplayBuffer, ReplayBuffer

COLUMNS = {"obs": ((3,), np.float32), "image": ((2, 2), np.uint8), "number": ((), np.int64)}
BUFFERS = [ReplayBuffer, PrioritizedReplayBuffer]


def rows(first: int, count: int) -> dict[str, npt.NDArray[Any]]:
    """Rows that can be told apart in every column."""
    number = np.arange(first, first + count)
    return {
        "obs": np.stack([number, -number, number * 0.5], axis=1),
        "image": np.broadcast_to((number % 251).astype(np.uint8)[:, None, None], (count, 2, 2)),
        "number": number,
    }


def assert_rows_are_whole(batch: Batch) -> None:
    for name, column in rows(0, int(batch["number"].max()) + 1).items():
        assert (batch[name] == column[batch["number"]]).all()


@pytest.fixture(params=BUFFERS)
def buffer_class(request: pytest.FixtureRequest) -> Any:
    return request.param


# --- add and sample -------------------------------------------------------------------------


def test_one_row_then_many(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(8, COLUMNS, seed=0)
    assert buffer.add(obs=[0, 0, 0], image=np.zeros((2, 2), int), number=0).tolist() == [0]
    assert len(buffer) == 1
    keys = buffer.add(**rows(1, 5))
    assert (keys.dtype, keys.tolist(), len(buffer)) == (np.int64, [1, 2, 3, 4, 5], 6)
    batch = buffer.sample(400)
    assert set(batch["number"].tolist()) == set(range(6))
    assert (batch.keys == batch["number"]).all()
    assert (batch.slots == batch["number"]).all()
    assert_rows_are_whole(batch)


@pytest.mark.parametrize("counts", [[5], [6], [7], [13], [40], [3, 3], [4, 4], [1] * 9, [5, 0, 20]])
@pytest.mark.parametrize("capacity", [1, 6])
def test_the_newest_rows_stay(
    buffer_class: type[ReplayBuffer], capacity: int, counts: list[int]
) -> None:
    buffer = buffer_class(capacity, COLUMNS, seed=0)
    first = 0
    for count in counts:
        assert buffer.add(**rows(first, count)).tolist() == list(range(first, first + count))
        first += count
    live = list(range(first))[-capacity:]
    assert len(buffer) == len(live)
    batch = buffer.sample(300)
    assert sorted(set(batch["number"].tolist())) == live
    assert (batch.keys == batch["number"]).all()
    assert (batch.slots == batch.keys % capacity).all()
    assert_rows_are_whole(batch)


def test_of_more_rows_than_fit_the_newest_keep_their_own_errors() -> None:
    buffer = PrioritizedReplayBuffer(3, COLUMNS, alpha=1.0, eps=0.0, seed=0)
    buffer.add(**rows(0, 7), td_errors=np.arange(7.0))
    batch = buffer.sample(1000)
    assert set(batch.keys.tolist()) == {4, 5, 6}
    assert (batch.probabilities == batch["number"] / 15.0).all()


def test_no_rows_change_nothing(buffer_class: type[ReplayBuffer]) -> None:
    for lanes in (1, 2):
        buffer = buffer_class(4, COLUMNS, lanes=lanes, seed=0)
        before = pickle.dumps(buffer)
        assert buffer.add(**rows(0, 0)).shape == (0,)
        assert buffer.add(**rows(0, 0), lanes=np.empty(0, np.int64)).shape == (0,)
        assert pickle.dumps(buffer) == before


def test_a_batch_is_what_it_says(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(8, COLUMNS, seed=0)
    buffer.add(**rows(0, 3))
    batch = buffer.sample(20)  # larger than the buffer
    assert len(batch) == 20
    assert (batch["obs"].shape, batch["obs"].dtype) == ((20, 3), np.float32)
    assert (batch["image"].shape, batch["image"].dtype) == ((20, 2, 2), np.uint8)
    assert (batch["number"].shape, batch["number"].dtype) == ((20,), np.int64)
    assert "obs" in batch
    assert "reward" not in batch
    assert repr(batch) == "Batch(20 rows of obs, image, number)"
    assert (batch.keys.dtype, batch.slots.dtype) == (np.int64, np.int64)
    with pytest.raises(KeyError):
        batch["reward"]


@pytest.mark.parametrize("lanes", [1, 2])
def test_an_empty_buffer_has_nothing_to_draw(buffer_class: type[ReplayBuffer], lanes: int) -> None:
    buffer = buffer_class(8, COLUMNS, lanes=lanes, seed=0)
    assert len(buffer) == 0
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_batch_has_rows(buffer_class: type[ReplayBuffer], wrong: int) -> None:
    buffer = buffer_class(8, COLUMNS, seed=0)
    buffer.add(**rows(0, 3))
    with pytest.raises(ValueError, match=f"batch_size .*{wrong}"):
        buffer.sample(wrong)


@pytest.mark.parametrize("wrong", [2.0, 2.5, "3", None, [3]])
def test_a_batch_size_is_an_integer(buffer_class: type[ReplayBuffer], wrong: Any) -> None:
    buffer = buffer_class(8, COLUMNS, seed=0)
    buffer.add(**rows(0, 3))
    before = pickle.dumps(buffer)
    with pytest.raises(TypeError):
        buffer.sample(wrong)
    assert pickle.dumps(buffer) == before
    assert len(buffer.sample(np.int32(3))) == 3  # type: ignore[arg-type]


# --- nothing is shared ----------------------------------------------------------------------


def test_what_went_in_may_be_used_again(buffer_class: type[ReplayBuffer]) -> None:
    buffer, given = buffer_class(8, COLUMNS, seed=0), rows(0, 8)
    given = {name: column.astype(COLUMNS[name][1]) for name, column in given.items()}
    before = {name: column.tobytes() for name, column in given.items()}
    buffer.add(**given)
    assert {name: column.tobytes() for name, column in given.items()} == before
    for column in given.values():
        column[...] = 99
    assert_rows_are_whole(buffer.sample(100))


def test_what_comes_out_is_the_caller_s(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(8, COLUMNS, seed=0)
    keys = buffer.add(**rows(0, 8))
    batch = buffer.sample(16)
    before = pickle.dumps(buffer)
    for array in (*batch.columns.values(), batch.keys, batch.slots, keys):
        assert array.flags.owndata
        assert array.flags.writeable
        array[...] = 99
    for maybe in (batch.weights, batch.probabilities):
        if maybe is not None:
            maybe[...] = 99
    assert pickle.dumps(buffer) == before


# --- lanes ----------------------------------------------------------------------------------


def test_lanes_overwrite_only_their_own_rows(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(6, COLUMNS, lanes=2, seed=0)
    buffer.add(**rows(0, 2))  # one row for each lane
    buffer.add(**rows(2, 7), lanes=[0] * 7)
    buffer.add(**rows(9, 1), lanes=1)
    assert len(buffer) == 5
    assert set(buffer.sample(500)["number"].tolist()) == {1, 6, 7, 8, 9}
    keys = buffer.add(**rows(10, 3), lanes=np.array([1, 0, 1], np.uint8))
    assert keys.tolist() == [5, 16, 7]
    assert len(buffer) == 6
    assert set(buffer.sample(500)["number"].tolist()) == {7, 8, 11, 9, 10, 12}


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ([0, 2], IndexError),
        ([-1, 0], IndexError),
        ([0, 2**32], IndexError),
        (np.array([0, 2**64 - 1], np.uint64), IndexError),
        ([0.0, 1.0], TypeError),
        ([True, False], TypeError),
        (["0", "1"], TypeError),
        ([0], ValueError),
        ([0, 1, 0], ValueError),
        ([[0, 1]], ValueError),
        (0, ValueError),
    ],
    ids=repr,
)
def test_wrong_lanes_change_nothing(
    buffer_class: type[ReplayBuffer], wrong: Any, error: type[Exception]
) -> None:
    buffer = buffer_class(6, COLUMNS, lanes=2, seed=0)
    before = pickle.dumps(buffer)
    with pytest.raises(error, match="lanes"):
        buffer.add(**rows(0, 2), lanes=wrong)
    assert pickle.dumps(buffer) == before


def test_lanes_must_be_said_where_they_are_not_plain(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(6, COLUMNS, lanes=2)
    for count in (1, 3):
        with pytest.raises(ValueError, match="lanes"):
            buffer.add(**rows(0, count))


# --- arguments ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({"capacity": 0}, ValueError, "capacity"),
        ({"capacity": -4}, ValueError, "capacity"),
        ({"capacity": 4.0}, TypeError, "capacity"),
        ({"capacity": True}, TypeError, "capacity"),
        ({"lanes": 0}, ValueError, "lanes"),
        ({"lanes": 1.0}, TypeError, "lanes"),
        ({"lanes": 3}, ValueError, "capacity.*lanes.*8 and 3"),
        ({"lanes": 16}, ValueError, "capacity.*lanes"),
        ({"storage": "elsewhere"}, ValueError, "storage"),
    ],
    ids=repr,
)
def test_wrong_arguments(
    buffer_class: type[ReplayBuffer], arguments: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        buffer_class(**({"capacity": 8, "columns": COLUMNS} | arguments))


def test_fanout_is_that_of_the_tree() -> None:
    with pytest.raises(ValueError, match="fanout"):
        PrioritizedReplayBuffer(8, COLUMNS, fanout=3)


def test_options_are_passed_by_name_only(buffer_class: type[ReplayBuffer]) -> None:
    with pytest.raises(TypeError):
        buffer_class(8, COLUMNS, 0.6)  # type: ignore[misc]
    with pytest.raises(TypeError):
        buffer_class(8, COLUMNS).add([0, 0, 0])  # type: ignore[misc]


# --- priority updates -----------------------------------------------------------------------


def test_stale_updates_are_dropped_and_counted() -> None:
    buffer = PrioritizedReplayBuffer(4, COLUMNS, alpha=1.0, eps=0.0, seed=0)
    old = buffer.add(**rows(0, 4))
    buffer.add(**rows(4, 2))  # over keys 0 and 1
    assert buffer.update_priorities(old, [100.0, 200.0, 5.0, 6.0]) == 2
    assert buffer.stale_updates == 2
    assert buffer.max_priority == 6.0
    assert buffer.update_priorities([0, 0, 5, 5], [9.0, 9.0, 9.0, 2.0]) == 2
    assert buffer.stale_updates == 4
    batch = buffer.sample(2000)
    held = dict(zip(batch.keys.tolist(), batch.probabilities.tolist(), strict=True))
    assert held == pytest.approx({2: 5 / 14, 3: 6 / 14, 4: 1 / 14, 5: 2 / 14})


def test_an_update_of_stale_keys_alone_does_nothing_else() -> None:
    buffer = PrioritizedReplayBuffer(2, COLUMNS, seed=0)
    buffer.add(**rows(0, 4))
    assert buffer.update_priorities([0, 1], [3.0, 4.0]) == 0
    assert buffer.max_priority == pytest.approx(1.0)
    assert buffer.stale_updates == 2


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize(
    "wrong", [-1, -2, -3, -(2**63), 12, 2**62, 2**63 - 1, np.uint64(2**63), np.uint64(2**64 - 1)]
)
def test_a_key_never_handed_out_is_refused(lanes: int, wrong: Any) -> None:
    buffer = PrioritizedReplayBuffer(6, COLUMNS, lanes=lanes, seed=0)
    buffer.add(**rows(0, 12), lanes=np.arange(12) % lanes)
    before = pickle.dumps(buffer)
    keys = np.array([6, wrong, 0], np.asarray(wrong).dtype)
    with pytest.raises(IndexError, match=r"keys .* position 1"):
        buffer.update_priorities(keys, [1.0, 2.0, 3.0])
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([0.0, 1.0], TypeError),
        ([True, False], TypeError),
        (["0", "1"], TypeError),
        (None, TypeError),
        ([[0, 1]], ValueError),
        ([[0], [1]], ValueError),
        ([0], ValueError),
        ([0, 1, 2], ValueError),
        (0, ValueError),
    ],
    ids=repr,
)
def test_wrong_keys_change_nothing(keys: Any, error: type[Exception]) -> None:
    buffer = PrioritizedReplayBuffer(6, COLUMNS, seed=0)
    buffer.add(**rows(0, 3))
    before = pickle.dumps(buffer)
    with pytest.raises(error, match=r"keys|td_errors"):
        buffer.update_priorities(keys, [1.0, 2.0])
    assert pickle.dumps(buffer) == before


def test_a_bad_error_with_a_stale_key_is_still_refused() -> None:
    buffer = PrioritizedReplayBuffer(2, COLUMNS, seed=0)
    buffer.add(**rows(0, 4))
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match="td_errors"):
        buffer.update_priorities([0, 3], [math.nan, 1.0])
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("dtype", ["i4", "u8", ">i8", "i8"])
def test_keys_of_any_integer_dtype(dtype: str) -> None:
    buffer = PrioritizedReplayBuffer(4, COLUMNS, alpha=1.0, eps=0.0, seed=0)
    buffer.add(**rows(0, 4))
    assert buffer.update_priorities(np.array([3, 0], dtype), [7.0, 1.0]) == 2
    assert buffer.update_priorities([], []) == 0
    assert buffer.max_priority == 7.0


# --- uniform draws --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lanes", "heads"),
    [(1, [50]), (1, [17]), (5, [10, 10, 10, 10, 10]), (5, [1, 0, 10, 3, 25]), (2, [0, 1])],
)
def test_uniform_draws_give_every_row_the_same_chance(lanes: int, heads: list[int]) -> None:
    buffer = ReplayBuffer(50, {"number": ((), np.int64)}, lanes=lanes, seed=3)
    lane_of_row = np.repeat(np.arange(lanes), heads)
    keys = buffer.add(number=np.arange(lane_of_row.size), lanes=lane_of_row)
    live = [keys[lane_of_row == lane][-50 // lanes :] for lane in range(lanes)]
    batches = [buffer.sample(100) for _ in range(200)]
    seen = np.bincount(np.concatenate([batch.keys for batch in batches]), minlength=keys.max() + 1)
    expected = np.concatenate(live)
    assert seen.sum() == seen[expected].sum() == 20_000
    want = 20_000 / expected.size
    chi_square = ((seen[expected] - want) ** 2 / want).sum()
    degrees = expected.size - 1
    assert abs(chi_square - degrees) <= 5.0 * math.sqrt(2 * degrees)
    assert batches[0].weights is None
    assert batches[0].probabilities is None


def test_uniform_draws_follow_the_seed() -> None:
    def draws(seed: Any) -> list[int]:
        buffer = ReplayBuffer(100, {"number": ((), np.int64)}, seed=seed)
        buffer.add(number=np.arange(100))
        return [slot for _ in range(3) for slot in buffer.sample(10).slots.tolist()]

    assert draws(1) == draws(1) == draws(np.random.default_rng(1)) != draws(2)


# --- the rest -------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 5])
@pytest.mark.parametrize("capacity", [5, 1000])
def test_nbytes_is_what_numpy_allocated(
    buffer_class: type[ReplayBuffer], capacity: int, lanes: int
) -> None:
    buffer_class(capacity, COLUMNS, lanes=lanes)  # whatever is made once is made
    in_numpy = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    tracemalloc.start()
    try:
        buffer = buffer_class(capacity, COLUMNS, lanes=lanes)
        snapshot = tracemalloc.take_snapshot().filter_traces([in_numpy])
    finally:
        tracemalloc.stop()
    allocated = sum(trace.size for trace in snapshot.traces)
    assert 0 <= allocated - buffer.nbytes <= 32  # shapes and empty arrays are NumPy's own


@pytest.mark.parametrize("twin_of", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_a_copy_draws_the_same_and_is_independent(
    buffer_class: type[ReplayBuffer], twin_of: Any
) -> None:
    buffer = buffer_class(6, COLUMNS, lanes=2, seed=0)
    buffer.add(**rows(0, 9), lanes=[0, 0, 1, 0, 0, 0, 0, 1, 0])
    buffer.sample(3)
    twin = twin_of(buffer)
    assert type(twin) is buffer_class
    assert (len(twin), twin.nbytes, twin.columns) == (len(buffer), buffer.nbytes, buffer.columns)
    for _ in range(3):
        ours, theirs = buffer.sample(10), twin.sample(10)
        assert ours.keys.tolist() == theirs.keys.tolist()
        assert (ours["obs"] == theirs["obs"]).all()
    assert twin.add(**rows(9, 2)).tolist() == buffer.add(**rows(9, 2)).tolist()
    twin.add(**rows(100, 6), lanes=[0, 1] * 3)
    assert buffer.sample(500)["number"].max() == 10
    assert twin.sample(500)["number"].min() == 100


def test_repr_says_how_full(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(6, COLUMNS, lanes=2)
    buffer.add(**rows(0, 2))
    name = buffer_class.__name__
    assert repr(buffer) == f"{name}(2 of 6 rows, 2 lanes, columns obs, image, number)"
    assert (buffer.capacity, buffer.lanes) == (6, 2)


def test_a_view_is_the_stored_column(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(6, COLUMNS, seed=0)
    buffer.add(**rows(0, 8))
    assert buffer.view("number").tolist() == [6, 7, 2, 3, 4, 5]
    buffer.view("number")[1] = 70
    assert 70 in buffer.sample(200)["number"]
    with pytest.raises(KeyError, match="reward"):
        buffer.view("reward")


def test_rows_are_read_by_their_slots(buffer_class: type[ReplayBuffer]) -> None:
    buffer = buffer_class(6, COLUMNS, seed=0)
    buffer.add(**rows(0, 8))
    read = buffer.read([5, 0, 0])
    assert read["number"].tolist() == [5, 6, 6]
    read["number"][:] = 0
    assert buffer.view("number").tolist() == [6, 7, 2, 3, 4, 5]


@pytest.mark.parametrize("slot", [-1, 3, 6])
def test_slots_without_a_row_are_not_read(buffer_class: type[ReplayBuffer], slot: int) -> None:
    buffer = buffer_class(6, COLUMNS, seed=0)
    buffer.add(**rows(0, 3))
    with pytest.raises(IndexError, match=f"slots must hold rows that may be drawn, got {slot}"):
        buffer.read([1, slot])


class Named(PrioritizedReplayBuffer):
    """A subclass with a constructor of its own."""

    def __init__(self) -> None:
        super().__init__(4, {"x": ((), np.int64)}, seed=0)


def test_a_subclass_with_its_own_constructor_can_be_copied() -> None:
    buffer = Named()
    buffer.add(x=[1, 2, 3])
    again = pickle.loads(pickle.dumps(buffer))
    assert type(again) is Named
    assert again.sample(8).keys.tolist() == buffer.sample(8).keys.tolist()


@pytest.mark.parametrize("seed", [-1, "a", 0.5])
def test_a_wrong_seed_is_named(seed: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="seed must be"):
        ReplayBuffer(4, {"x": ((), np.int64)}, seed=seed)


def test_an_empty_batch_of_lanes_adds_nothing() -> None:
    buffer = ReplayBuffer(4, {"x": ((), np.int64)}, lanes=2)
    assert buffer.add(x=np.zeros(0, np.int64), lanes=[]).shape == (0,)
    assert len(buffer) == 0
