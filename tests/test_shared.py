"""Shared storage: one memory in several processes, whoever ends when."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import children
import numpy as np
import pytest

from kary_replay import (
    Column,
    LinearSchedule,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Stored,
    _room,
    shared,
    streams,
    t,
)
from kary_replay.arena import allocate

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),  # of threads; there are none
]

METHODS = ["fork", "spawn", "forkserver"]
NUMBER = {"number": ((), np.int64)}
COLUMNS = NUMBER | {"obs": ((2,), ">f4")}


@pytest.fixture(params=METHODS)
def context(request: pytest.FixtureRequest) -> Any:
    return multiprocessing.get_context(request.param)


def small(kind: Any = ReplayBuffer, **options: Any) -> Any:
    buffer = kind(8, NUMBER, storage="shared", **{"seed": 0} | options)
    buffer.add(number=[1, 2, 3])
    return buffer


def assert_same(here: dict[str, Any], there: dict[str, Any]) -> None:
    assert here.keys() == there.keys()
    for name in here:
        np.testing.assert_array_equal(here[name], there[name], name)


# --- one memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_what_one_process_adds_the_other_has(context: Any, kind: Any) -> None:
    options: Any = {}
    if kind is PrioritizedReplayBuffer:
        beta = LinearSchedule(0.2, 1.0, 10)
        options = {"alpha": 0.3, "beta": beta, "eps": 0.5, "weight_norm": "buffer"}
        options |= {"stratified": False, "fanout": 4}
    buffer = kind(12, COLUMNS, lanes=2, storage="shared", seed=0, **options)
    buffer.add(**children.rows(0, 6), lanes=[0, 1, 0, 0, 0, 0])
    if options:
        buffer.update_priorities([0, 2], [3.0, -4.0])
        buffer.sample(3)
    here, there = children.content(buffer), children.call(context, children.is_shared, buffer)
    assert there[0]
    assert_same(here, there[1])
    keys, there = children.call(context, children.add, buffer, children.rows(6, 2))
    assert_same(children.content(buffer), there)
    assert keys.tolist() == [10, 3]
    assert len(buffer) == 8
    drawn = buffer.sample(200)
    assert set(drawn["number"].tolist()) == set(range(8))
    assert (drawn["obs"][:, 1] == -drawn["number"]).all()
    buffer.close()


def test_columns_of_time_travel(context: Any) -> None:
    columns: Any = {
        "frame": Stored((), np.uint8, with_next=True),
        "reward": ((), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
        "obs": Column("frame")[t - 2 : t + 1],
        "next_obs": Column("frame")[t - 1 : t + 2],
    }
    buffer = ReplayBuffer(12, columns, storage="shared", seed=0)
    row = {"frame": 1, "next_frame": 2, "reward": 0.5, "terminated": False, "truncated": False}
    buffer.add(**row)
    more = {name: [value] for name, value in row.items()} | {"frame": [2], "next_frame": [3]}
    _, there = children.call(context, children.add, buffer, more)
    assert_same(children.content(buffer), there)
    draw = buffer.sample(50)
    assert {tuple(map(int, frames)) for frames in draw["next_obs"]} == {(0, 1, 2), (1, 2, 3)}


def test_two_buffers_and_one_of_them_twice(context: Any) -> None:
    one, two = small(), small()
    is_one, there = children.call(context, children.same, one, [one, two])
    assert is_one
    np.testing.assert_array_equal(there, children.content(two)["rows"])
    assert one.view("number")[:4].tolist() == [1, 2, 3, 9]


def test_a_handle_is_handed_on(context: Any) -> None:
    buffer = small()  # strata would leave little to chance
    of_grandchild, of_child = children.call(context, children.draw_or_pass_on, context, buffer)
    assert {*of_grandchild, *of_child} == {0, 1, 2}
    assert of_grandchild != of_child


def test_the_handle_is_kept_from_programs_that_a_child_runs(context: Any) -> None:
    assert children.call(context, children.inheritable, small()) == {False}


# --- a copy elsewhere -----------------------------------------------------------------------


def through_a_queue(buffer: ReplayBuffer) -> ReplayBuffer:
    queue = multiprocessing.get_context("fork").SimpleQueue()
    queue.put(buffer)
    received: ReplayBuffer = queue.get()
    queue.close()
    return received


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    "copied", [lambda buffer: pickle.loads(pickle.dumps(buffer)), copy.deepcopy, through_a_queue]
)
def test_elsewhere_it_is_copied_into_a_private_one(kind: Any, copied: Any) -> None:
    buffer = small(kind)
    other = copied(buffer)
    assert not other._arena.is_shared
    other_content = children.content(other)
    nbytes = other_content.pop("nbytes")
    assert_same({n: c for n, c in children.content(buffer).items() if n != "nbytes"}, other_content)
    assert nbytes == buffer.nbytes + 64  # what aligns it
    twin = buffer.sample(9).keys.tolist()
    other.add(number=[4])
    assert len(buffer) == 3
    assert copied(other).sample(9).keys.tolist() != twin  # of 4 rows
    assert copied(pickle.loads(pickle.dumps(buffer))).sample(9).keys.tolist() == (
        buffer.sample(9).keys.tolist()
    )


def test_a_task_of_a_pool_gets_a_copy() -> None:
    buffer = small()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        is_shared, there = pool.apply(children.is_shared, (buffer,))
        pool.close()
        pool.join()
    assert not is_shared
    np.testing.assert_array_equal(there["rows"], children.content(buffer)["rows"])


def test_an_arena_alone_is_not_copied() -> None:
    for storage in ("private", "shared"):
        arena = allocate({"rows": ((3,), "i8")}, storage)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="only for a child process that shares it"):
                copied(arena)


def test_an_arena_is_handed_over_with_its_layout() -> None:
    layout: Any = {"rows": ((3,), np.dtype("i8"))}
    arena = allocate(layout, "shared")
    assert allocate(dict(layout), arena) is arena
    with pytest.raises(ValueError, match="layout must be that of the arena"):
        allocate({"rows": ((4,), np.dtype("i8"))}, arena)


# --- generators -----------------------------------------------------------------------------

FAMILY = """
import multiprocessing
import children
from kary_replay import ReplayBuffer

