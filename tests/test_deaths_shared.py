"""Processes that die, or are stopped and come back, anywhere in what they do to a shared buffer."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import racers
from deaths import Marked, Traced, forks, instructions, no_fork_warning, steps_through

from kary_replay import PrioritizedReplayBuffer, ReplayBuffer
from kary_replay._lock import LOCK_NBYTES, Participants, SpinLock

pytestmark = [
    pytest.mark.deaths,
    forks,
    no_fork_warning,
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="tells the dead by /proc"),
]
Block = npt.NDArray[np.uint8]
KINDS = [PrioritizedReplayBuffer, ReplayBuffer]
both = pytest.mark.parametrize("kind", KINDS, ids=["prioritized", "uniform"])
SMALL = {"token": ((), np.int64), "other": ((2,), np.int64)}
CAPACITY = 20  # three parts
SOON = 20.0  # seconds, for what takes some hundredths; only a failure waits so long
INTERRUPTED = 77
FOUND = 7.0  # the mass of some rows; no other has it


# -- At every instruction -----------------------------------------------------------------------


def small_rows(tokens: Any) -> dict[str, Any]:
    tokens = np.asarray(tokens)
    return {"token": tokens, "other": np.repeat(tokens[:, None], 2, axis=1)}


def small_buffer(kind: Any, **settings: Any) -> ReplayBuffer:
    """A full one, whose keys are the tokens."""
    if kind is PrioritizedReplayBuffer:
        settings |= {"alpha": 1.0, "eps": 0.0}
    buffer: ReplayBuffer = kind(CAPACITY, SMALL, storage="shared", seed=1, **settings)
    buffer.add(**small_rows(np.arange(CAPACITY)))
    return buffer


def block_of(buffer: ReplayBuffer) -> Block:
    """All of the shared memory."""
    block: Block = buffer._arena._holder.block()  # type: ignore[union-attr]
    return block


def watched(buffer: ReplayBuffer, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, whose child is stopped before and after what it does in compiled code."""

    def marked() -> None:
        buffer._ring = Marked(buffer._ring, ("insert", "update"))  # type: ignore[assignment]
        call()

    return marked


def changes(buffer: ReplayBuffer, call: Callable[[], Any]) -> Iterator[tuple[int, Block]]:
    """The numbers of the instructions that change a byte, and the memory behind each."""
    block = block_of(buffer)
    before = block.tobytes()
    for number, _ in enumerate(instructions(watched(buffer, call))):
        now = block.tobytes()
        if now != before:
            yield number, np.frombuffer(now, np.uint8)
        before = now


def assert_goes_on(buffer: ReplayBuffer, first: int, lost: frozenset[int] = frozenset()) -> None:
    """A survivor draws, updates and adds; what was there is there, and all places are of use.

    first : a key behind all that were handed out to the dead
    lost : tokens of rows that the dead may have replaced
    """
    there = {*range(CAPACITY)} - lost
    assert len(buffer) == len(racers.drawable_keys(buffer))
    for _ in range(3):
        assert_small_and_whole(buffer.sample(16))
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer.update_priorities(np.arange(CAPACITY), np.ones(CAPACITY))
    keys = buffer.add(**small_rows([1000]))
    there -= {int(keys[0]) - CAPACITY}
    tokens = buffer.view("token")[racers.drawable_keys(buffer) % CAPACITY].tolist()
    assert there <= set(tokens)
    assert 1000 in tokens
    racers.assert_consistent(buffer)
    for token in range(first, first + CAPACITY):
        buffer.add(**small_rows([token]))
    assert len(buffer) == CAPACITY
    racers.assert_consistent(buffer)
    assert_small_and_whole(buffer.sample(64))


def assert_small_and_whole(batch: Any) -> None:
    assert (batch["other"] == batch["token"][:, None]).all()


@both
@steps_through
@pytest.mark.parametrize("count", [1, 3])
def test_survivors_go_on_wherever_a_writer_dies(kind: Any, count: int) -> None:
    buffer = small_buffer(kind)
    new = small_rows(np.arange(CAPACITY, CAPACITY + count))
    states = [state for _, state in changes(buffer, lambda: buffer.add(**new))]
    assert len(states) > 8 * count
    block = block_of(buffer)
    for state in states:
        block[:] = state
        assert_goes_on(buffer, CAPACITY + count, frozenset(range(count)))


