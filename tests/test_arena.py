"""The arena: where arrays lie, what a directory keeps, and what it refuses."""

from __future__ import annotations

import errno
import gc
import inspect
import json
import mmap
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kary_replay import SumTree, _room
from kary_replay.arena import Arena, allocate
from kary_replay.journal import Journal

RECORD = np.dtype(
    {
        "names": ["a", "b"],
        "formats": [np.float64, (np.uint8, (3,))],
        "offsets": [0, 8],
        "itemsize": 16,
    }
)
LAYOUT: Any = {
    "rows": ((10,), RECORD),
    "marks": ((3,), np.uint8),
    "heads": ((2, 4), np.int64),
    "journal": ((Journal.SIZE,), np.uint8),
}
SIZE = 192 + 64 + 64 + Journal.SIZE  # 160 bytes of rows end in the middle of a line
DESCRIPTION = {"capacity": 10, "columns": {"a": [[], "<f8"], "b": [[3], "|u1"]}}

posix = pytest.mark.skipif(os.name == "nt", reason="directories need the file locks of POSIX")


@pytest.fixture(
    params=["private", *(pytest.param(s, marks=posix) for s in ("shared", "directory"))]
)
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Arena:
    return allocate(LAYOUT, tmp_path / "arena" if request.param == "directory" else request.param)


def directory(path: Path, layout: Any = LAYOUT, description: Any = DESCRIPTION) -> Arena:
    return allocate(layout, path, description)


def fill(arena: Arena) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    for name in LAYOUT:
        array = arena[name]
        array.view(np.uint8)[...] = rng.integers(0, 256, array.view(np.uint8).shape, np.uint8)
    return content(arena)


def content(arena: Arena) -> dict[str, bytes]:
    return {name: arena[name].tobytes() for name in LAYOUT}


# --- the block ------------------------------------------------------------------------------


def test_arrays_are_zeros_of_their_shapes_and_dtypes(arena: Arena) -> None:
    assert arena.fresh
    for name, (shape, dtype) in LAYOUT.items():
        assert (arena[name].shape, arena[name].dtype) == (shape, dtype)
        assert arena[name].flags.writeable
        assert not arena[name].view(np.uint8).any()
    with pytest.raises(KeyError, match="other"):
        arena["other"]


def test_arrays_begin_on_cache_lines_and_share_no_byte(arena: Arena) -> None:
    written = fill(arena)
    assert content(arena) == written
    ends = 0
    for name in LAYOUT:
        begins = arena[name].ctypes.data
        assert begins % 64 == 0
        assert begins >= ends
        ends = begins + arena[name].nbytes


def test_nbytes_are_those_of_the_block() -> None:
    assert allocate(LAYOUT).nbytes == SIZE + 64