def silent(context, buffer):
    return children.call(context, children.draw, buffer)

if __name__ == "__main__":
    buffer = ReplayBuffer(1000, {"number": ((), "i8")}, storage="shared", seed=5)
    buffer.add(number=range(1000))
    for method in ("fork", "spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(method)
        print(children.call(context, children.draw, buffer))
        print(*children.call(context, children.draw_or_pass_on, context, buffer), sep="\\n")
        print(children.call(context, silent, context, buffer))
    print(children.draw(buffer))
"""


def test_draws_of_a_family_differ_and_repeat(tmp_path: Path) -> None:
    """Children, grandchildren, and those of a child that draws nothing itself."""
    runs = [script(tmp_path, FAMILY) for _ in range(2)]
    (one, errors), (two, _) = (run.communicate(timeout=100) for run in runs)
    assert errors == ""
    draws = one.splitlines()
    assert len(set(draws)) == len(draws) == 4 * 4 + 1
    assert one == two
    private = ReplayBuffer(1000, NUMBER, seed=5)
    private.add(number=range(1000))
    assert draws[-1] == str(children.draw(private)), "the creator's own are as without children"


def test_a_forked_child_saves_and_hands_over_its_own_generator(tmp_path: Path) -> None:
    buffer = small()
    fork = multiprocessing.get_context("fork")
    copies = [children.call(fork, copy.copy, buffer) for _ in range(2)]
    draws = [each.sample(16).keys.tolist() for each in [*copies, buffer]]
    assert draws[0] != draws[1] != draws[2] != draws[0]


@pytest.mark.parametrize("name", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_generators_of_all_kinds_have_children_and_stay_as_they_are(name: str) -> None:
    rng = np.random.Generator(getattr(np.random, name)(7))
    before = copy.deepcopy(rng)
    lineage = streams.Lineage()
    assert lineage.of_this_process(rng) is rng
    firsts = [lineage.of_next_child(rng).random() for _ in range(3)]
    assert len({*firsts, rng.random()}) == 4
    before.random()
    assert before.random() == rng.random()


# --- life and death -------------------------------------------------------------------------


def test_a_closed_buffer_refuses_everything(context: Any) -> None:
    buffer = small(PrioritizedReplayBuffer)
    batch = buffer.sample(2)
    buffer.close()
    buffer.close()
    assert repr(buffer) == "PrioritizedReplayBuffer(closed)"
    process = context.Process(target=children.draw, args=(buffer,))
    uses = [
        lambda: buffer.add(number=[1]),
        lambda: buffer.sample(1),
        lambda: buffer.update_priorities(batch.keys, [1.0, 2.0]),
        lambda: buffer.view("number"),
        lambda: len(buffer),
        lambda: buffer.beta,
        lambda: pickle.dumps(buffer),
        lambda: copy.deepcopy(buffer),
        *([process.start] if context.get_start_method() != "fork" else []),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="the buffer is closed"):
            use()


def test_what_a_child_closes_stays_with_the_others(context: Any) -> None:
    buffer = small()
    assert children.call(context, children.close_twice, buffer) == (2, 1)
    assert buffer.view("number")[:4].tolist() == [1, 2, 3, 7]
    assert len(children.call(context, children.draw, buffer)) == 16


@pytest.mark.parametrize("end", ["close", "forget"])
def test_memory_and_descriptors_come_back(end: str) -> None:
    small().close()  # loads what is loaded once
    gc.collect()
    before = children.descriptors(), children.shared_mappings()
    for _ in range(8):
        buffer = small(PrioritizedReplayBuffer)
        assert children.descriptors() > before[0]
        inode = os.fstat(buffer._arena._holder.fd).st_ino
        if end == "close":
            buffer.close()
        else:
            del buffer
            gc.collect()
        assert (children.descriptors(), children.shared_mappings()) == before
    assert children.holders(inode) == set()


def test_handing_over_leaves_nothing_behind(context: Any) -> None:
    children.call(context, children.draw, small())  # starts the servers that there are
    gc.collect()
    before = children.descriptors(), children.shared_mappings()
    buffer = small()
    inode = os.fstat(buffer._arena._holder.fd).st_ino
    for _ in range(2):
        children.call(context, children.draw, buffer)
    assert children.holders(inode) == {os.getpid()}
    buffer.close()
    gc.collect()
    assert (children.descriptors(), children.shared_mappings()) == before


def test_a_fork_while_a_thread_joins_leaves_a_child_that_can_join() -> None:
    """Joining looks through all rows, while a lock is held that the child inherits."""
    buffer = ReplayBuffer(2_000_000, NUMBER, storage="shared")
    thread = threading.Thread(target=buffer.add, kwargs={"number": 1})
    thread.start()
    child = multiprocessing.get_context("fork").Process(target=buffer.add, kwargs={"number": 2})
    child.start()
    child.join(10)
    ended = child.exitcode
    child.kill()
    child.join()
    thread.join()
    assert ended == 0
    assert len(buffer) == 2


def test_whoever_gets_the_number_of_a_dead_process_gives_up_its_rows() -> None:
    """With the mass that one has already, if the dead was about to let it be drawn."""
    buffer = small(PrioritizedReplayBuffer)
    nobody = np.uint64(1 << 62 | 1)  # a process that never was
    who = buffer._arena["participants"].view(np.uint64)[::2]
    who[2:] = nobody
    step_being_written, number = 4 | 16, 2
    buffer._ring.heads[0] += 1
    buffer._arena["tags"][3] = 3 << 16 | number << 8 | step_being_written
    buffer._parts.restore([1.0] * 4 + [0.0] * 4)
    child = multiprocessing.get_context("fork").Process(target=buffer.add, kwargs={"number": 9})
    child.start()
    child.join()
    assert who[number] != nobody
    assert buffer._sampler.tree.masses().tolist() == [1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert buffer._sampler.tree.total == len(buffer) == 4


def test_an_array_outlives_its_closed_buffer() -> None:
    buffer = small()
    view = buffer.view("number")
    buffer.close()
    assert view[:3].tolist() == [1, 2, 3]


FAMILY_THAT_DIES = """
import multiprocessing, os, signal, sys, time
import children
from kary_replay import PrioritizedReplayBuffer

signal.signal(signal.SIGINT, signal.default_int_handler)  # which the tests' shell may ignore

def work(buffer, ready, turn, then):
    ready.send(os.getpid())
    if then == "wait":
        os.read(turn[0].fileno(), 1)  # one byte, for one of those who wait
    if then == "fail":
        sys.exit(3)
    try:
        while then == "forever":
            buffer.add(number=[1])
            buffer.sample(8)
    except KeyboardInterrupt:
        sys.exit(4)
    print("child", buffer.add(number=[5]), buffer.sample(64)["number"].max())
    os.write(turn[1].fileno(), b"!")

def pass_on(context, *arguments):
    start(context, *arguments)

def start(context, *arguments, target=work, daemon=False):
    child = context.Process(target=target, args=arguments, daemon=daemon)
    child.start()
    return child

if __name__ == "__main__":
    method, ending = sys.argv[1:]
    context = multiprocessing.get_context(method)
    buffer = PrioritizedReplayBuffer(100, {"number": ((), "i8")}, storage="shared", seed=0)
    buffer.add(number=[1, 2, 3])
    cycle = [buffer]
    cycle.append(cycle)
    assert children.named_mappings() == []
    ready, there = context.Pipe(duplex=False)
    turn = context.Pipe(duplex=False)
    print("memory", os.fstat(buffer._arena._holder.fd).st_ino)
    if ending == "normal":
        killed = start(context, buffer, there, turn, "forever")
        os.kill(ready.recv(), signal.SIGKILL)
        killed.join()
        failed = start(context, buffer, there, turn, "fail")
        failed.join()
        print("ended", killed.exitcode, failed.exitcode)
        buffer.add(number=[4])
    elif ending == "exception":
        start(context, buffer, there, turn, "forever", daemon=True)
        ready.recv()
        raise RuntimeError("on purpose")
    elif ending == "interrupt":
        start(context, buffer, there, turn, "forever")
        print("ready", ready.recv())
        time.sleep(60)
    elif ending == "killed":
        start(context, context, buffer, there, turn, "wait", target=pass_on)
        start(context, buffer, there, turn, "wait")
        print("ready", ready.recv(), ready.recv())
        sys.stdin.readline()
        os.write(turn[1].fileno(), b"!")
        os.kill(os.getpid(), signal.SIGKILL)
"""

LEFT_BEHIND = re.compile("leaked|resource_tracker|Exception ignored|BufferError")


def die(folder: Path, method: str, ending: str) -> tuple[subprocess.Popen[str], str, str]:
    """How the creator ended, and what it and its children said."""
    with script(folder, FAMILY_THAT_DIES, method, ending) as run:
        assert run.stdout is not None
        try:
            memory = run.stdout.readline()
            if ending in ("interrupt", "killed"):
                assert run.stdout.readline().startswith("ready")
            if ending == "interrupt":
                os.killpg(run.pid, signal.SIGINT)
            out, errors = run.communicate("go on\n", timeout=100)  # and so, the end of them all
        except BaseException:
            os.killpg(run.pid, signal.SIGKILL)
            raise
    assert not LEFT_BEHIND.search(errors), errors
    assert children.holders(int(memory.split()[1])) == set()
    return run, out, errors


@pytest.mark.parametrize("method", METHODS)
def test_a_normal_end_after_children_that_were_killed_and_failed(
    tmp_path: Path, method: str
) -> None:
    run, out, errors = die(tmp_path, method, "normal")
    assert (run.returncode, out, errors) == (0, "ended -9 3\n", "")


@pytest.mark.parametrize("method", METHODS)
def test_an_exception_in_the_creator_is_all_that_is_said(tmp_path: Path, method: str) -> None:
    run, out, errors = die(tmp_path, method, "exception")
    assert (run.returncode, out) == (1, "")
    assert errors.startswith("Traceback")
    assert errors.endswith("\nRuntimeError: on purpose\n")
    assert errors.count("Traceback") == 1


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_leaves_nothing(tmp_path: Path, method: str) -> None:
    run, _, errors = die(tmp_path, method, "interrupt")
    assert run.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


@pytest.mark.parametrize("method", METHODS)
def test_children_go_on_without_their_creator(tmp_path: Path, method: str) -> None:
    run, out, errors = die(tmp_path, method, "killed")
    assert run.returncode == -signal.SIGKILL
    assert sorted(out.splitlines()) == ["child [3] 5", "child [4] 5"]
    assert errors == ""


def script(folder: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    """A program that is the leader of its own group, as from a shell."""
    path = folder / "script.py"
    path.write_text(code)
    return subprocess.Popen(
        [sys.executable, "-u", path, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.fspath(Path(__file__).parent)},
    )


# --- memory ---------------------------------------------------------------------------------


@pytest.fixture
def without_memfd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system such as macOS, and its folder for temporary files."""
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(tmp_path))
    return tmp_path