@steps_through
def test_survivors_go_on_wherever_an_updater_dies() -> None:
    buffer = small_buffer(PrioritizedReplayBuffer)
    keys = np.array([0, 7, 8, 19, 3])
    states = [
        state
        for _, state in changes(buffer, lambda: buffer.update_priorities(keys, np.arange(2.0, 7.0)))
    ]
    assert len(states) > 10
    block = block_of(buffer)
    for state in states:
        block[:] = state
        assert_goes_on(buffer, CAPACITY)


@both
@steps_through
def test_survivors_go_on_wherever_a_writer_of_columns_of_time_dies(kind: Any) -> None:
    buffer = kind(2 * 10, racers.IN_TIME, lanes=2, storage="shared", seed=1)
    racers.write_in_time(buffer, [0, 1], 17)  # the next one goes on in an episode
    new = racers.step(np.array([0, 1]), 17)
    states = [state for _, state in changes(buffer, lambda: buffer.add(lanes=[0, 1], **new))]
    assert len(states) > 30
    block = block_of(buffer)
    for state in states:
        block[:] = state
        assert len(buffer) == len(racers.drawable_keys(buffer))
        racers.read_in_time(buffer, 3, 1)
        for number in range(21, 42):  # of later episodes: those of the dead are cut off
            buffer.add(lanes=[0, 1], **racers.step(np.array([0, 1]), number))
            racers.assert_consistent(buffer)
        racers.read_in_time(buffer, 3, 1)


@steps_through
@pytest.mark.parametrize("fanout", [2, 8, 128])
def test_nobody_meets_a_total_of_nodes_that_wait_to_be_recomputed(fanout: int) -> None:
    """While one updates a part, others add up the nodes above the parts."""
    buffer = PrioritizedReplayBuffer(
        200, SMALL, storage="shared", seed=1, alpha=1.0, eps=0.0, fanout=fanout
    )
    buffer.add(**small_rows(np.arange(200)))
    tree, owed = buffer._sampler.tree, buffer._arena["updates"][1:, 0]
    totals = set()
    update = watched(buffer, lambda: buffer.update_priorities([0, 1, 150], [8.0, 8.0, 8.0]))
    for _ in instructions(update):
        owed[:] = -1
        assert len(buffer) == 200  # adds up the nodes, unless the other is at it
        totals.add(tree.total)
    assert {200.0, 221.0} <= totals <= {200.0, 207.0, 214.0, 221.0}


# -- Stopped inside a lock, and back -------------------------------------------------------------


def stopped(
    make: Callable[[], ReplayBuffer],
    call: Callable[[ReplayBuffer], Any],
    meanwhile: Callable[[ReplayBuffer], Any],
) -> Iterator[ReplayBuffer]:
    """Children make the call, each with a buffer of its own, and are stopped: one instruction
    before a change that comes while a lock is held, another change for each child.
    This process does something else to their buffers, and then they go on to their ends.

    They are stopped together, because nobody takes a lock from one that has just been stopped.
    """
    places = changes_inside(make(), call)
    buffers = [make() for _ in places]
    children = [
        stopped_at(place, buffer, call) for place, buffer in zip(places, buffers, strict=True)
    ]
    with ThreadPoolExecutor(len(places)) as pool:
        list(pool.map(meanwhile, buffers))
    for child, buffer in zip(children, buffers, strict=True):
        child.finish()
        yield buffer
        buffer.close()
    assert len(places) >= 2


def changes_inside(buffer: ReplayBuffer, call: Callable[[ReplayBuffer], Any]) -> list[Place]:
    """The last place before each change of memory that is made with a lock."""
    block = block_of(buffer)
    places, previous, before = [], None, block.tobytes()
    for place in inside(buffer, waiting(buffer, call)):
        now = block.tobytes()
        if previous is not None and now != before:
            places.append(previous)
        previous, before = place, now
    return places


def stopped_at(place: Place, buffer: ReplayBuffer, call: Callable[[ReplayBuffer], Any]) -> Traced:
    child = waiting(buffer, call)
    assert any(here == place for here in inside(buffer, child))
    return child