@posix
def test_nbytes_of_a_directory_are_those_of_its_file(tmp_path: Path) -> None:
    assert directory(tmp_path).nbytes == SIZE == (tmp_path / "block").stat().st_size


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what is resident")
@pytest.mark.parametrize("kind", ["private", "directory"])
def test_pages_come_when_they_are_touched(tmp_path: Path, kind: str) -> None:
    before = resident()
    size = 1 << 28
    arena = allocate({"rows": ((size,), "u1")}, tmp_path if kind == "directory" else kind)
    arena["rows"][size // 2] = 1
    assert resident() - before < size // 4
    assert arena["rows"].nbytes == size


def resident() -> int:
    return mmap.PAGESIZE * int(Path("/proc/self/statm").read_text().split()[1])


def test_arrays_outlive_the_arena(arena: Arena) -> None:
    rows = arena["rows"]
    del arena
    gc.collect()
    rows["a"] = 1.0
    assert rows["a"].sum() == 10.0


def test_closing_twice_is_fine(arena: Arena) -> None:
    arena.close()
    arena.close()
    with pytest.raises(KeyError):
        arena["rows"]


@pytest.mark.parametrize("storage", ["Shared", "Private", "", "directory", None, 5])
def test_a_storage_that_is_no_directory_is_refused(storage: Any) -> None:
    error = ValueError if isinstance(storage, str) else TypeError
    with pytest.raises(error, match=f"storage must be 'private', 'shared', or .* got {storage!r}"):
        allocate(LAYOUT, storage)


# --- a directory ----------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("kind", [str, Path])
def test_a_directory_keeps_what_was_written(tmp_path: Path, kind: Any) -> None:
    path = kind(tmp_path / "deep" / "arena")
    arena = allocate(LAYOUT, path, DESCRIPTION)
    written = fill(arena)
    arena.close()
    again = allocate(LAYOUT, path, DESCRIPTION)
    assert not again.fresh
    assert content(again) == written
    again.close()


@posix
def test_layouts_and_descriptions_may_come_as_tuples_or_lists(tmp_path: Path) -> None:
    allocate({"a": ((2,), "f8")}, tmp_path, {"shape": (1, 2)}).close()
    assert not allocate({"a": ([2], np.float64)}, tmp_path, {"shape": [1, 2]}).fresh  # type: ignore


@posix
def test_the_description_is_compared_without_its_order(tmp_path: Path) -> None:
    directory(tmp_path, description={"a": 1, "b": 2}).close()
    assert not directory(tmp_path, description={"b": 2, "a": 1}).fresh


@posix
def test_a_directory_is_for_one_at_a_time(tmp_path: Path) -> None:
    arena = directory(tmp_path)
    with pytest.raises(BlockingIOError, match=f"open already.*{tmp_path}"):
        directory(tmp_path)
    code = f"from kary_replay.arena import allocate; allocate({{}}, {os.fspath(tmp_path)!r})"
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "BlockingIOError" in other.stderr
    rows = arena["rows"]
    rows["a"] = 1.0
    arena.close()  # though one of its arrays lives on
    assert directory(tmp_path)["rows"]["a"].sum() == rows["a"].sum() == 10.0


@posix
def test_a_directory_is_free_when_its_arrays_are_forgotten(tmp_path: Path) -> None:
    arena = directory(tmp_path)
    rows = arena["rows"]
    del arena
    with pytest.raises(BlockingIOError):
        directory(tmp_path)
    del rows
    directory(tmp_path)


@posix
def test_a_refused_directory_is_not_locked(tmp_path: Path) -> None:
    directory(tmp_path).close()
    with pytest.raises(ValueError, match="capacity") as kept:  # and with it the opener's frames
        directory(tmp_path, description={"capacity": 11})
    directory(tmp_path)
    assert kept.tb is not None


@posix
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of threads; there are none
def test_a_forked_child_that_ends_leaves_the_lock(tmp_path: Path) -> None:
    arena = directory(tmp_path)
    child = os.fork()
    if child == 0:
        del arena
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BlockingIOError):
        directory(tmp_path)
    arena.close()
    directory(tmp_path)


# --- what is refused ------------------------------------------------------------------------


