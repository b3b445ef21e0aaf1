"""Buffers in a directory: they go on where they were, and no death leaves half a row."""

from __future__ import annotations

import copy
import gc
import inspect
import json
import mmap
import os
import pickle
import shutil
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deaths import Marked, blocks, directory_with, forks, no_fork_warning, steps_through

from kary_replay import (
    Column,
    Horizon,
    LinearSchedule,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    Stored,
    _room,
    arena,
    t,
)

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="directories need the file locks of POSIX"),
    no_fork_warning,
]

Row = dict[str, Any]

x, reward, k = Column("x"), Column("reward"), Horizon(3)
FLAGS = {"terminated": ((), np.bool_), "truncated": ((), np.bool_)}
IN_TIME = {
    **FLAGS,
    "reward": ((), np.float64),
    "stack": x[t - 2 : t + 1],
    "rewards": reward[t : t + 3],
    "steps": reward[t : t + 3].valid(),
    "discount": 0.5**k,
}
KINDS: dict[str, Any] = {
    "plain": {"x": ((2,), np.int64), "reward": ((), np.float64), "more": ((5,), np.int16)},
    "steps": {"x": ((2,), np.int64), **IN_TIME},
    "observations": {
        "x": Stored((2,), np.int64, with_next=True),
        **IN_TIME,
        "next": x[t + k],
    },
}
ROWS = 6  # of a lane


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["uniform", "prioritized"])
def prioritized(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def make(storage: Any, kind: str, prioritized: bool, lanes: int = 1, **options: Any) -> Any:
    options = {"capacity": ROWS * lanes, "columns": KINDS[kind], "lanes": lanes} | options
    options = {"storage": storage, "seed": 0} | options
    if prioritized:
        return PrioritizedReplayBuffer(**{"fanout": 2, "beta": LinearSchedule(0.4, 1, 9)} | options)
    return ReplayBuffer(**options)


# --- steps that say which they are ------------------------------------------------------------


class Lanes:
    """Makes the steps of each lane.  Every number in a step is its token, every next one more."""

    def __init__(self, kind: str, lanes: int = 1, first: int = 1) -> None:
        self.kind = kind
        self.tokens = [first + lane * 10_000_000 for lane in range(lanes)]

    def follow(self, buffer: Any) -> None:
        """Goes on where the buffer's newest rows are, where nothing else tells that rows are lost.

        Only an observation would show that the next step is not the one after them.
        """
        if self.kind == "steps":
            for key, row in sorted(content(buffer).items()):
                self.tokens[key % len(self.tokens)] = row["x"][0] + 1

    def step(self, lane: int, end: str = "") -> Row:
        token = self.tokens[lane]
        self.tokens[lane] += 2 if end else 1  # the last of an episode announces one more
        step: Row = {"x": np.array([token, token]), "reward": np.float64(token)}
        if self.kind == "plain":
            return step | {"more": np.full(5, token % 30_000, np.int16)}
        if self.kind == "observations":
            step["next_x"] = np.array([token + 1, token + 1])
        return step | {flag: np.bool_(flag == end) for flag in FLAGS}

    def steps(self, rng: np.random.Generator, rows: int, *, ends: bool = True) -> Row:
        """Any `rows` steps, as `add` takes them; with ends of episodes, or in one."""
        lanes = rng.integers(0, len(self.tokens), rows)
        some = ["", "", "", "", *FLAGS] if ends else [""]
        steps = [self.step(lane, str(rng.choice(some))) for lane in lanes.tolist()]
        return {"lanes": lanes} | {
            name: np.stack([step[name] for step in steps]) for name in steps[0]
        }


def each(steps: Row) -> Iterator[Row]:
    """The steps one by one."""
    for i in range(len(steps["lanes"])):
        yield {name: column[i : i + 1] for name, column in steps.items()}


def content(buffer: Any) -> dict[int, Row]:
    """Every row that can be drawn, all columns of it, by key."""
    columns, keys, missed = buffer._gather.read(np.arange(buffer.capacity))
    return {
        int(keys[i]): {name: column[i].tolist() for name, column in columns.items()}
        for i in np.delete(np.arange(buffer.capacity), missed)
    }


def check_whole(row: Row) -> None:
    """All numbers are those of one step, and windows hold the steps beside it."""
    token = row["x"][0]
    assert row["x"] == [token, token]
    assert row["reward"] == token > 0
    if "more" in row:
        assert row["more"] == [token % 30_000] * 5
        return
    before = [pair[0] for pair in row["stack"] if pair[0]]
    padding = 3 - len(before)
    want = [0] * padding + list(range(token - len(before) + 1, token + 1))
    assert row["stack"] == [[each, each] for each in want]
    steps = sum(row["steps"])
    assert row["rewards"] == [token + j if j < steps else 0.0 for j in range(3)]
    assert row["discount"] in (0.0, 0.5**steps)
    if "next" in row:
        assert row["next"] == [token + steps] * 2


def as_dict(batch: Any) -> dict[str, Any]:
    return {name: batch[name] for name in batch}


def check_sound(buffer: Any) -> dict[int, Row]:
    """What holds for every buffer at rest; returns its content."""
    rows = content(buffer)
    assert len(buffer) == len(rows)
    for row in rows.values():
        check_whole(row)
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer._sampler.tree.check()
        masses = buffer._sampler.tree.masses()
        assert set(np.flatnonzero(masses)) == {key % buffer.capacity for key in rows}
    if not rows:
        with pytest.raises(ValueError, match="empty"):
            buffer.sample(1)
        return rows
    batch = buffer.sample(3 * len(rows))
    for i, key in enumerate(batch.keys.tolist()):
        assert {name: column[i].tolist() for name, column in as_dict(batch).items()} == rows[key]
    return rows


def check_goes_on(buffer: Any, lanes: Lanes) -> None:
    """Rows come in as ever, until those of before are gone."""
    rng = np.random.default_rng(0)
    lanes.follow(buffer)
    for number in range(2 * ROWS):  # at first in the episode that was in flight, if it goes on
        keys = buffer.add(**lanes.steps(rng, 1 + len(lanes.tokens), ends=number > 1))
        assert keys[-1] in check_sound(buffer)


# --- reopening --------------------------------------------------------------------------------


def assert_alike(one: Any, other: Any) -> None:
    assert len(one) == len(other)
    assert content(one) == content(other)
    assert one._ring.heads.tolist() == other._ring.heads.tolist()
    if isinstance(one, PrioritizedReplayBuffer):
        for name in ("beta", "max_priority", "stale_updates"):
            assert getattr(one, name) == getattr(other, name), name
        masses = [buffer._sampler.tree.masses().tolist() for buffer in (one, other)]
        assert masses[0] == masses[1]
        assert one._sampler.beta_state == other._sampler.beta_state


def sampled_alike(one: Any, other: Any, size: int) -> Any:
    ours, theirs = one.sample(size), other.sample(size)
    for name in ("keys", "slots", "probabilities", "weights"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    return theirs


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_buffer_that_is_reopened_is_one_that_lived_on(
    tmp_path: Path, kind: str, prioritized: bool, lanes: int
) -> None:
    rng = np.random.default_rng(lanes)
    twin = make("private", kind, prioritized, lanes)
    buffer = make(tmp_path / "buffer", kind, prioritized, lanes)
    simulators, keys = Lanes(kind, lanes), [np.zeros(1, np.int64)]
    for _ in range(150):
        happens = rng.integers(5)
        if happens == 0:
            buffer.close()
            # Arguments that the directory knows better.
            options = {"beta": 0.1} if prioritized else {}
            buffer = make(tmp_path / "buffer", kind, prioritized, lanes, seed=99, **options)
        elif happens == 1 and len(twin):
            keys.append(sampled_alike(buffer, twin, 5).keys)
        elif happens == 2 and prioritized:
            some = np.concatenate(keys[-6:])
            errors = rng.normal(size=len(some))
            if len(twin):
                applied = [each.update_priorities(some, errors) for each in (buffer, twin)]
                assert applied[0] == applied[1]
        elif happens == 3 and prioritized and rng.random() < 0.3:
            buffer.beta = twin.beta = LinearSchedule(0.5, rng.random(), 7)
        else:
            steps = simulators.steps(rng, int(rng.choice([1, 1, 2, 3, 3 * ROWS * lanes])))
            keys.append(twin.add(**steps))
            assert buffer.add(**steps).tolist() == keys[-1].tolist()
        assert_alike(buffer, twin)
        if rng.random() < 0.3:  # it draws, and a draw records what went before
            check_sound(twin)
            check_sound(buffer)


def test_an_episode_goes_on_after_reopening_if_its_next_step_is_the_one_announced(
    tmp_path: Path,
) -> None:
    lanes = Lanes("observations")
    for _ in range(3):
        buffer = make(tmp_path / "buffer", "observations", True)
        key = int(buffer.add(**lanes.step(0))[0])
        buffer.close()
    buffer = make(tmp_path / "buffer", "observations", True)
    assert content(buffer)[key]["stack"] == [[1, 1], [2, 2], [3, 3]]
    lanes.tokens[0] += 5  # an environment that was reset
    key = int(buffer.add(**lanes.step(0))[0])
    assert content(buffer)[key]["stack"] == [[0, 0], [0, 0], [9, 9]]


def test_a_directory_may_be_opened_any_number_of_times(tmp_path: Path) -> None:
    """More often than processes can share one buffer."""
    for number in range(300):
        buffer = make(tmp_path / "buffer", "plain", True)
        assert len(buffer) == min(number, ROWS)
        buffer.add(**Lanes("plain", 1, number + 1).step(0))
        buffer.close()


@pytest.mark.parametrize("name", ["PCG64", "MT19937", "Philox", "SFC64"])
def test_every_generator_goes_on(tmp_path: Path, name: str) -> None:
    def rng() -> np.random.Generator:
        return np.random.Generator(getattr(np.random, name)(7))

    buffer, twin = (make(where, "plain", True, seed=rng()) for where in (tmp_path, "private"))
    steps = Lanes("plain").steps(np.random.default_rng(0), ROWS)
    for each_buffer in (buffer, twin):
        each_buffer.add(**steps)
    for _ in range(3):
        sampled_alike(buffer, twin, 4)
        buffer.close()
        buffer = make(tmp_path, "plain", True)
        sampled_alike(buffer, twin, 4)


# --- deaths at any instruction ------------------------------------------------------------------


def check_survivors(buffer: Any, futures: list[dict[int, Row]]) -> None:
    """After a death in an add: futures[p] is the content after the first p of its rows.

    Every row is as it was after some of them; none is gone that the whole add would have left.
    """
    rows = check_sound(buffer)
    for key, row in rows.items():
        assert row in [future.get(key) for future in futures]
    assert futures[0].keys() & futures[-1].keys() <= rows.keys()


def futures_of(buffer: Any, steps: Row) -> list[dict[int, Row]]:
    twin = copy.deepcopy(buffer)
    futures = [content(twin)]
    for step in each(steps):
        twin.add(**step)
        futures.append(content(twin))
    return futures


def grown(
    storage: Any, kind: str, prioritized: bool, lanes: int, rows: int, **options: Any
) -> tuple[Any, Lanes]:
    """A buffer with `rows` rows, one at a time, and what makes the next."""
    rng = np.random.default_rng(rows)
    buffer = make(storage, kind, prioritized, lanes, **options)
    simulators = Lanes(kind, lanes)
    for _ in range(rows):
        buffer.add(**simulators.steps(rng, 1))
    if prioritized and len(buffer):
        buffer.update_priorities(buffer.sample(9).keys, np.arange(1.0, 10.0))
    return buffer, simulators


def check_every_death(
    tmp_path: Path,
    states: list[bytes],
    futures: list[dict[int, Row]],
    simulators: Lanes,
    *made: Any,
    **options: Any,
) -> None:
    """Of the directory "buffer", in any of the states."""
    for number, block in enumerate(states):
        copied = directory_with(tmp_path / f"{number}", tmp_path / "buffer", block)
        survivor = make(copied, *made, **options)
        check_survivors(survivor, futures)
        check_goes_on(survivor, copy.deepcopy(simulators))
        survivor.close()
        shutil.rmtree(copied)


@pytest.mark.deaths
@forks
@steps_through
@pytest.mark.parametrize(
    ("kind", "prioritized", "lanes", "rows", "more", "capacity"),
    [
        ("plain", True, 1, 8, 1, ROWS),
        ("plain", False, 2, 20, 3, 2 * ROWS),
        ("steps", False, 1, 3, 1, ROWS),
        ("steps", True, 1, 9, 3, ROWS),
        ("steps", True, 2, 20, 3, 2 * ROWS),
        ("steps", False, 1, 4, 5, 3),
        ("observations", True, 1, 2, 1, ROWS),
        ("observations", True, 1, 8, 2, ROWS),
        ("observations", False, 1, 7, 3, 5),
        ("observations", True, 2, 20, 2 * ROWS, 2 * ROWS),
    ],
)
def test_whoever_dies_at_any_instruction_of_add_leaves_whole_rows(
    tmp_path: Path,
    kind: str,
    prioritized: bool,
    lanes: int,
    rows: int,
    more: int,
    capacity: int,
) -> None:
    path = tmp_path / "buffer"
    buffer, simulators = grown(path, kind, prioritized, lanes, rows, capacity=capacity)
    # In the smallest ring the newest row reaches back to the oldest, if no episode ends.
    steps = simulators.steps(np.random.default_rng(more), more, ends=capacity > 3)
    futures = futures_of(buffer, steps)
    buffer._ring = Marked(buffer._ring, ("insert",))
    states = blocks(path, lambda: buffer.add(**steps))
    assert len(states) > 5 * more
    check_every_death(
        tmp_path, states, futures, simulators, kind, prioritized, lanes, capacity=capacity
    )


@pytest.mark.deaths
@forks
@steps_through
@pytest.mark.parametrize("kind", ["steps", "observations"])
def test_whoever_dies_while_recovering_leaves_whole_rows(
    tmp_path: Path, kind: str, prioritized: bool
) -> None:
    """After a death in the middle of an add."""
    path = tmp_path / "buffer"
    buffer, simulators = grown(path, kind, prioritized, 1, 8)
    steps = simulators.steps(np.random.default_rng(0), 2)
    futures = futures_of(buffer, steps)
    ring = buffer._ring
    buffer._ring = Marked(ring, ("insert",))
    torn = blocks(path, lambda: buffer.add(**steps))
    for number in (len(torn) // 3, 2 * len(torn) // 3):
        with (path / "block").open("r+b") as file:
            file.write(torn[number])
        states = blocks(path, Marked(ring, ("recover",)).recover)
        assert len(states) > 3
        check_every_death(tmp_path, states, futures, simulators, kind, prioritized)


def test_a_row_whose_windows_reach_back_to_nothing_is_not_drawn(tmp_path: Path) -> None:
    """As whoever dies while loading may leave it: it could be drawn, and never be read."""
    buffer, lanes = make(tmp_path, "steps", True), Lanes("steps")
    for _ in range(ROWS):
        buffer.add(**lanes.step(0))
    buffer._arena["tags"][1] = 0
    buffer.close()
    assert set(check_sound(make(tmp_path, "steps", True))) == {0, 4, 5}


def test_an_older_row_whose_stack_is_cut_by_the_newest_add_is_not_joined(tmp_path: Path) -> None:
    """A stack as long as the lane: each add retires the row before it, written or not."""
    columns = {"x": ((2,), np.int64), **FLAGS, "stack": x[t - 3 : t + 1]}
    buffer = ReplayBuffer(4, columns, storage=tmp_path, seed=0)
    lanes = Lanes("steps")
    for _ in range(5):
        step = lanes.step(0)
        del step["reward"]
        buffer.add(**step)
    assert [row["stack"] for row in content(buffer).values()] == [[[i, i] for i in (2, 3, 4, 5)]]


# --- deaths at any moment -----------------------------------------------------------------------

LOG = 1 << 16  # rows that a child may say it added


def live_a_while(
    path: Path, kind: str, prioritized: bool, lanes: int, first: int, log: Any
) -> None:
    """Adds, samples and updates; log[0] is how many rows were added, their keys and tokens behind.

    log[1] is how many are on their way.
    """
    rng = np.random.default_rng(first)
    buffer, simulators = make(path, kind, prioritized, lanes), Lanes(kind, lanes, first)
    simulators.follow(buffer)
    while log[0] < LOG - 10:
        steps = simulators.steps(rng, int(rng.integers(1, 5)))
        log[1] = len(steps["lanes"])
        keys = buffer.add(**steps)
        done = log[0]
        log[2 + 2 * done : 2 + 2 * (done + len(keys))] = np.stack(
            [keys, steps["x"][:, 0]], axis=1
        ).ravel()
        log[0] = done + len(keys)
        if len(buffer) and rng.random() < 0.5:
            batch = buffer.sample(4)
            if prioritized:
                buffer.update_priorities(batch.keys, rng.normal(size=4))


def killed_after(seconds: float, life: Callable[[], None], alive: Callable[[], bool]) -> None:
    """Kills a child `seconds` after it is `alive`, however slowly the machine starts it."""
    child = os.fork()
    if child == 0:
        try:
            life()
        finally:
            os._exit(1)
    patience = time.monotonic() + 60
    while not alive() and time.monotonic() < patience:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the child failed"


def check_after_kill(buffer: Any, rows_before: set[int], log: Any) -> None:
    added = log[2 : 2 + 2 * log[0]].reshape(-1, 2).tolist()
    rows = check_sound(buffer)
    heads, lanes = buffer._ring.heads, buffer.lanes
    back = 0 if "more" in buffer.columns else 2
    for key, token in added:
        lane = key % lanes
        if key // lanes >= heads[lane] - ROWS + back:
            assert rows[key]["x"][0] == token
    known = rows_before | {key for key, _ in added}
    assert len(rows.keys() - known) <= log[1]


def kill_often(tmp_path: Path, kind: str, prioritized: bool, lanes: int, kills: int) -> None:
    rng = np.random.default_rng(kills)
    log = np.frombuffer(mmap.mmap(-1, 8 * (2 + 2 * LOG)), np.int64)
    path, before, total = tmp_path / "buffer", set[int](), 0
    for number in range(kills):
        log[:2] = 0
        first = 1 + number * 100_000
        killed_after(
            rng.uniform(0.003, 0.03),
            lambda first=first: live_a_while(path, kind, prioritized, lanes, first, log),
            # Every other one may die while it opens.
            lambda number=number: number % 2 == 1 or log[0] >= 50,
        )
        buffer = make(path, kind, prioritized, lanes)
        check_after_kill(buffer, before, log)
        total += int(log[0])
        simulators = Lanes(kind, lanes, first + 90_000)
        if number % 5 == 0:
            check_goes_on(buffer, simulators)
        before = set(content(buffer))
        buffer.close()
    assert total > 5 * kills


@pytest.mark.deaths
@forks
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_killed_process_leaves_whole_rows(
    tmp_path: Path, kind: str, prioritized: bool, lanes: int
) -> None:
    kill_often(tmp_path, kind, prioritized, lanes, kills=6)


@pytest.mark.deaths
@forks
@pytest.mark.slow
def test_a_thousand_kills(tmp_path: Path, kind: str, prioritized: bool) -> None:
    kill_often(tmp_path, kind, prioritized, 2, kills=1000 // 6 + 1)


# --- refusals -----------------------------------------------------------------------------------


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def format_of_tomorrow(path: Path) -> None:
    meta = json.loads((path / "arena.json").read_text())
    (path / "arena.json").write_text(json.dumps(meta | {"format": "kary-replay arena 99"}))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"capacity": 18}, r"another description\['capacity'\]: 12, got 18"),
        ({"lanes": 2}, r"another description\['lanes'\]: 1, got 2"),
        ({"alpha": 0.7}, r"another description\['alpha'\]: 0\.6, got 0\.7"),
        ({"fanout": 16}, r"another description\['fanout'\]: 2, got 16"),
        ({"columns": KINDS["plain"]}, r"another description\['columns'\]\['stored'\]\['more'\]"),
        (
            {"columns": KINDS["steps"] | {"stack": x[t - 1 : t + 1]}},
            r"\['derived'\]\['stack'\]: 'x\[t-2:t\+1\]', got 'x\[t-1:t\+1\]'",
        ),
        (
            {"columns": KINDS["steps"] | {"x": ((2,), ">i8")}},
            r"\['stored'\]\['x'\].*: .*'<i8'.*, got .*'>i8'",
        ),
    ],
)
def test_a_buffer_of_something_else_is_refused(tmp_path: Path, other: Any, message: str) -> None:
    make(tmp_path, "steps", True, capacity=12).close()
    before = files(tmp_path)
    with pytest.raises(ValueError, match=message):
        make(tmp_path, "steps", True, **{"capacity": 12} | other)
    assert files(tmp_path) == before
    make(tmp_path, "steps", True, capacity=12)