def waiting(buffer: ReplayBuffer, call: Callable[[ReplayBuffer], Any]) -> Traced:
    """A child on its way into the first lock that it takes in the call.

    It is kept waiting there; before, it makes ten times as many instructions as afterwards.
    """
    memory = buffer._arena["locks"].reshape(-1, LOCK_NBYTES)
    asked = memory.view(np.uint64)[:, 1]
    participants = Participants(buffer._arena["participants"])
    locks = [SpinLock(each, participants) for each in memory]
    tickets = [lock.acquire()[0] for lock in locks]
    child = Traced(lambda: call(buffer))
    began = time.monotonic()
    while not asked.any():
        time.sleep(0.001)
        assert time.monotonic() - began < SOON
    child.stop()
    for lock, ticket in zip(locks, tickets, strict=True):
        assert lock.release(ticket)
    participants.leave()
    return child


def inside(buffer: ReplayBuffer, child: Traced) -> Iterator[Place | None]:
    """Lets a child make one instruction after another; where it is, if it holds a lock."""
    holders = buffer._arena["locks"].view(np.uint64)[:: LOCK_NBYTES // 8]
    visit = instruction = 0
    was_inside = False
    while child.step():
        is_inside = bool((holders & np.uint64(0xFFFFFF)).any())
        visit += is_inside and not was_inside
        instruction = instruction + 1 if was_inside else 0
        was_inside = is_inside
        yield Place(visit, instruction) if is_inside else None


class Place(NamedTuple):
    """Where a child is that holds the lock of a part, or of the top."""

    visit: int  # counts locks
    instruction: int  # since it took this one


def replace_all(buffer: ReplayBuffer, mass: float) -> None:
    """All rows but those that somebody is writing."""
    more = {"td_errors": [mass]} if isinstance(buffer, PrioritizedReplayBuffer) else {}
    for _ in range(CAPACITY):
        buffer.add(**small_rows([int(buffer._ring.heads[0])]), **more)
        assert_small_and_whole(buffer.sample(8))


@steps_through
@pytest.mark.parametrize("newcomers_mass", [FOUND, 9.0])
def test_an_updater_that_lost_its_lock_changes_nobody_elses_mass(newcomers_mass: float) -> None:
    """Stopped between its look at the key and its store, and wherever else it has the lock."""

    def make() -> ReplayBuffer:
        buffer = small_buffer(PrioritizedReplayBuffer)
        buffer.update_priorities(np.arange(CAPACITY), np.full(CAPACITY, FOUND))
        return buffer

    for buffer in stopped(
        make,
        lambda buffer: buffer.update_priorities([0], [3.0]),
        lambda buffer: replace_all(buffer, newcomers_mass),
    ):
        assert set(buffer._sampler.tree.masses().tolist()) == {newcomers_mass}
        racers.assert_consistent(buffer)


@both
@steps_through
def test_a_writer_that_lost_its_lock_publishes_its_row_all_the_same(kind: Any) -> None:
    for buffer in stopped(
        lambda: small_buffer(kind),
        lambda buffer: buffer.add(**small_rows([20])),
        lambda buffer: replace_all(buffer, FOUND),
    ):
        racers.assert_consistent(buffer)
        assert len(buffer) == CAPACITY


@steps_through
@pytest.mark.parametrize("fanout", [2, 8])  # with several levels above the parts, and one
def test_the_sums_of_the_dead_are_made_right_by_those_who_only_draw_or_update(fanout: int) -> None:
    buffer = small_buffer(PrioritizedReplayBuffer, fanout=fanout)
    keys = np.arange(CAPACITY)
    states = [
        state
        for _, state in changes(
            buffer, lambda: buffer.update_priorities(keys, np.full(CAPACITY, FOUND))
        )
    ]
    block = block_of(buffer)
    for state in states:
        block[:] = state
        buffer.sample(8)
        tree = buffer._sampler.tree
        assert tree.total == tree.masses().sum()
        block[:] = state
        buffer.update_priorities([CAPACITY - 1], [3.0])  # takes the top over, perhaps
        buffer.sample(8)
        tree.check()


@steps_through
@pytest.mark.parametrize("rows", [8, 10, 11])
def test_a_writer_of_columns_of_time_that_lost_its_lock_takes_nobody_elses_mass(rows: int) -> None:
    """Stopped between the tag of a row whose windows are cut, and that row's mass; or before its
    own row is published, whose windows are cut meanwhile, so that it must have none.
    """

    def make() -> ReplayBuffer:
        buffer = PrioritizedReplayBuffer(
            2 * 10, racers.IN_TIME, lanes=2, storage="shared", seed=1, alpha=1.0, eps=0.0
        )
        racers.write_in_time(buffer, [0, 1], 17)
        return buffer

    def go_on(buffer: ReplayBuffer) -> None:
        for number in range(40, 40 + rows):
            buffer.add(lanes=[0, 1], **racers.step(np.array([0, 1]), number))

    new = racers.step(np.array([0]), 17)
    for buffer in stopped(make, lambda buffer: buffer.add(lanes=[0], **new), go_on):
        racers.assert_consistent(buffer)


@both
def test_a_writer_that_waits_for_a_place_can_be_interrupted(kind: Any) -> None:
    """The only one is held by a process that is alive and never goes on: this one."""
    buffer = kind(1, SMALL, storage="shared")
    buffer.add(**small_rows([0]))
    this_process, step_being_written = 1, 4 | 16
    buffer._arena["tags"][0] = this_process << 8 | step_being_written
    child = multiprocessing.get_context("fork").Process(
        target=add_until_interrupted, args=(buffer,)
    )
    child.start()
    while buffer._ring.heads[0] == 1:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGINT)
    child.join(SOON)
    assert child.exitcode == INTERRUPTED