def untouched(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


@posix
@pytest.mark.parametrize(
    ("description", "difference"),
    [
        (DESCRIPTION | {"capacity": 11}, r"description\['capacity'\]: 10, got 11"),
        (DESCRIPTION | {"lanes": 2}, r"description\['lanes'\]: None, got 2"),
        ({"capacity": 10}, r"description\['columns'\]: {.*}, got None"),
        (
            DESCRIPTION | {"columns": {"a": [[], "<f4"], "b": [[3], "|u1"]}},
            r"description\['columns'\]\['a'\]: \[\[\], '<f8'\], got \[\[\], '<f4'\]",
        ),
    ],
)
def test_another_description_is_refused(tmp_path: Path, description: Any, difference: str) -> None:
    directory(tmp_path).close()
    before = untouched(tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path} was made with another {difference}"):
        directory(tmp_path, description=description)
    assert untouched(tmp_path) == before


@posix
@pytest.mark.parametrize(
    ("layout", "difference"),
    [
        (LAYOUT | {"marks": ((4,), np.uint8)}, r"\['marks'\]\['shape'\]: \[3\], got \[4\]"),
        (LAYOUT | {"marks": ((3,), np.int8)}, r"\['marks'\]\['dtype'\]: .*u1.*, got .*i1"),
        (LAYOUT | {"rows": ((10,), "V16")}, r"\['rows'\]\['dtype'\]: .*'a'.*, got .*V16"),
        (LAYOUT | {"more": ((1,), "f8")}, r"\['more'\]: None, got "),
        (dict(reversed(LAYOUT.items())), r"\['journal'\]\['offset'\]: 320, got 0"),
    ],
)
def test_another_layout_is_refused(tmp_path: Path, layout: Any, difference: str) -> None:
    directory(tmp_path).close()
    with pytest.raises(ValueError, match=f"{tmp_path} was made with another layout{difference}"):
        directory(tmp_path, layout=layout)


@posix
def test_another_format_is_refused(tmp_path: Path) -> None:
    directory(tmp_path).close()
    meta = json.loads((tmp_path / "arena.json").read_text())
    meta["format"] = "kary-replay arena 2"
    (tmp_path / "arena.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=r"format 'kary-replay arena 2', .* reads '.* arena 1'"):
        directory(tmp_path)


@posix
@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "7", '"x"', "\xff"])
def test_a_damaged_description_is_refused(tmp_path: Path, text: str) -> None:
    directory(tmp_path).close()
    (tmp_path / "arena.json").write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"arena\.json is damaged"):
        directory(tmp_path)


@posix
@pytest.mark.parametrize(
    ("length", "how"), [(0, "is cut off"), (SIZE - 1, "is cut off"), (SIZE + 1, "is too long")]
)
def test_a_block_of_another_length_is_refused(tmp_path: Path, length: int, how: str) -> None:
    directory(tmp_path).close()
    os.truncate(tmp_path / "block", length)
    with pytest.raises(ValueError, match=f"block {how}: it has {length} of {SIZE} bytes"):
        directory(tmp_path)
    assert (tmp_path / "block").stat().st_size == length


@posix
def test_a_block_without_description_is_left_alone(tmp_path: Path) -> None:
    directory(tmp_path).close()
    (tmp_path / "arena.json").unlink()
    with pytest.raises(ValueError, match=rf"block of {SIZE} bytes, and no arena\.json"):
        directory(tmp_path)
    assert (tmp_path / "block").stat().st_size == SIZE


@posix
def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileExistsError):
        directory(tmp_path / "file")


@posix
def test_a_platform_without_file_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(ValueError, match="POSIX"):
        directory(tmp_path)
    allocate(LAYOUT)


# --- killed -------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("function", ["fsync", "ftruncate", "posix_fallocate", "replace"])
def test_a_creator_that_stops_anywhere_leaves_a_directory_that_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, function, stop, raising=False)
    with pytest.raises(KeyboardInterrupt):
        directory(tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "arena.json").exists()
    arena = directory(tmp_path)
    assert arena.fresh
    fill(arena)
    arena.close()
    assert not directory(tmp_path).fresh
    assert {file.name for file in tmp_path.iterdir()} == {"block", "arena.json"}


@posix
def test_what_a_killed_creator_wrote_is_not_taken_for_data(tmp_path: Path) -> None:
    (tmp_path / "block").write_bytes(b"x" * 1000)
    (tmp_path / "arena.json.draft").write_text('{"for')
    arena = directory(tmp_path)
    assert arena.fresh
    assert not any(map(any, content(arena).values()))


CREATOR = """
import sys
from kary_replay.arena import allocate
print("ready", flush=True)
layout = {"rows": ((10**5,), "f8"), "marks": ((10,), "u1")}
for number in range(10**6):
    allocate(layout, f"{sys.argv[1]}/{number}", {"n": 1})
"""