def test_too_little_memory_is_an_error_with_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    before = children.descriptors()
    size = allocate({"rows": ((8_000_000,), "u1")}, "shared").nbytes
    monkeypatch.setattr(_room, "memory_left", lambda: size - 1)
    message = "'shared' needs 8,000,000 bytes, and 7,999,999 are free of memory"
    with pytest.raises(MemoryError, match=message):
        allocate({"rows": ((size,), "u1")}, "shared")
    with pytest.raises(MemoryError, match="bytes, and 7,999,999 are free"):
        ReplayBuffer(1_000_000, NUMBER, storage="shared")
    assert children.descriptors() == before
    for left in (size, None):
        monkeypatch.setattr(_room, "memory_left", lambda left=left: left)
        allocate({"rows": ((size,), "u1")}, "shared")


def test_a_terabyte_is_refused_here() -> None:
    with pytest.raises(MemoryError, match=r"needs 2,\d\d\d,\d\d\d,\d\d\d,\d\d\d,\d\d\d bytes"):
        ReplayBuffer(10**15 // 8, NUMBER, storage="shared")


@pytest.mark.usefixtures("without_memfd")
def test_without_memfd_the_disk_must_have_room_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_room, "disk_left", lambda folder: 999 if folder == tmp_path else 0)
    with pytest.raises(MemoryError, match=f"needs 1,024 bytes, and 999 are free on .*{tmp_path}"):
        shared.create(1024)
    monkeypatch.setattr(_room, "memory_left", lambda: 1000)
    with pytest.raises(MemoryError, match="needs 1,024 bytes, and 1,000 are free of memory"):
        shared.create(1024)