def add_until_interrupted(buffer: ReplayBuffer) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which the tests' shell may ignore
    try:
        buffer.add(**small_rows([1]))
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


# -- At any moment ------------------------------------------------------------------------------


def forever(buffer: ReplayBuffer, role: int, writer: int, token_of: Any) -> None:
    rng = np.random.default_rng(writer)
    while True:
        if role == 0:
            racers.write(buffer, writer, 40, 40, token_of)
        elif role == 1:
            racers.update(buffer, rng.integers(0, buffer._ring.heads[0], 200), rng)
        else:
            racers.assert_whole(buffer.sample(32))


def die_by_turns(kind: Any, deaths: int) -> float:
    """Three children at work; one at a time is killed, and another takes its place.

    Returns the longest time, in seconds, that an insert, a draw and an update took right after.
    """
    context = multiprocessing.get_context("fork")
    rng = np.random.default_rng(1)
    buffer = kind(257, racers.COLUMNS, storage="shared", seed=1)
    token_of = context.RawArray("q", 50_000_000)
    written = np.frombuffer(token_of, np.int64)
    racers.write(buffer, 1, 257, 257, token_of)

    def new(number: int) -> Any:
        child = context.Process(target=forever, args=(buffer, number % 3, 2, token_of), daemon=True)
        child.start()
        return child

    longest = 0.0
    children = [new(number) for number in range(3)]
    try:
        for number in range(deaths):
            time.sleep(rng.uniform(0.0, 0.02))
            child = children[number % 3]
            assert child.exitcode is None
            os.kill(child.pid, signal.SIGKILL)
            began = time.monotonic()
            racers.write(buffer, 1, 3, 1, token_of)
            racers.assert_whole(buffer.sample(32))
            racers.update(buffer, np.arange(buffer._ring.heads[0])[-50:], rng)
            longest = max(longest, time.monotonic() - began)
            child.join()
            children[number % 3] = new(number)
    finally:
        for child in children:
            child.kill()
            child.join()
    buffer._parts.settle()
    racers.assert_consistent(buffer)
    head = int(buffer._ring.heads[0])
    first = max(0, head - 257)
    kept = first + np.flatnonzero(written[first:head])
    assert buffer._ring.live(kept).all(), "a row that was published is lost"
    assert np.array_equal(buffer.view("token")[kept % 257], written[kept])
    racers.write(buffer, 1, 257, 1, token_of)
    assert len(buffer) == 257, "a place of the dead is of no use"
    racers.assert_consistent(buffer)
    racers.assert_whole(buffer.sample(500))
    return longest


@both
def test_whoever_dies_the_others_go_on(kind: Any) -> None:
    assert die_by_turns(kind, 30) < SOON


@both
@pytest.mark.slow
def test_whoever_dies_a_thousand_times_the_others_go_on(kind: Any, capsys: Any) -> None:
    longest = max(die_by_turns(kind, 100) for _ in range(10))
    with capsys.disabled():
        sys.stdout.write(f"\nthe others went on within {1000 * longest:.0f} ms\n")
    assert longest < SOON
