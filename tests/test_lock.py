"""Participants and spin locks: who is alive, who has the lock, and what becomes of the dead.

What the steps of the lock mean together, in every order, is the business of test_lock_model.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest

from kary_replay._lock import LOCK_NBYTES, PARTICIPANTS_NBYTES, Participants, SpinLock

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="tells the dead by /proc"),
    # Some library of those that other tests load has threads; no child here uses it.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
NBYTES = PARTICIPANTS_NBYTES + LOCK_NBYTES + 64
SOON = 30.0  # seconds, for what takes one or two; only a failure waits so long


class Shared(NamedTuple):
    """What lies in a memory: the table, a lock, and a counter that the lock protects."""

    participants: Participants
    lock: SpinLock
    counter: np.ndarray
    entries: np.ndarray  # (256, 2): who, generation
    words: np.ndarray  # of the lock: word, asked, looked, four suspects, and a count

    @classmethod
    def of(cls, memory: np.ndarray, is_shared: bool = True) -> Shared:
        table, lock, rest = np.split(
            memory, [PARTICIPANTS_NBYTES, PARTICIPANTS_NBYTES + LOCK_NBYTES]
        )
        participants = Participants(table, is_shared=is_shared)
        entries, words = table.view(np.uint64).reshape(-1, 2), lock.view(np.uint64)
        return cls(participants, SpinLock(lock, participants), rest.view(np.int64), entries, words)

    @classmethod
    def attach(cls, path: str) -> Shared:
        with open(path, "r+b") as file:
            return cls.of(np.frombuffer(mmap.mmap(file.fileno(), NBYTES), np.uint8))

    def count(self, times: int) -> None:
        """Counts in a way that loses some where two do it at once."""
        for _ in range(times):
            ticket, _ = self.lock.acquire()
            seen = int(self.counter[0])
            self.counter[0] = seen + 1
            assert self.lock.release(ticket)


def count_in_child(path: str, times: int) -> None:
    Shared.attach(path).count(times)


def count_twice(path: str) -> None:
    """Keeps two counts that are equal whenever the lock is free, until it is killed."""
    shared = Shared.attach(path)
    while True:
        ticket, taken_over = shared.lock.acquire()
        if taken_over:
            shared.counter[1] = shared.counter[0]
        shared.counter[2] += shared.counter[0] != shared.counter[1]
        shared.counter[0] += 1
        shared.counter[1] += 1
        shared.lock.release(ticket)


def serve(path: str, connection) -> None:
    """Does what a Peer says."""
    shared = Shared.attach(path)
    me = shared.participants.me
    while True:
        method, *arguments = connection.recv()
        connection.send(me if method == "me" else getattr(shared.lock, method)(*arguments))


class Peer:
    """Another process with the same memory, which takes and releases the lock when it is told."""

    def __init__(self, path: str) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(path, theirs), daemon=True)
        self.process.start()
        self.me = self.does("me")

    def does(self, *command):
        self._connection.send(command)
        assert self._connection.poll(SOON)
        return self._connection.recv()

    def gets(self, number: int) -> None:
        """A signal, which has done its work when this returns; a zombie stays."""
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        elif number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def dies(self) -> None:
        self.gets(signal.SIGKILL)
        self.process.join()


@pytest.fixture
def path(tmp_path):
    """A file for processes to share: one of them may be spawned."""
    file = tmp_path / "memory"
    file.write_bytes(bytes(NBYTES))
    return str(file)


@pytest.fixture
def shared(path):
    return Shared.attach(path)


@pytest.fixture
def peer(path):
    peer = Peer(path)
    yield peer
    if peer.process.is_alive():
        peer.dies()


def private() -> Shared:
    block = np.zeros(NBYTES + 64, np.uint8)
    start = -block.ctypes.data % 64
    return Shared.of(block[start : start + NBYTES], is_shared=False)


def results_of_threads(function, n_threads: int) -> list:
    """What `function` returns in each of the threads that run it at the same time."""
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(function()), daemon=True)
        for _ in range(n_threads)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(results) == n_threads
    return results


def acquired(shared: Shared) -> tuple[int, bool]:
    """What `acquire` returns, by a thread of its own: it fails where it would wait for ever."""
    return results_of_threads(shared.lock.acquire, 1)[0]


def exit_code_of_fork(function) -> int:
    """Of a forked child that returns what the function does as its exit code."""
    child = os.fork()
    if child == 0:
        signal.alarm(int(SOON))
        try:
            os._exit(function())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def frequent_switches():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


# -- Participants ---------------------------------------------------------------------------------


def test_all_threads_of_a_process_are_one_participant(shared, frequent_switches):
    barrier = threading.Barrier(8)

    def join():
        barrier.wait()
        return shared.participants.me

    assert set(results_of_threads(join, 8)) == {shared.participants.me}
    assert np.count_nonzero(shared.entries[:, 0]) == 1


def test_a_participant_is_alive_until_it_leaves(shared):
    me = shared.participants.me
    assert shared.participants.is_alive(me)
    assert not shared.participants.is_stopped(me)
    shared.participants.leave()
    assert not shared.participants.is_alive(me)
    shared.participants.leave()  # does nothing


def test_who_comes_back_is_another_participant_with_the_same_entry(shared):
    before = shared.participants.me
    shared.participants.leave()
    after = shared.participants.me
    assert after & 0xFF == before & 0xFF
    assert after != before
    assert not shared.participants.is_alive(before)
    assert shared.participants.is_alive(after)


def test_nobody_is_not_alive(shared):
    assert not shared.participants.is_alive(0)
    assert not shared.participants.is_alive(1 << 8 | 17)


def test_a_forked_child_is_a_participant_of_its_own(shared):
    me = shared.participants.me
    assert exit_code_of_fork(lambda: shared.participants.me == me) == 0
    assert shared.participants.me == me


def test_a_forked_child_that_leaves_does_not_leave_for_its_parent(shared):
    me = shared.participants.me

    def leave():
        shared.participants.leave()
        return 0

    assert exit_code_of_fork(leave) == 0
    assert shared.participants.is_alive(me)


@pytest.mark.parametrize("reaped", [False, True])
def test_a_killed_process_is_dead_reaped_or_not(shared, peer, reaped):
    assert shared.participants.is_alive(peer.me)
    peer.gets(signal.SIGKILL)
    if reaped:
        peer.process.join()
    assert not shared.participants.is_alive(peer.me)


def test_a_stopped_process_is_alive(shared, peer):
    peer.gets(signal.SIGSTOP)
    assert shared.participants.is_stopped(peer.me)
    assert shared.participants.is_alive(peer.me)
    peer.gets(signal.SIGCONT)
    peer.does("me")
    assert not shared.participants.is_stopped(peer.me)


def test_a_process_with_the_pid_of_a_dead_one_is_not_taken_for_it(shared, peer):
    shared.entries[peer.me & 0xFF, 0] -= np.uint64(1)  # a tick earlier, with the same pid
    assert not shared.participants.is_alive(peer.me)


def test_dead_participants_make_room_in_a_full_table(shared, peer):
    peer.dies()
    shared.entries[1:, 0] = shared.entries[peer.me & 0xFF, 0]
    me = shared.participants.me
    assert shared.participants.is_alive(me)
    assert me != peer.me


def test_a_table_full_of_the_living_is_an_error(shared, peer):
    shared.entries[1:, 0] = shared.entries[peer.me & 0xFF, 0]
    with pytest.raises(RuntimeError, match="at most 255 processes can use this memory at once"):
        _ = shared.participants.me
    shared.entries[200, 0] = 0
    assert shared.participants.me & 0xFF == 200


# -- Locks ----------------------------------------------------------------------------------------


def test_a_lock_names_its_holder_and_no_ticket_comes_twice(shared):
    assert shared.lock.holder == 0
    first, taken_over = shared.lock.acquire()
    assert not taken_over
    assert shared.lock.holder == shared.participants.me
    assert shared.lock.release(first)
    assert shared.lock.holder == 0
    assert shared.lock.acquire()[0] > first


def test_only_the_ticket_releases(shared):
    first, _ = shared.lock.acquire()
    assert shared.lock.release(first)
    assert not shared.lock.release(first)
    second, _ = shared.lock.acquire()
    assert not shared.lock.release(first)
    assert shared.lock.holder == shared.participants.me
    assert shared.lock.release(second)


@pytest.mark.parametrize("make", [private, None], ids=["private", "shared"])
def test_threads_exclude_one_another(make, shared, frequent_switches):
    shared = make() if make else shared
    results_of_threads(lambda: shared.count(2000), 8)
    assert shared.counter[0] == 16_000


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_exclude_one_another(path, shared, start):
    context = multiprocessing.get_context(start)
    processes = [context.Process(target=count_in_child, args=(path, 10_000)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert shared.counter[0] == 30_000


def test_who_waits_does_not_hold_the_gil(shared):
    ticket, _ = shared.lock.acquire()
    waiter = threading.Thread(target=shared.count, args=(1,), daemon=True)
    waiter.start()
    waiter.join(0.05)  # with the GIL held over there, this would never return
    assert waiter.is_alive()
    assert shared.lock.release(ticket)
    waiter.join(SOON)
    assert shared.counter[0] == 1


@pytest.mark.parametrize("reaped", [False, True])
def test_one_waiter_takes_over_from_a_dead_holder(shared, peer, reaped):
    peer.does("acquire")
    assert shared.lock.holder == peer.me
    peer.gets(signal.SIGKILL)
    if reaped:
        peer.process.join()

    def acquire():
        ticket, taken_over = shared.lock.acquire()
        assert shared.lock.release(ticket)
        return taken_over

    assert sorted(results_of_threads(acquire, 4)) == [False, False, False, True]


def test_whenever_processes_are_killed_the_others_go_on(path, shared):
    context = multiprocessing.get_context("fork")
    takeovers = 0
    for _ in range(30):
        processes = [context.Process(target=count_twice, args=(path,)) for _ in range(2)]
        for process in processes:
            process.start()
        before = shared.counter[0]
        while shared.counter[0] < before + 100:
            time.sleep(0.001)
        for process in processes:
            process.kill()
            process.join()
        ticket, taken_over = acquired(shared)
        if taken_over:
            shared.counter[1] = shared.counter[0]
        assert shared.counter[0] == shared.counter[1]
        assert shared.counter[2] == 0
        assert shared.lock.release(ticket)
        takeovers += taken_over
    assert takeovers > 5  # or else hardly one was killed inside


def test_a_dead_holder_is_not_taken_for_who_has_its_entry_now(shared, peer):
    peer.does("acquire")
    peer.dies()
    shared.entries[1:, 0] = shared.entries[peer.me & 0xFF, 0]  # no other entry is free
    assert shared.participants.me & 0xFF == peer.me & 0xFF
    assert acquired(shared)[1]


def test_a_holder_that_has_left_is_taken_over_from(shared):
    ticket, _ = shared.lock.acquire()
    shared.participants.leave()
    after, taken_over = acquired(shared)
    assert taken_over
    assert not shared.lock.release(ticket)
    assert shared.lock.release(after)


def test_a_stopped_holder_is_told_that_it_lost_the_lock(shared, peer):
    lost, _ = peer.does("acquire")
    peer.gets(signal.SIGSTOP)
    ticket, taken_over = acquired(shared)
    assert taken_over
    peer.gets(signal.SIGCONT)
    assert not peer.does("release", lost)
    assert shared.lock.holder == shared.participants.me
    assert shared.lock.release(ticket)
    again, _ = peer.does("acquire")
    assert peer.does("release", again)


def test_what_a_stopped_holder_stored_after_it_lost_the_lock_is_repaired_when_it_is_dead(
    shared, peer
):
    peer.does("acquire")
    peer.gets(signal.SIGSTOP)
    ticket, _ = acquired(shared)
    shared.lock.release(ticket)
    assert not must_repair(shared)  # it may come back, and then repairs by itself
    peer.dies()
    assert must_repair(shared)
    assert not must_repair(shared)
    assert not shared.words[3:7].any()


def must_repair(shared: Shared) -> bool:
    """Whether the next holder is asked to rebuild, as if it were time to look at suspects."""
    shared.words[2] = 0
    ticket, taken_over = shared.lock.acquire()
    assert shared.lock.release(ticket)
    return taken_over


def test_no_room_for_a_suspect_means_no_takeover(shared, peer):
    peer.does("acquire")
    peer.gets(signal.SIGSTOP)
    shared.words[3:7] = shared.participants.me  # alive, as far as anyone can tell
    waiter = threading.Thread(target=shared.count, args=(1,), daemon=True)
    waiter.start()
    waiter.join(1.5)
    assert shared.lock.holder == peer.me
    shared.words[5] = 0
    waiter.join(SOON)
    assert shared.words[5] == peer.me
    assert shared.lock.holder == 0


def test_a_fork_of_private_memory_is_free_of_the_threads_that_stayed_behind():
    memory = private()
    memory.lock.acquire()
    assert exit_code_of_fork(lambda: memory.lock.acquire()[1] is not True) == 0


def test_a_waiter_that_died_impatient_does_not_stop_others(shared):
    shared.words[1] = time.monotonic_ns()
    ticket, taken_over = acquired(shared)
    assert not taken_over
    assert shared.words[1] == 0
    assert shared.lock.release(ticket)


# -- Their memory ---------------------------------------------------------------------------------


def test_a_lock_fills_a_cache_line():
    assert LOCK_NBYTES == 64


@pytest.mark.parametrize(
    ("memory", "error", "message"),
    [
        (None, TypeError, "memory must be a uint8 array, got None"),
        (np.zeros(64), TypeError, "memory must be a uint8 array, got dtype"),
        (np.zeros(63, np.uint8), ValueError, r"memory must have shape \(64,\), got \(63,\)"),
        (np.zeros(128, np.uint8)[::2], ValueError, "memory must be contiguous and writable"),
    ],
)
def test_memory_that_a_lock_cannot_lie_in(memory, error, message):
    with pytest.raises(error, match=message):
        SpinLock(memory, private().participants)


def test_memory_between_cache_lines():
    block = np.zeros(128 + 64, np.uint8)
    start = -block.ctypes.data % 64 + 8
    with pytest.raises(ValueError, match="memory must begin at a multiple of 64 bytes, got"):
        SpinLock(block[start : start + 64], private().participants)