SIZE = 40_000_000  # more than two pieces


def test_all_pages_are_taken_at_once() -> None:
    memory = shared.create(SIZE)
    found = os.fstat(memory.fd)
    assert found.st_size == SIZE
    assert 512 * found.st_blocks >= SIZE
    assert not memory.block().any()


def test_without_memfd_a_file_without_a_name_does(without_memfd: Path, context: Any) -> None:
    memory = shared.create(SIZE)
    found = os.fstat(memory.fd)
    assert (found.st_size, found.st_nlink) == (SIZE, 0)
    assert 512 * found.st_blocks >= SIZE
    assert not memory.block().any()
    buffer = small()
    keys, there = children.call(context, children.add, buffer, {"number": [7]})
    assert_same(children.content(buffer), there)
    assert keys.tolist() == [3]
    assert os.listdir(without_memfd) == []


@pytest.mark.usefixtures("without_memfd")
def test_zeros_are_written_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:7000], at))
    memory = shared.create(100_000)
    assert os.fstat(memory.fd).st_size == 100_000


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_creation_that_ends_early_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def end(*_: Any) -> None:
        raise error

    before = children.descriptors()
    monkeypatch.setattr(os, "posix_fallocate", end)
    with pytest.raises(type(error)):
        shared.create(1000)
    assert children.descriptors() == before


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "name", "nt")
        with pytest.raises(ValueError, match="storage='shared' needs the open files of POSIX"):
            shared.create(10)