def test_a_buffer_of_another_kind_is_refused(tmp_path: Path, prioritized: bool) -> None:
    grown(tmp_path, "plain", prioritized, 1, 9)[0].close()
    before = files(tmp_path)
    kinds = ["uniform", "prioritized"]
    message = f"'kind'.*: {kinds[prioritized]!r}, got {kinds[not prioritized]!r}"
    with pytest.raises(ValueError, match=message):
        make(tmp_path, "plain", not prioritized)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (format_of_tomorrow, r"format 'kary-replay arena 99', and this version reads"),
        (lambda path: (path / "arena.json").write_text('{"format'), r"arena\.json is damaged"),
        (lambda path: os.truncate(path / "block", 99), r"block is cut off: it has 99 of \d+"),
        (lambda path: (path / "arena.json").unlink(), r"no arena\.json to say what it is"),
    ],
    ids=["version", "json", "cut off", "no json"],
)
def test_a_damaged_directory_is_refused(
    tmp_path: Path, prioritized: bool, damage: Any, message: str
) -> None:
    grown(tmp_path, "steps", prioritized, 1, 9)[0].close()
    damage(tmp_path)
    before = files(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            make(tmp_path, "steps", prioritized)
        assert files(tmp_path) == before


@pytest.mark.parametrize("damage", ["mass", "journal"])
def test_what_a_buffer_cannot_have_written_is_refused(tmp_path: Path, damage: str) -> None:
    buffer, _ = grown(tmp_path, "steps", True, 1, 9)
    if damage == "mass":
        buffer._sampler.tree, memory = None, buffer._arena["tree"]
        memory[:] = np.nan
    else:
        memory = buffer._arena["journal"]
        memory[:] = 1
    del memory
    buffer.close()
    before = files(tmp_path)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"masses must be finite|both .* are damaged"):
            make(tmp_path, "steps", True)
    assert {name: files(tmp_path)[name] for name in before}.keys() == before.keys()


