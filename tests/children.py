"""What child processes do in the tests of shared buffers; spawned ones load this and no more."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from kary_replay import ReplayBuffer


def answer(
    connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    connection.send(function(*arguments))


def call(context: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns in a child process."""
    here, there = context.Pipe()
    with here:
        child = context.Process(target=answer, args=(there, function, arguments))
        child.start()
        there.close()
        result = here.recv()
        child.join(60)
        assert child.exitcode == 0
        child.close()
    return result


def content(buffer: ReplayBuffer) -> dict[str, Any]:
    """All that a buffer is, but for its generator."""
    settings = ("eps", "weight_norm", "stratified", "alpha")
    return buffer._state() | {
        "generator": None,
        "declared": repr(buffer.columns),
        "length": len(buffer),
        "nbytes": buffer.nbytes,
        "fanout": buffer._arguments().get("fanout"),
        **{name: getattr(buffer._sampler, name, None) for name in settings},
    }


def add(buffer: ReplayBuffer, rows: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return buffer.add(**rows), content(buffer)


def draw(buffer: ReplayBuffer) -> list[int]:
    return [int(key) for key in buffer.sample(16).keys]


def draw_or_pass_on(context: Any, buffer: ReplayBuffer) -> tuple[list[int], list[int]]:
    """What a child's child draws, and then the child."""
    return call(context, draw, buffer), draw(buffer)


def close_twice(buffer: ReplayBuffer) -> tuple[int, int]:
    """How many descriptors and mappings that gave back."""
    buffer.add(number=[7])
    before = descriptors(), len(shared_mappings())
    buffer.close()
    buffer.close()
    return before[0] - descriptors(), before[1] - len(shared_mappings())


def same(one: ReplayBuffer, other: list[ReplayBuffer]) -> tuple[bool, Any]:
    one.add(number=[9])
    return one is other[0], content(other[1])["rows"]


def is_shared(buffer: ReplayBuffer) -> tuple[bool, dict[str, Any]]:
    return buffer._arena.is_shared, content(buffer)


def inheritable(_: ReplayBuffer) -> set[bool]:
    files = Path("/proc/self/fd")
    return {
        os.get_inheritable(int(name))
        for name in os.listdir(files)
        if os.path.lexists(files / name) and "kary-replay" in os.readlink(files / name)
    }


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_mappings() -> list[str]:
    """The lines of /proc/self/maps with memory that is shared and can be written to."""
    with Path("/proc/self/maps").open() as maps:
        return [line for line in maps if line.split()[1] == "rw-s"]


def named_mappings() -> list[str]:
    """Those of files that somebody would have to remove."""
    return [line for line in shared_mappings() if not line.endswith("(deleted)\n")]


def holders(inode: int) -> set[int]:
    """The processes that have the memory of that number mapped."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            maps = (folder / "maps").read_text()
        except OSError:  # ended meanwhile, or somebody else's
            continue
        if any(
            "kary-replay" in line and line.split()[4] == str(inode) for line in maps.splitlines()
        ):
            found.add(int(folder.name))
    return found


def rows(first: int, count: int) -> dict[str, Any]:
    number = np.arange(first, first + count)
    return {"number": number, "obs": np.stack([number, -number], axis=1).astype(">f4")}