def test_whoever_closes_the_buffer_keeps_its_number_while_a_thread_is_still_adding() -> None:
    """Otherwise others would take the places of the rows that the thread is copying."""
    buffer = small()
    who = buffer._arena["participants"].view(np.uint64)[::2]
    at_work = buffer._ring  # as a thread has it
    buffer.close()
    assert np.count_nonzero(who) == 1
    del at_work
    assert np.count_nonzero(who) == 0


@pytest.mark.parametrize("storage", ["private", "shared"])
def test_a_fork_while_a_thread_draws_leaves_a_child_that_can_draw(storage: str) -> None:
    buffer = ReplayBuffer(8, NUMBER, storage=storage, seed=3)
    buffer.add(number=range(8))
    held, forked = threading.Event(), threading.Event()

    def draw() -> None:
        with buffer._sampler.rng.bit_generator.lock:
            held.set()
            forked.wait()

    thread = threading.Thread(target=draw)
    thread.start()
    held.wait()
    child = multiprocessing.get_context("fork").Process(target=buffer.sample, args=(4,))
    child.start()
    child.join(10)
    ended = child.exitcode
    child.kill()
    child.join()
    forked.set()
    thread.join()
    assert ended == 0


def test_a_forked_child_leaves_rows_that_are_being_written_to_a_directory_alone(
    tmp_path: Path,
) -> None:
    buffer = ReplayBuffer(8, NUMBER, storage=tmp_path / "replay")
    buffer.add(number=range(8))
    step_being_written, number = 4 | 16, 1
    buffer._arena["tags"][3] = 3 << 16 | number << 8 | step_being_written
    context = multiprocessing.get_context("fork")
    children.call(context, children.add, buffer, {"number": range(10, 18)})
    keys = buffer._arena["tags"] >> 16
    assert keys[3] == 3
    assert (keys >= 8).sum() == 7


def test_a_directory_goes_on_with_the_draws_of_who_opened_it(tmp_path: Path) -> None:
    buffer = ReplayBuffer(1000, NUMBER, storage=tmp_path / "replay", seed=3)
    buffer.add(number=range(1000))
    children.call(multiprocessing.get_context("fork"), children.draw, buffer)
    beside = copy.deepcopy(buffer)
    buffer.close()
    again = ReplayBuffer(1000, NUMBER, storage=tmp_path / "replay")
    assert children.draw(again) == children.draw(beside)