def test_a_directory_that_is_open_is_refused(tmp_path: Path, prioritized: bool) -> None:
    buffer, simulators = grown(tmp_path, "steps", prioritized, 1, 9)
    before = files(tmp_path)
    with pytest.raises(BlockingIOError, match=f"open already.*{tmp_path}"):
        make(tmp_path, "steps", prioritized)
    assert files(tmp_path) == before
    check_goes_on(buffer, simulators)


def test_a_path_that_is_a_file_is_refused(tmp_path: Path, prioritized: bool) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="file"):
        make(tmp_path / "file", "steps", prioritized)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.deaths
@forks
def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """In a child that is not root, who may write everywhere."""
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o555)
    tmp_path.chmod(0o755)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if os.getuid() == 0:
                os.chdir(folder)
                os.setuid(65534)
            try:
                make("./", "plain", True)
            except PermissionError as error:
                status = 0 if "block" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("storage", ["privat", "share", ""])
def test_a_word_that_is_no_storage_is_refused(prioritized: bool, storage: str) -> None:
    with pytest.raises(ValueError, match=f"storage must be 'private', .* got {storage!r}"):
        make(storage, "plain", prioritized)


@pytest.mark.filterwarnings("error")
def test_sizes_may_be_integers_of_numpy(tmp_path: Path, prioritized: bool) -> None:
    cls: Any = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    arguments: dict[str, Any] = {"fanout": np.int64(4)} if prioritized else {}
    small = cls(np.uint8(200), KINDS["plain"], lanes=np.int8(100), **arguments)
    assert (small.capacity, small.lanes) == (200, 100)
    for capacity in (np.int64(8), 8):
        arguments |= {"lanes": np.int32(2), "storage": tmp_path / "buffer"}
        cls(capacity, KINDS["plain"], **arguments).close()