@pytest.mark.deaths
@posix
def test_a_killed_creator_leaves_directories_that_open(tmp_path: Path) -> None:
    layout = {"rows": ((10**5,), "f8"), "marks": ((10,), "u1")}
    rng = np.random.default_rng(0)
    for round_ in range(24):
        folder = tmp_path / str(round_)
        command = [sys.executable, "-c", CREATOR, os.fspath(folder)]
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE) as creator:
            assert creator.stdout is not None
            creator.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.01))
            creator.send_signal(signal.SIGKILL)
        made = sorted(folder.iterdir(), key=lambda path: int(path.name)) if folder.exists() else []
        for path in made[-2:]:
            arena = allocate(layout, path, {"n": 1})
            assert not arena["rows"].any()
            assert not arena["marks"].any()
            arena.close()


WRITER = """
import sys
from kary_replay.arena import allocate
arena = allocate({"rows": ((1000,), "i8")}, sys.argv[1])
for number in range(1, 10**9):
    arena["rows"][number % 1000] = number
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


@posix
def test_what_a_killed_process_wrote_is_there_and_its_lock_is_not(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, os.fspath(tmp_path)],
        cwd=tmp_path,  # not where the sources are
        stdout=subprocess.PIPE,
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.05)
        writer.send_signal(signal.SIGKILL)
        last = max(map(int, writer.stdout.read().split(b"\n")[:-1]))
    rows = allocate({"rows": ((1000,), "i8")}, tmp_path)["rows"]
    assert last <= rows.max() <= last + 1


# --- warnings -------------------------------------------------------------------------------


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_room, "memory_left", lambda: 10_000)
    monkeypatch.setattr(_room, "disk_left", lambda _: 10_000)


@pytest.mark.usefixtures("little_room")
def test_more_than_the_free_memory_is_warned_of_once_with_both_figures() -> None:
    layout = {"a": ((10**7,), "u1"), "b": ((10**7,), "u1")}
    with pytest.warns(UserWarning, match=r"free of memory: 0\.02GB > 0\.00GB") as caught:
        line = allocate(layout), inspect.currentframe().f_lineno  # type: ignore[union-attr]
    assert len(caught) == 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line[1])


@posix
@pytest.mark.usefixtures("little_room")
def test_more_than_the_free_disk_is_warned_of_before_it_is_taken(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"free on the disk of {tmp_path}: 0.00GB > 0.00GB"):
        arena = directory(tmp_path)
    assert 512 * (tmp_path / "block").stat().st_blocks < SIZE
    arena["rows"]["a"] = 1.0
    arena.close()
    with pytest.warns(UserWarning, match="free on the disk"):
        arena = directory(tmp_path)
    assert arena["rows"]["a"].sum() == 10.0


@posix
@pytest.mark.usefixtures("little_room")
@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_leaves_a_directory_that_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserWarning, match="free on the disk"):
        directory(tmp_path)
    monkeypatch.undo()
    assert directory(tmp_path).fresh


@posix
@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no reservation here")
def test_space_is_reserved_and_counts_as_taken_when_the_directory_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory(tmp_path).close()
    assert 512 * (tmp_path / "block").stat().st_blocks >= SIZE
    monkeypatch.setattr(_room, "disk_left", lambda _: 0)
    directory(tmp_path)


@posix
def test_a_disk_that_gets_full_while_it_is_reserved_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match=f"No space left .*{tmp_path}"):
        directory(tmp_path)
    assert (tmp_path / "block").stat().st_size == 0
    monkeypatch.undo()
    assert directory(tmp_path).fresh


@posix
def test_a_file_system_without_reservation_gets_a_sparse_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported, raising=False)
    fill(directory(tmp_path))


def test_nothing_is_said_where_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_room, "PROC", Path("/nowhere"))
    assert _room.memory_left() is None
    allocate(LAYOUT)


# --- how much is left -----------------------------------------------------------------------

MEMINFO = "MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:     400 kB\nBuffers: 5 kB\n"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 400 kB left, and no control groups."""
    monkeypatch.setattr(_room, "PROC", tmp_path / "proc")
    monkeypatch.setattr(_room, "CGROUPS", tmp_path / "cgroup")
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
    return tmp_path


