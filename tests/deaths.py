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
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TRACEME, CONT, SINGLESTEP = 0, 7, 9
FAILED, NOT_ALLOWED = 1, 77  # how a child ends

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
        for _ in instructions(call):
            now = block[:]
            if now != seen[-1]:
                seen.append(now)
    return seen


def instructions(call: Callable[[], Any]) -> Iterator[None]:
    """Stops where a process that makes the call may die, or be stopped; it goes on after each."""
    child = Traced(call)
    request = CONT
    while signal_number := child.wait():
        yield
        if signal_number == signal.SIGSTOP:  # a part begins, or ends
            request = CONT if request == SINGLESTEP else SINGLESTEP
        child.go_on(request)


class Traced:
    """A forked child that makes the call, as far as its parent lets it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._ptrace = ctypes.PyDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.pid = os.fork()
        if self.pid == 0:
            status = FAILED
            try:
                if self._ptrace(TRACEME, 0, None, None) != 0:
                    status = NOT_ALLOWED
                else:
                    call()
                    status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)

    def wait(self) -> int:
        """The signal that has stopped it; 0 when it has ended."""
        _, status = os.waitpid(self.pid, 0)
        if os.WIFSTOPPED(status):
            assert os.WSTOPSIG(status) in (signal.SIGSTOP, signal.SIGTRAP), status
            return os.WSTOPSIG(status)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == NOT_ALLOWED:
            pytest.skip("ptrace is not allowed here")
        assert status == 0, "the call failed"
        return 0

    def go_on(self, request: int) -> None:
        """By an instruction (SINGLESTEP), or until it is stopped (CONT)."""
        assert self._ptrace(request, self.pid, None, None) == 0, os.strerror(ctypes.get_errno())

    def step(self) -> bool:
        """Lets it make an instruction; whether it is still there."""
        self.go_on(SINGLESTEP)
        return self.wait() != 0

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        assert self.wait() == signal.SIGSTOP

    def finish(self) -> None:
        """Lets it go on to its end."""
        self.go_on(CONT)
        assert self.wait() == 0


def directory_with(path: Path, model: Path, block: bytes | None = None) -> Path:
    """A copy of the directory `model`, with its block or another."""
    shutil.copytree(model, path)
    if block is not None:
        (path / "block").write_bytes(block)
    return path