# --- what it needs ------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["of memory", "on the disk"])
def test_a_buffer_that_needs_more_than_is_free_warns_once_and_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prioritized: bool, what: str
) -> None:
    monkeypatch.setattr(_room, "memory_left", lambda: 2_000_000)
    monkeypatch.setattr(_room, "disk_left", lambda _: 2_000_000)
    storage = "private" if what == "of memory" else tmp_path / "buffer"
    cls = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    needs = rf"more than is free {what}.*: \d+\.\d\dGB > 0\.00GB"
    line = inspect.currentframe().f_lineno + 2  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match=needs) as caught:
        buffer = cls(1_000_000, {"x": ((4,), np.float32)}, storage=storage)
    assert [(each.filename, each.lineno) for each in caught] == [(__file__, line)]
    assert f"{buffer.nbytes / 1e9:.2f}GB >" in str(caught[0].message)
    buffer.add(x=np.ones(4, np.float32))
    assert buffer.sample(1)["x"].tolist() == [[1.0] * 4]


def test_the_warning_comes_before_anything_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prioritized: bool
) -> None:
    monkeypatch.setattr(_room, "disk_left", lambda _: 1000)
    cls = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    columns = {"x": ((1 << 30,), np.uint8)}  # 100 TB that no system gives
    with pytest.raises(UserWarning, match="more than is free of memory"):
        cls(100_000, columns)
    with pytest.raises(UserWarning, match="more than is free of memory"):
        cls(10**14, {"x": ((), np.uint8)})  # and its priorities alone are more
    with pytest.raises(UserWarning, match="more than is free on the disk"):
        cls(1000, {"x": ((4,), np.float32)}, storage=tmp_path / "buffer")
    assert not (tmp_path / "buffer" / "arena.json").exists()
    assert (tmp_path / "buffer" / "block").stat().st_size == 0