def group(folder: Path, names: tuple[str, str, str], limit: object, usage: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\nfile 9\n")


V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def test_without_groups_the_system_says_what_is_left(machine: Path) -> None:
    assert _room.memory_left() == 400 * 1024
    (machine / "proc" / "self" / "cgroup").write_text("0::/a/b\n")
    assert _room.memory_left() == 400 * 1024


@pytest.mark.parametrize(
    ("line", "root", "names"), [("0::/a/b", "", V2), ("4:cpu,memory:/a/b", "memory", V1)]
)
def test_a_tighter_group_anywhere_above_counts(
    machine: Path, line: str, root: str, names: tuple[str, str, str]
) -> None:
    (machine / "proc" / "self" / "cgroup").write_text(f"7:pids:/x\n{line}\n")
    group(machine / "cgroup" / root / "a/b", names, 300_000, 100_000, 20_000)
    assert _room.memory_left() == 220_000
    group(machine / "cgroup" / root / "a", names, 200_000, 90_000, 0)
    assert _room.memory_left() == 110_000
    group(machine / "cgroup" / root, names, "max" if names is V2 else 2**63 - 4096, 90_000, 0)
    assert _room.memory_left() == 110_000


def test_a_container_that_sees_only_its_root_takes_that(machine: Path) -> None:
    (machine / "proc" / "self" / "cgroup").write_text("0::/docker/1234\n")
    group(machine / "cgroup", V2, 50_000, 20_000, 1_000)
    assert _room.memory_left() == 31_000


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says what is left")
def test_this_machine_says_what_is_left(tmp_path: Path) -> None:
    left = _room.memory_left()
    assert left is not None
    assert 0 < left < 1 << 50
    assert 0 < _room.disk_left(tmp_path) < 1 << 60


# --- what lies in it ------------------------------------------------------------------------


@posix
def test_a_tree_and_a_journal_lie_in_an_arena(tmp_path: Path) -> None:
    layout: Any = {
        "tree": ((SumTree.doubles(100),), np.float64),
        "journal": ((Journal.SIZE,), np.uint8),
    }
    arena = allocate(layout, tmp_path)
    tree, journal = SumTree(100, memory=arena["tree"]), Journal(arena["journal"])
    tree.update(np.arange(100), np.arange(100.0))
    journal.write({"beta": 0.4})
    twin = pickle.loads(pickle.dumps(tree))
    del tree, journal
    arena.close()
    arena = allocate(layout, tmp_path)
    tree = SumTree(100, memory=arena["tree"])
    tree.rebuild()
    tree.check()
    assert tree.masses().tobytes() == twin.masses().tobytes()
    assert Journal(arena["journal"]).read() == {"beta": 0.4}


@posix
def test_where_the_file_is_larger_than_memory_rows_are_not_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice changes no byte; here it covers whole pages within the largest array."""
    layout: Any = {"heads": ((3,), "i8"), "rows": ((100_000,), "i8"), "marks": ((10,), "u1")}
    advice: list[tuple[int, ...]] = []

    class Mapping(mmap.mmap):
        def madvise(self, *arguments: int) -> None:
            advice.append(arguments)
            super().madvise(*arguments)

    monkeypatch.setattr(mmap, "mmap", Mapping)
    allocate(layout, tmp_path).close()
    assert advice == []
    monkeypatch.setattr(_room, "memory_left", lambda: 10_000)
    allocate(layout, tmp_path).close()
    page = mmap.PAGESIZE
    assert advice == [(mmap.MADV_RANDOM, page, 64 + 800_000 - page)]
