"""The journal: the newest whole record, whatever moment its writer died at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kary_replay.journal import HEADER, PLACE, Journal

GENERATORS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]
MOST = PLACE - HEADER.size  # bytes of JSON in a record


def fresh() -> npt.NDArray[np.uint8]:
    return np.zeros(Journal.SIZE, np.uint8)


def test_fresh_memory_has_no_record() -> None:
    assert Journal(fresh()).read() is None


def test_the_newest_record_is_read_by_its_writer_and_by_the_next() -> None:
    memory = fresh()
    journal = Journal(memory)
    for step in range(5):
        journal.write({"step": step, "beta": 0.1 * step, "words": ["a", None, True]})
        expected = {"step": step, "beta": 0.1 * step, "words": ["a", None, True]}
        assert journal.read() == Journal(memory).read() == expected


def test_a_second_journal_goes_on_where_the_first_stopped() -> None:
    memory = fresh()
    Journal(memory).write({"step": 1})
    journal = Journal(memory)
    journal.write({"step": 2})
    journal.write({"step": 3})
    assert Journal(memory).read() == {"step": 3}


def test_threads_write_one_after_another() -> None:
    memory = fresh()
    journal = Journal(memory)

    def write(thread: int) -> None:
        for step in range(500):
            journal.write({"thread": thread, "padding": "." * (step * thread % 1000)})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    numbers = [HEADER.unpack_from(memory[place:])[0] for place in (0, PLACE)]
    assert sorted(numbers) == [1999, 2000]
    assert Journal(memory).read() == journal.read()


def test_reading_writes_nothing() -> None:
    memory = fresh()
    Journal(memory).write({"step": 1})
    before = memory.tobytes()
    Journal(memory).read()
    assert memory.tobytes() == before


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_goes_on_from_its_record(name: str) -> None:
    memory = fresh()
    rng = np.random.Generator(getattr(np.random, name)(0))
    rng.random(1000)
    Journal(memory).write({"generator": rng.bit_generator.state, "beta": np.float64(0.4)})
    state = Journal(memory).read()
    assert state is not None
    other = np.random.Generator(getattr(np.random, name)(1))
    other.bit_generator.state = state["generator"]
    assert other.random(1000).tolist() == rng.random(1000).tolist()
    assert state["beta"] == 0.4


def test_the_longest_state_of_mt19937_fits() -> None:
    rng = np.random.Generator(np.random.MT19937(0))
    state: Any = rng.bit_generator.state
    state["state"]["key"][:] = 2**32 - 1
    Journal(fresh()).write({"generator": state, "beta_step": 2**63, "beta": 0.1 + 0.2, "n": 2**63})


def test_a_record_fits_to_the_last_byte_and_no_further() -> None:
    memory = fresh()
    journal = Journal(memory)
    longest = {"x": "y" * (MOST - len('{"x":""}'))}
    journal.write(longest)
    before = memory.tobytes()
    with pytest.raises(ValueError, match=f"at most {MOST} bytes of JSON, got {MOST + 1}"):
        journal.write({"x": longest["x"] + "y"})
    with pytest.raises(TypeError, match="what JSON can"):
        journal.write({"x": object()})
    assert memory.tobytes() == before
    assert journal.read() == Journal(memory).read() == longest


@pytest.mark.parametrize("kept", range(0, HEADER.size + 20, 3))
def test_a_write_that_was_cut_off_leaves_the_record_before_it(kept: int) -> None:
    """The text goes down before the header, so `kept` of its bytes are new, then of the header."""
    memory = fresh()
    journal = Journal(memory)
    for step in range(3):
        journal.write({"step": step})
    before = memory.copy()
    journal.write({"step": "new"})
    written = np.flatnonzero(memory != before)
    in_order = np.concatenate([written[written % PLACE >= HEADER.size], written])
    torn = before.copy()
    torn[in_order[:kept]] = memory[in_order[:kept]]
    whole = torn.tobytes() == memory.tobytes()
    journal = Journal(torn)
    assert journal.read() == {"step": "new" if whole else 2}
    journal.write({"step": "next"})
    assert Journal(torn).read() == {"step": "next"}


def test_a_first_write_that_was_cut_off_leaves_none() -> None:
    memory = fresh()
    Journal(memory).write({"step": 0})
    memory[PLACE + HEADER.size] ^= 1
    assert Journal(memory).read() is None


@pytest.mark.parametrize("byte", [0, 8, 9, 11, 12, HEADER.size, HEADER.size + 8])
def test_damage_to_the_newest_record_is_seen(byte: int) -> None:
    memory = fresh()
    journal = Journal(memory)
    journal.write({"step": 1})
    journal.write({"step": 2})
    memory[byte] ^= 0x81  # of place 0, where the second lies
    assert Journal(memory).read() == {"step": 1}


def test_damage_to_both_records_is_an_error() -> None:
    memory = fresh()
    journal = Journal(memory)
    journal.write({"step": 1})
    journal.write({"step": 2})
    memory[[HEADER.size, PLACE + HEADER.size]] ^= 1
    with pytest.raises(ValueError, match=r"both .* are damaged"):
        Journal(memory)


@pytest.mark.parametrize(
    "memory",
    [
        np.zeros(Journal.SIZE - 1, np.uint8),
        np.zeros(Journal.SIZE, np.int8),
        np.zeros((2, Journal.SIZE // 2), np.uint8),
        np.zeros(2 * Journal.SIZE, np.uint8)[::2],
        np.frombuffer(bytes(Journal.SIZE), np.uint8),
    ],
    ids=["short", "signed", "2-d", "strided", "read-only"],
)
def test_other_memory_is_refused(memory: Any) -> None:
    with pytest.raises(ValueError, match=rf"uint8 array of shape \({Journal.SIZE},\)"):
        Journal(memory)


WRITER = """
import mmap, sys
import numpy as np
from kary_replay.journal import Journal

with open(sys.argv[1], "r+b") as file:
    journal = Journal(np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8))
state = journal.read() or {"step": 0}
while True:
    step = state["step"] + 1
    state = {"step": step, "check": -step, "padding": "x" * (step * 37 % 6000)}
    journal.write(state)
    sys.stdout.write(f"{step}\\n")
    sys.stdout.flush()
"""


@pytest.mark.deaths
@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is of POSIX")
def test_a_killed_writer_leaves_its_newest_record_or_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(bytes(Journal.SIZE))
    rng = np.random.default_rng(0)
    last = 0
    for _ in range(36):
        command = [sys.executable, "-c", WRITER, os.fspath(path)]
        with subprocess.Popen(command, cwd=path.parent, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            first = int(writer.stdout.readline())
            time.sleep(rng.uniform(0.0, 0.02))
            writer.send_signal(signal.SIGKILL)
            said = [first, *map(int, writer.stdout.read().split(b"\n")[:-1])]
        state = Journal(np.frombuffer(bytearray(path.read_bytes()), np.uint8)).read()
        assert first == last + 1
        assert state is not None
        last = state["step"]
        assert said[-1] <= last <= said[-1] + 1  # it may have died before it said so
        assert state == {"step": last, "check": -last, "padding": "x" * (last * 37 % 6000)}