def arrays_allocated(create: Callable[[], Any]) -> tuple[Any, int]:
    """What `create` returns, and the bytes of NumPy's larger arrays that are left with it."""
    gc.collect()
    tracemalloc.start()
    try:
        created = create()
        gc.collect()
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    domain = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    sizes = [trace.size for trace in snapshot.filter_traces([domain]).traces]
    return created, sum(size for size in sizes if size >= 1000)


@pytest.mark.parametrize("lanes", [1, 3])
def test_nbytes_is_all_that_is_allocated(
    tmp_path: Path, kind: str, prioritized: bool, lanes: int
) -> None:
    def create(storage: Any) -> Any:
        return make(storage, kind, prioritized, lanes, capacity=3000)

    private, allocated = arrays_allocated(lambda: create("private"))
    numbers_of_lanes = 8 * lanes
    assert private.nbytes == allocated + numbers_of_lanes
    rows = private._arena["rows"].nbytes
    assert rows < allocated < rows + 40 * 3000  # tags, masses, and what is made of them
    directory, beside = arrays_allocated(lambda: create(tmp_path / "buffer"))
    assert beside == 0
    file = (tmp_path / "buffer" / "block").stat()
    assert directory.nbytes == file.st_size + numbers_of_lanes
    assert file.st_size <= 512 * file.st_blocks < file.st_size + 8192  # all of it is reserved


