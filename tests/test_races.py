"""Writers, updaters and readers at the same time: no row is torn, and everything is counted.

tests/tsan.sh runs the threads under ThreadSanitizer.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import racers

from kary_replay import PrioritizedReplayBuffer, ReplayBuffer
from kary_replay._lock import LOCK_NBYTES, Participants, SpinLock

ROWS, CAPACITY = 20_000, 257
KINDS = [PrioritizedReplayBuffer, ReplayBuffer]
both = pytest.mark.parametrize("kind", KINDS, ids=["prioritized", "uniform"])
storages = pytest.mark.parametrize("storage", ["private", "shared"])
methods = pytest.mark.parametrize("method", ["fork", "spawn"])

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


def in_threads(*calls: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for call in [pool.submit(function, *arguments) for function, arguments in calls]:
            call.result(120)


def in_processes(method: str, *calls: tuple[Callable[..., None], tuple[Any, ...]]) -> None:
    racers.run(multiprocessing.get_context(method), *calls)


def one_row_in(buffer: ReplayBuffer, token_of: Any) -> None:
    """So that readers have something to draw from the beginning."""
    racers.write(buffer, 9, 1, 1, token_of)


def notes(keys: int, method: str = "fork") -> Any:
    """A token for each key, in memory that all processes share; 0 at first."""
    return multiprocessing.get_context(method).RawArray("q", keys)


def assert_counted(buffer: ReplayBuffer, *noted: Any) -> None:
    """What writers noted, and then readers, is what there is."""
    written, *seen = (np.frombuffer(tokens, np.int64) for tokens in noted)
    for tokens in seen:
        assert tokens.any()
        assert np.array_equal(tokens[tokens > 0], written[tokens > 0]), "of another key"
    racers.assert_consistent(buffer)
    racers.assert_newest_are_there(buffer, written)


@both
@methods
@pytest.mark.parametrize("size", [1, 16, 300])
def test_processes_write_read_and_update_at_once(kind: Any, method: str, size: int) -> None:
    buffer = kind(CAPACITY, racers.COLUMNS, storage="shared", seed=1)
    written, seen = notes(3 * ROWS, method), notes(3 * ROWS, method)
    one_row_in(buffer, written)
    in_processes(
        method,
        (racers.write, (buffer, 1, ROWS, size, written)),
        (racers.write, (buffer, 2, ROWS, size, written)),
        (racers.read, (buffer, 3000, 3, seen)),
    )
    assert_counted(buffer, written, seen)
    assert np.count_nonzero(written) == 2 * ROWS + 1
    buffer.close()


@both
@storages
@pytest.mark.parametrize("size", [1, 40])
def test_threads_write_read_and_update_at_once(kind: Any, storage: str, size: int) -> None:
    buffer = kind(CAPACITY, racers.COLUMNS, storage=storage, seed=1)
    written, seen = notes(ROWS), notes(ROWS)
    one_row_in(buffer, written)
    in_threads(
        (racers.write, (buffer, 1, ROWS // 4, size, written)),
        (racers.write, (buffer, 2, ROWS // 4, size, written)),
        (racers.read, (buffer, 500, 3, seen)),
        (racers.read, (buffer, 500, 4, seen)),
    )
    assert_counted(buffer, written, seen)


@pytest.mark.parametrize("fanout", [2, 8, 128])
def test_threads_share_trees_of_all_shapes(fanout: int) -> None:
    """With several levels below the parts' roots, none, and with no roots of parts at all."""
    buffer = PrioritizedReplayBuffer(
        2000, racers.COLUMNS, fanout=fanout, weight_norm="buffer", seed=1
    )
    written, seen = notes(9000), notes(9000)
    one_row_in(buffer, written)
    in_threads(
        (racers.write, (buffer, 1, 4000, 100, written)),
        (racers.write, (buffer, 2, 4000, 100, written)),
        (racers.read, (buffer, 300, 3, seen)),
        (racers.read, (buffer, 300, 4, seen)),
    )
    assert_counted(buffer, written, seen)


@both
@pytest.mark.parametrize("capacity", [1, 2, 3, 8, 9])
def test_threads_crowd_a_tiny_buffer(kind: Any, capacity: int) -> None:
    """Every place is being written to most of the time."""
    buffer = kind(capacity, racers.COLUMNS, seed=1)
    written, seen = notes(100_000), notes(100_000)
    one_row_in(buffer, written)
    in_threads(
        *((racers.write, (buffer, 1 + i, 500, 1 + 2 * i, written)) for i in range(4)),
        (racers.read, (buffer, 200, 3, seen)),
    )
    assert_counted(buffer, written, seen)


