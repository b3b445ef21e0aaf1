"""Save and load: everything comes back, or nothing changes."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kary_replay import LinearSchedule, PrioritizedReplayBuffer, ReplayBuffer, checkpoint

# One column of each alignment, so that the record has padding, and one in another byte order.
COLUMNS = {
    "number": ((), np.int64),
    "obs": ((3,), ">f4"),
    "flag": ((), np.bool_),
    "half": ((5,), np.float16),
    "wide": ((), np.complex128),
}
GENERATORS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


def rows(first: int, count: int) -> dict[str, Any]:
    number = np.arange(first, first + count)
    half = np.broadcast_to((number % 100)[:, None], (count, 5)).astype(np.float16)
    obs = np.stack([number, -number, number * 0.5], axis=1)
    return {
        "number": number,
        "obs": obs,
        "flag": number % 3 == 0,
        "half": half,
        "wide": number * 1j,
    }


def prioritized(capacity: int = 12, **options: Any) -> PrioritizedReplayBuffer:
    options = {"seed": 0, "lanes": 2, "beta": LinearSchedule(0.2, 1.0, 10)} | options
    return PrioritizedReplayBuffer(capacity, COLUMNS, **options)


def a_past(buffer: PrioritizedReplayBuffer, count: int = 17) -> PrioritizedReplayBuffer:
    """The buffer after `count` rows, uneven over its lanes, some updates, and some draws."""
    lanes = np.arange(count) % 5 % buffer.lanes
    buffer.add(**rows(0, count), lanes=lanes, td_errors=np.linspace(0.1, 3.0, count))
    for _ in range(3):
        batch = buffer.sample(5)
        buffer.update_priorities(batch.keys, np.linspace(-2.0, 2.0, 5))
    buffer.update_priorities([0], [5.0])  # overwritten, in the fuller lane
    return buffer


def assert_same_future(one: Any, other: Any) -> None:
    for step in range(4):
        ours, theirs = one.sample(9), other.sample(9)
        assert ours.keys.tolist() == theirs.keys.tolist()
        for name in COLUMNS:
            assert ours[name].dtype == theirs[name].dtype == np.dtype(COLUMNS[name][1])
            assert ours[name].tobytes() == theirs[name].tobytes()
        if ours.weights is not None:
            assert ours.weights.tobytes() == theirs.weights.tobytes()
            assert ours.probabilities.tobytes() == theirs.probabilities.tobytes()
            errors = np.linspace(0.0, 1.0 + step, 9)
            ours_applied = one.update_priorities(ours.keys, errors)
            assert ours_applied == other.update_priorities(theirs.keys, errors)
        more = rows(100 + 3 * step, 3)
        lanes = np.arange(3) % one.lanes
        assert one.add(**more, lanes=lanes).tolist() == other.add(**more, lanes=lanes).tolist()


# --- everything comes back ------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 12, 17, 40])
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_loaded_buffer_is_the_saved_one(tmp_path: Path, lanes: int, count: int) -> None:
    saved, loaded = prioritized(lanes=lanes), prioritized(lanes=lanes, seed=99, beta=0.0)
    if count >= 5:
        a_past(saved, count)
    elif count:
        saved.add(**rows(0, count), lanes=[0] * count)
    saved.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    for name in ("beta", "max_priority", "stale_updates", "alpha", "nbytes", "capacity", "lanes"):
        assert getattr(loaded, name) == getattr(saved, name), name
    assert len(loaded) == len(saved)
    if count:
        assert_same_future(saved, loaded)


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_every_generator_goes_on_where_it_was(tmp_path: Path, kind: Any, name: str) -> None:
    rng = np.random.Generator(getattr(np.random, name)(7))
    saved, loaded = kind(12, COLUMNS, seed=rng), kind(12, COLUMNS, seed=0)
    saved.add(**rows(0, 12))
    rng.integers(10, size=3, dtype=np.uint32)  # leaves half a word in store
    saved.sample(3)
    saved.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    assert_same_future(saved, loaded)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_is_pickled(name: str) -> None:
    rng = np.random.Generator(getattr(np.random, name)(7))
    buffer = ReplayBuffer(12, COLUMNS, seed=rng)
    buffer.add(**rows(0, 12))
    buffer.sample(3)
    assert_same_future(buffer, pickle.loads(pickle.dumps(buffer)))


def test_beta_comes_back_as_number_and_as_schedule(tmp_path: Path) -> None:
    saved, loaded = a_past(prioritized()), prioritized(beta=0.9)
    saved.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    assert loaded.beta == pytest.approx(0.2 + 3 * 0.08)
    loaded.sample(1)
    assert loaded.beta == pytest.approx(0.2 + 4 * 0.08)
    saved.beta = 0.55
    saved.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    loaded.sample(1)
    assert loaded.beta == 0.55


def test_nan_and_infinity_in_rows_come_back(tmp_path: Path) -> None:
    saved, loaded = prioritized(), prioritized()
    row = {name: column[:1] for name, column in rows(0, 1).items()}
    row["obs"] = np.array([[np.nan, -np.inf, -0.0]])
    saved.add(**row, lanes=0)
    saved.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    assert loaded.sample(1)["obs"].tobytes() == row["obs"].astype(">f4").tobytes()


def test_load_replaces_the_content(tmp_path: Path) -> None:
    saved, loaded = prioritized(), a_past(prioritized(), 40)
    saved.add(**rows(500, 3), lanes=[0, 0, 1])
    saved.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    assert len(loaded) == 3
    assert loaded.stale_updates == 0
    assert set(loaded.sample(500)["number"].tolist()) == {500, 501, 502}
    prioritized().save(tmp_path / "nothing")
    loaded.load(tmp_path / "nothing")
    assert len(loaded) == 0
    with pytest.raises(ValueError, match="empty"):
        loaded.sample(1)
    assert loaded.max_priority == 1.0


def test_keys_of_before_still_name_their_rows(tmp_path: Path) -> None:
    saved, loaded = a_past(prioritized()), prioritized()
    batch = saved.sample(20)
    saved.save(tmp_path / "buffer")
    loaded.load(tmp_path / "buffer")
    assert loaded.update_priorities(batch.keys, np.full(20, 2.0)) == 20
    assert loaded.update_priorities([0], [9.0]) == 0
    assert loaded.stale_updates == saved.stale_updates + 1


def test_a_path_may_be_a_string_and_needs_no_suffix(tmp_path: Path) -> None:
    buffer = a_past(prioritized())
    buffer.save(os.fspath(tmp_path / "x.y"))
    assert os.listdir(tmp_path) == ["x.y"]
    prioritized().load(os.fspath(tmp_path / "x.y"))


def test_only_filled_rows_are_written(tmp_path: Path) -> None:
    buffer = prioritized(200_000)
    buffer.add(**rows(0, 10), lanes=[0, 0, 0, 1, 1, 1, 1, 1, 1, 1])
    buffer.save(tmp_path / "ten")
    assert (tmp_path / "ten").stat().st_size < 5_000
    assert len(pickle.dumps(buffer)) < 5_000
    buffer.add(**rows(0, 1000), lanes=[1] * 1000)
    buffer.save(tmp_path / "more")
    grown = (tmp_path / "more").stat().st_size - (tmp_path / "ten").stat().st_size
    row_bytes = buffer._ring.rows.itemsize + 8 + 2 * 8  # and its mass, and its tag twice
    assert 1000 * row_bytes <= grown <= 1000 * row_bytes + 200


# --- what does not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"capacity": 14}, "capacity must be that of the file, 12, got 14"),
        ({"lanes": 3}, "lanes must be that of the file, 2, got 3"),
        ({"alpha": 0.7}, "alpha must be that of the file, 0.6, got 0.7"),
        ({"columns": {"number": ((), np.int64)}}, "columns"),
        ({"columns": COLUMNS | {"obs": ((3,), "<f4")}}, "columns"),
        ({"columns": COLUMNS | {"obs": ((4,), ">f4")}}, "columns"),
        ({"columns": COLUMNS | {"more": ((), np.int8)}}, "columns"),
        ({"columns": {"renamed" * (n == "number") or n: c for n, c in COLUMNS.items()}}, "columns"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_buffer_s_file_is_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    a_past(prioritized()).save(tmp_path / "buffer")
    other = PrioritizedReplayBuffer(
        **({"capacity": 12, "columns": COLUMNS, "lanes": 2, "seed": 5} | change)
    )
    before = pickle.dumps(other)
    with pytest.raises(ValueError, match=named):
        other.load(tmp_path / "buffer")
    assert pickle.dumps(other) == before


def test_the_other_kind_is_refused_both_ways(tmp_path: Path) -> None:
    one, other = a_past(prioritized()), ReplayBuffer(12, COLUMNS, lanes=2, seed=0)
    one.save(tmp_path / "prioritized")
    other.save(tmp_path / "uniform")
    for buffer, file in ((one, "uniform"), (other, "prioritized")):
        before = pickle.dumps(buffer)
        with pytest.raises(ValueError, match="kind"):
            buffer.load(tmp_path / file)
        assert pickle.dumps(buffer) == before


def write_npy(path: Path) -> None:
    with open(path, "wb") as file:
        np.save(file, np.zeros(3))


def write_npz(path: Path) -> None:
    with open(path, "wb") as file:
        np.savez(file, rows=np.zeros(3), meta=np.array("[]"))


OTHER_FILES = {
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("no buffer"),
    "pickle": lambda path: path.write_bytes(pickle.dumps({"kind": "prioritized"})),
    "npy": write_npy,
    "npz": write_npz,
    "checkpoint of something else": lambda path: checkpoint.save(path, {"a": 1, "b": np.ones(2)}),
    "zip with nothing in it": lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)),
}


@pytest.mark.parametrize("other", OTHER_FILES)
def test_a_file_of_something_else_is_refused(tmp_path: Path, other: str) -> None:
    OTHER_FILES[other](tmp_path / "file")
    buffer = a_past(prioritized())
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match="file"):
        buffer.load(tmp_path / "file")
    assert pickle.dumps(buffer) == before


def test_no_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        prioritized().load(tmp_path / "missing")
    with pytest.raises(OSError, match="directory"):
        prioritized().load(tmp_path)


# --- damage ---------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    a_past(prioritized()).save(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    buffer = a_past(prioritized(seed=1), 9)
    before = pickle.dumps(buffer)
    for length in [*range(0, len(content), 13), len(content) - 1]:
        (tmp_path / "cut").write_bytes(content[:length])
        with pytest.raises(ValueError, match="is not a complete file"):
            buffer.load(tmp_path / "cut")
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("flipped", [0xFF, 0x01])
def test_a_flipped_byte_is_refused_or_means_nothing(tmp_path: Path, flipped: int) -> None:
    """Some bytes of a zip archive, such as its dates, mean nothing."""
    saved = a_past(prioritized())
    saved.save(tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    refused = 0
    buffer = a_past(prioritized(seed=1), 9)
    buffer.save(tmp_path / "mine")
    before = pickle.dumps(buffer)
    for at in range(0, len(content), 4):
        (tmp_path / "bad").write_bytes(
            content[:at] + bytes([content[at] ^ flipped]) + content[at + 1 :]
        )
        try:
            buffer.load(tmp_path / "bad")
        except ValueError:
            refused += 1
            assert pickle.dumps(buffer) == before, at
        else:
            buffer.save(tmp_path / "again")
            assert (tmp_path / "again").read_bytes() == content, at
            buffer.load(tmp_path / "mine")
            before = pickle.dumps(buffer)
    assert refused > 0.15 * len(content)


def changed(position: int, by: float) -> Any:
    def change(array: Any) -> Any:
        array = array.copy()
        array[position] += by
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        ("tags", changed(3, 1 << 16), "tags must be of keys that lie there"),  # the next slot's
        ("tags", changed(0, -(1 << 40)), "tags must be of keys that lie there"),
        ("tags", changed(3, -4), "marks that go together"),  # drawable, and no step
        ("tags", changed(3, 16), "marks that go together"),  # and still written to
        ("tags", lambda tags: tags[1:], "heads, tags and rows must be of one buffer"),
        ("rows", lambda rows: rows[1:], "heads, tags and rows must be of one buffer"),
        ("heads", lambda heads: heads - 100, "heads, tags and rows must be of one buffer"),
        ("masses", lambda masses: masses[1:], "masses must be 12 numbers"),
        ("masses", changed(2, np.nan), "masses must be 12 numbers"),
        ("masses", changed(2, -1e9), "masses must be 12 numbers"),
    ],
)
def test_a_state_that_no_buffer_can_have_is_refused(
    tmp_path: Path, name: str, change: Any, rule: str
) -> None:
    """In a file that is whole, so that no checksum tells."""
    a_past(prioritized()).save(tmp_path / "file")
    state = checkpoint.load(tmp_path / "file")
    assert len(state["tags"]) == 12
    checkpoint.save(tmp_path / "file", state | {name: change(state[name])})
    buffer = a_past(prioritized(seed=1), 9)
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match=rule):
        buffer.load(tmp_path / "file")
    assert pickle.dumps(buffer) == before


@pytest.mark.parametrize("where", ["os.fsync", "os.replace", "numpy.savez", "json.dumps"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saved = a_past(prioritized())
    saved.save(tmp_path / "buffer")
    old = (tmp_path / "buffer").read_bytes()
    saved.add(**rows(50, 2))
    with monkeypatch.context() as patched:
        patched.setattr(where, fail)
        with pytest.raises(OSError, match="No space left"):
            saved.save(tmp_path / "buffer")
    assert os.listdir(tmp_path) == ["buffer"]
    assert (tmp_path / "buffer").read_bytes() == old


def test_a_path_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    buffer = a_past(prioritized())
    with pytest.raises(OSError, match="missing"):
        buffer.save(tmp_path / "missing" / "buffer")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        buffer.save(tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == []


def test_saving_changes_nothing(tmp_path: Path) -> None:
    buffer = a_past(prioritized())
    before = pickle.dumps(buffer)
    buffer.save(tmp_path / "buffer")
    assert pickle.dumps(buffer) == before