# --- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["private", "directory"])
def test_a_closed_buffer_says_so(tmp_path: Path, prioritized: bool, where: str) -> None:
    storage = "private" if where == "private" else tmp_path / "buffer"
    buffer, simulators = grown(storage, "steps", prioritized, 1, 9)
    other = grown("private", "steps", prioritized, 1, 9)[0]
    other.save(tmp_path / "file")
    buffer.close()
    buffer.close()
    assert repr(buffer) == f"{type(buffer).__name__}(closed)"
    calls: list[Callable[[], Any]] = [
        lambda: len(buffer),
        lambda: buffer.capacity,
        lambda: buffer.lanes,
        lambda: buffer.add(**simulators.step(0)),
        lambda: buffer.sample(1),
        lambda: buffer.view("x"),
        lambda: buffer.save(tmp_path / "other"),
        lambda: buffer.load(tmp_path / "file"),
        lambda: pickle.dumps(buffer),
        lambda: copy.deepcopy(buffer),
    ]
    if prioritized:
        calls += [
            lambda: buffer.update_priorities([0], [1.0]),
            lambda: buffer.beta,
            lambda: setattr(buffer, "beta", 1.0),
            lambda: buffer.max_priority,
        ]
    for call in calls:
        with pytest.raises(ValueError, match="the buffer is closed"):
            call()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("end", ["close", "forget"])