@both
@methods
def test_lanes_of_columns_of_time_are_written_by_processes(kind: Any, method: str) -> None:
    """Stacks and sums of the rows that are drawn are whole, whoever writes beside them."""
    buffer = kind(4 * 61, racers.IN_TIME, lanes=4, storage="shared", seed=1)
    racers.write_in_time(buffer, [0, 1, 2, 3], 1)
    in_processes(
        method,
        (racers.write_in_time, (buffer, [0, 2], 4000)),
        (racers.write_in_time, (buffer, [3, 1], 4000)),
        (racers.read_in_time, (buffer, 2000, 3)),
    )
    racers.assert_consistent(buffer)
    racers.read_in_time(buffer, 20, 4)
    assert (
        buffer._ring.heads.tolist()
        == [
            1
            + 1
            + 4000
            + -(-4000 // racers.EPISODE),  # after an end, an observation without a step
        ]
        * 4
    )
    buffer.close()


@both
@storages
def test_lanes_of_columns_of_time_are_written_by_threads(kind: Any, storage: str) -> None:
    buffer = kind(4 * 61, racers.IN_TIME, lanes=4, storage=storage, seed=1)
    racers.write_in_time(buffer, [0, 1, 2, 3], 1)
    in_threads(
        (racers.write_in_time, (buffer, [0, 2], 1000)),
        (racers.write_in_time, (buffer, [3, 1], 1000)),
        (racers.read_in_time, (buffer, 300, 3)),
        (racers.read_in_time, (buffer, 300, 4)),
    )
    racers.assert_consistent(buffer)


@both
@storages
def test_one_lane_of_columns_of_time_is_written_by_many(kind: Any, storage: str) -> None:
    """They cut each other's episodes, and nothing else."""
    buffer = kind(61, racers.IN_TIME, storage=storage, seed=1)
    racers.write_into_one_lane(buffer, 9, 1)
    in_threads(
        *((racers.write_into_one_lane, (buffer, writer, 1000)) for writer in range(3)),
        (racers.read_cut_episodes, (buffer, 300)),
    )
    racers.assert_consistent(buffer)
    racers.read_cut_episodes(buffer, 20)
    racers.write_in_time(buffer, [0], 61)
    racers.read_in_time(buffer, 20, 4)


# -- Copies that are made meanwhile --------------------------------------------------------------


def copied(buffer: ReplayBuffer, meanwhile: Callable[[], None]) -> ReplayBuffer:
    """A copy for which all that `meanwhile` does comes between its look at tags and its bytes."""
    copy = type(buffer)(**buffer._arguments())
    state = buffer._state()
    meanwhile()
    copy._take_over(state)
    return copy


@both
@pytest.mark.parametrize("rows", [0, 1, 5, 12, 40])
def test_a_copy_lacks_the_rows_that_make_room_meanwhile(kind: Any, rows: int) -> None:
    buffer = kind(12, racers.COLUMNS, seed=1)
    written = notes(100)
    racers.write(buffer, 1, 17, 17, written)
    copy = copied(buffer, lambda: racers.write(buffer, 2, rows, 1, written))
    racers.assert_consistent(copy)
    assert np.sort(racers.drawable_keys(copy)).tolist() == list(range(5 + rows, 17))
    if rows < 12:
        racers.assert_whole(copy.sample(100))
    racers.write(copy, 3, 12, 12, written)
    racers.assert_whole(copy.sample(100))
    assert len(copy) == 12


@both
@pytest.mark.parametrize("steps", range(20))
def test_a_copy_of_columns_of_time_has_whole_windows(kind: Any, steps: int) -> None:
    buffer = kind(2 * 16, racers.IN_TIME, lanes=2, seed=1)
    racers.write_in_time(buffer, [0, 1], 18)

    def go_on() -> None:
        for number in range(18, 18 + steps):
            buffer.add(lanes=[0, 1], **racers.step(np.array([0, 1]), number))

    copy = copied(buffer, go_on)
    racers.assert_consistent(copy)
    oldest = len(copy)
    if len(copy):
        racers.read_in_time(copy, 10, 3)
    racers.write_in_time(copy, [0, 1], 30)
    racers.read_in_time(copy, 10, 3)
    racers.assert_consistent(copy)
    assert oldest > 0 or steps > 10  # then every row has made room


@both
def test_copies_are_made_while_processes_write(kind: Any, tmp_path: Path) -> None:
    buffer = kind(CAPACITY, racers.COLUMNS, storage="shared", seed=1)
    written = notes(3 * ROWS)
    one_row_in(buffer, written)
    in_processes(
        "fork",
        (racers.write, (buffer, 1, ROWS, 16, written)),
        (racers.write, (buffer, 2, ROWS, 1, written)),
        (racers.copy_again_and_again, (buffer, tmp_path / "file", 100)),
    )


@both
def test_copies_of_columns_of_time_are_made_while_processes_write(
    kind: Any, tmp_path: Path
) -> None:
    buffer = kind(2 * 61, racers.IN_TIME, lanes=2, storage="shared", seed=1)
    racers.write_in_time(buffer, [0, 1], 61)
    in_processes(
        "fork",
        (racers.write_in_time, (buffer, [0], 4000)),
        (racers.write_in_time, (buffer, [1], 4000)),
        (racers.copy_again_and_again, (buffer, tmp_path / "file", 100)),
    )


# -- Waiting -------------------------------------------------------------------------------------


def lock_of(buffer: ReplayBuffer, part: int) -> SpinLock:
    """The lock of a part of the buffer, for the test to hold."""
    first = part * LOCK_NBYTES
    memory = buffer._arena["locks"][first : first + LOCK_NBYTES]
    return SpinLock(memory, Participants(buffer._arena["participants"], is_shared=False))


def test_nobody_who_waits_for_a_lock_keeps_python_from_running() -> None:
    buffer = PrioritizedReplayBuffer(8, racers.COLUMNS, seed=1)
    written = notes(100)
    one_row_in(buffer, written)
    lock = lock_of(buffer, 0)
    ticket, _ = lock.acquire()
    calls = [
        lambda: racers.write(buffer, 1, 1, 1, written),
        lambda: buffer.update_priorities([0], [1.0]),
    ]
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    turns = 0
    for _ in range(100):
        threads[0].join(0.001)  # gives the GIL away, and needs it again
        turns += 1
        assert all(thread.is_alive() for thread in threads)
        racers.assert_whole(buffer.sample(4))  # readers wait for nobody
    assert turns == 100
    assert lock.release(ticket)
    for thread in threads:
        thread.join(60)
    assert_counted(buffer, written)
