"""Memory that processes share, and how a child process comes to it.

It is an open file that no directory lists.  So nobody has to remove it: the kernel frees it with
the last process that has it open or mapped, however that one ends.

A forked child has both.  To a child that is spawned, or forked by a server, `multiprocessing`
passes the open file when it pickles what the child gets.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kary_replay import _room

NAME = "kary-replay"  # only for those who look into /proc
RESERVED_AT_ONCE = 1 << 24  # bytes: some ms, so that signals do not make the kernel start again


class Memory:
    """An open file of `size` bytes that this process may hand over to its children.

    Closed with the object, or before by `release`; what is mapped then stays.
    """

    fd = -1

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    def block(self) -> npt.NDArray[np.uint8]:
        """All bytes, the same in every process; unmapped with the last array that shows them."""
        return np.frombuffer(mmap.mmap(self.fd, self.size), np.uint8)

    def release(self) -> None:
        """Nobody can be given the memory any more; does nothing the second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    __del__ = release

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd  # loaded by whoever comes here

        return _received, (DupFd(self.fd), self.size)


def is_starting_a_child() -> bool:
    """Whether this thread is pickling what a child process gets at its start."""
    from multiprocessing.context import get_spawning_popen  # for those who share; it takes a while

    return get_spawning_popen() is not None


def create(size: int) -> Memory:
    """`size` bytes of zeros, for which the pages are taken already.

    Otherwise a process would be killed by the first page that finds no room.

    Raises
    ------
    MemoryError
        If fewer bytes are free.
    ValueError
        Where no memory can be shared like this.
    """
    if os.name != "posix":
        raise ValueError("storage='shared' needs the open files of POSIX")
    in_memory = hasattr(os, "memfd_create")
    _refuse_if_more(size, _room.memory_left(), "of memory")
    if not in_memory:
        folder = Path(tempfile.gettempdir())
        _refuse_if_more(size, _room.disk_left(folder), f"on the disk of {folder}")
    fd = os.memfd_create(NAME, os.MFD_CLOEXEC) if in_memory else _file_without_name()
    memory = Memory(fd, size)
    try:
        _reserve(fd, size)
    except BaseException:
        memory.release()
        raise
    return memory


def _refuse_if_more(needed: int, left: int | None, where: str) -> None:
    if left is not None and needed > left:
        raise MemoryError(f"storage='shared' needs {needed:,} bytes, and {left:,} are free {where}")


def _file_without_name() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _reserve(fd: int, size: int) -> None:
    for start in range(0, size, RESERVED_AT_ONCE):
        length = min(RESERVED_AT_ONCE, size - start)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, start, length)
        else:
            _write_zeros(fd, start, length)


def _write_zeros(fd: int, start: int, length: int) -> None:
    """Takes the pages where the system cannot be asked for them."""
    zeros = memoryview(bytes(length))
    while zeros:
        written = os.pwrite(fd, zeros, start)
        start, zeros = start + written, zeros[written:]


class _Passed(Protocol):
    def detach(self) -> int: ...


def _received(passed: _Passed, size: int) -> Memory:
    """The memory that the parent handed over."""
    fd = passed.detach()
    os.set_inheritable(fd, False)  # but only to children that are meant to have it
    return Memory(fd, size)