def test_the_lock_goes_with_the_buffer(tmp_path: Path, prioritized: bool, end: str) -> None:
    buffer, _ = grown(tmp_path, "observations", prioritized, 1, 9)
    gc.collect()
    gc.disable()
    try:
        if end == "close":
            buffer.close()
        else:
            del buffer
        again = make(tmp_path, "observations", prioritized)
    finally:
        gc.enable()
    assert len(again) > 0


def test_rows_that_were_drawn_outlive_the_buffer(tmp_path: Path) -> None:
    buffer, _ = grown(tmp_path, "observations", True, 1, 9)
    batch = buffer.sample(5)
    copies = {name: column.copy() for name, column in as_dict(batch).items()}
    buffer.close()
    make(tmp_path, "observations", True)._ring.rows[:] = 0
    assert all(np.array_equal(batch[name], copies[name]) for name in copies)


@pytest.mark.parametrize("how", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_is_private(tmp_path: Path, kind: str, prioritized: bool, how: Any) -> None:
    buffer, simulators = grown(tmp_path / "buffer", kind, prioritized, 2, 20)
    twin = how(buffer)
    assert_alike(buffer, twin)
    sampled_alike(buffer, twin, 7)
    before = content(buffer), files(tmp_path / "buffer")
    check_goes_on(twin, simulators)
    assert (content(buffer), files(tmp_path / "buffer")) == before
    assert {file.name for file in tmp_path.iterdir()} == {"buffer"}


def test_what_is_loaded_stays(tmp_path: Path, kind: str, prioritized: bool) -> None:
    saved, _ = grown("private", kind, prioritized, 2, 20)
    saved.save(tmp_path / "file")
    buffer, _ = grown(tmp_path / "buffer", kind, prioritized, 2, 5, seed=9)
    buffer.load(tmp_path / "file")
    buffer.close()
    buffer = make(tmp_path / "buffer", kind, prioritized, 2, seed=5)
    assert_alike(buffer, saved)
    sampled_alike(buffer, saved, 7)


@pytest.mark.deaths
@forks
@steps_through
def test_whoever_dies_while_loading_leaves_rows_of_one_or_the_other(tmp_path: Path) -> None:
    saved, simulators = grown("private", "observations", True, 1, 20)
    saved.save(tmp_path / "file")
    path = tmp_path / "buffer"
    buffer, _ = grown(path, "observations", True, 1, 5)
    both = [content(buffer), content(saved)]
    masses = [each._sampler.tree.masses() for each in (buffer, saved)]
    buffer._ring = Marked(buffer._ring, ("clear", "restore", "restore_tags"))
    buffer._sampler.tree = Marked(buffer._sampler.tree, ("update",))
    states = blocks(path, lambda: buffer.load(tmp_path / "file"))
    seen = set()
    for number, block in enumerate(states):
        copied = directory_with(tmp_path / f"{number}", path, block)
        survivor = make(copied, "observations", True)
        rows = check_sound(survivor)
        source = next(i for i in range(2) if rows.items() <= both[i].items())
        seen.add((source, len(rows)))
        for key in rows:
            assert survivor._sampler.tree.masses()[key % ROWS] == masses[source][key % ROWS]
        check_goes_on(survivor, copy.deepcopy(simulators))
        survivor.close()
    assert {(0, len(both[0])), (0, 0), (1, len(both[1]))} <= seen


# --- a large one --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux says how much memory is its own")
def test_ten_million_rows_take_little_memory_of_the_process(tmp_path: Path) -> None:
    """Rows, marks and tree are pages of the file; what is beside them stays below 400 MB."""
    resource = pytest.importorskip("resource")
    columns = {"x": ((2,), np.float32), "action": ((), np.int8), "number": ((), np.int64)}
    rows, chunk = 10_000_000, 1_000_000
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with open("/proc/self/status", encoding="ascii") as status:
        data = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (data + 400_000_000, before[1]))
    try:
        buffer = PrioritizedReplayBuffer(rows, columns, storage=tmp_path / "buffer", seed=0)
        for first in range(0, rows + chunk, chunk):
            number = np.arange(first, first + chunk)
            buffer.add(
                x=np.stack([number, -number], axis=1).astype(np.float32),
                action=(number % 100).astype(np.int8),
                number=number,
            )
        for _ in range(2):
            for _ in range(1000):
                batch = buffer.sample(256)
                assert (batch["number"] == batch.keys).all()
                buffer.update_priorities(batch.keys, batch["x"][:, 0] % 7)
            assert len(buffer) == rows
            buffer.close()
            buffer = PrioritizedReplayBuffer(rows, columns, storage=tmp_path / "buffer")
        buffer._sampler.tree.check()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert arena.FORMAT in (tmp_path / "buffer" / "arena.json").read_text()
