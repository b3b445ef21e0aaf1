"""Every state in which a process can leave a buffer's directory, one machine instruction apart.

A forked child makes one call while its parent lets it run, stops it at each instruction of the
compiled parts, and keeps a copy of the block whenever a byte of it has changed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TRACEME, CONT, SINGLESTEP = 0, 7, 9

steps_through = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="ptrace of Linux on x86-64"
)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
no_fork_warning = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Marked:
    """An object whose methods `names` stop the process before and after."""

    def __init__(self, inner: Any, names: tuple[str, ...]) -> None:
        self._inner, self._names = inner, names

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)
        if name not in self._names:
            return method

        def stopping(*arguments: Any) -> Any:
            os.kill(os.getpid(), signal.SIGSTOP)
            result = method(*arguments)
            os.kill(os.getpid(), signal.SIGSTOP)
            return result

        return stopping


def blocks(path: Path, call: Callable[[], Any]) -> list[bytes]:
    """The different blocks that a process leaves that dies anywhere in `call`.

    `call` runs in a forked child; what it does between two stops of a `Marked` is gone through.
    """
    with (
        open(path / "block", "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as block,
    ):
        seen = [block[:]]
        for _ in _instructions(call):
            now = block[:]
            if now != seen[-1]:
                seen.append(now)
    return seen


def _instructions(call: Callable[[], Any]) -> Iterator[None]:
    ptrace = ctypes.PyDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if ptrace(TRACEME, 0, None, None) == 0:
                call()
                status = 0
        finally:
            os._exit(status)
    request = CONT
    while True:
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            break
        yield
        if os.WSTOPSIG(status) == signal.SIGSTOP:  # a part begins, or ends
            request = CONT if request == SINGLESTEP else SINGLESTEP
        assert os.WSTOPSIG(status) in (signal.SIGSTOP, signal.SIGTRAP), status
        assert ptrace(request, child, None, None) == 0, os.strerror(ctypes.get_errno())
    if os.WEXITSTATUS(status) == 1:
        pytest.skip("ptrace is not allowed here, or the call failed")


def directory_with(path: Path, model: Path, block: bytes | None = None) -> Path:
    """A copy of the directory `model`, with its block or another."""
    shutil.copytree(model, path)
    if block is not None:
        (path / "block").write_bytes(block)
    return path
