"""Where bytes live: one block with named arrays in it, in memory or in a directory.

    layout       name -> (shape, dtype); each array begins at a multiple of 64 bytes
    block        all of them, in the order of the layout; zeros at first

Private memory is the process's own and goes with it.  Shared memory is that of its children too,
and goes with the last of them.  A directory outlives them all:

    block        a file of the size of the block, mapped into memory
    arena.json   format, layout, and what the block is to its owner; written last and at once, so
                 a directory that lacks it was never in use, and is made anew
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from kary_replay import _room, shared

Array: TypeAlias = npt.NDArray[Any]
Layout: TypeAlias = Mapping[str, tuple[tuple[int, ...], npt.DTypeLike]]
Json: TypeAlias = dict[str, Any]
Storage: TypeAlias = "str | os.PathLike[str] | Arena"

CACHE_LINE = 64
FORMAT = "kary-replay arena 1"
BLOCK, META, DRAFT = "block", "arena.json", "arena.json.draft"


class Arena:
    """Arrays by name; `arena["rows"]` is the memory itself, not a copy.

    Attributes
    ----------
    fresh : bool.  Whether all bytes are 0; if not, they are those of another process.
    nbytes : int.  Bytes of the block, with what aligns it.

    Made by `allocate`.
    """

    def __init__(
        self,
        layout: Layout,
        block: Array,
        *,
        fresh: bool = True,
        holder: _Lock | shared.Memory | None = None,
    ) -> None:
        offsets, size = _offsets(layout)
        self.fresh = fresh
        self.nbytes = block.nbytes
        self._layout = layout
        self._holder = holder
        first = -block.ctypes.data % CACHE_LINE
        block = block[first : first + size]
        self._arrays: dict[str, Array] = {
            name: np.ndarray(shape, dtype, block, offsets[name])
            for name, (shape, dtype) in layout.items()
        }

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    @property
    def is_shared(self) -> bool:
        """Whether child processes have the memory itself, and not a copy."""
        return isinstance(self._holder, shared.Memory)

    @property
    def is_inherited(self) -> bool:
        """Whether forked children have the memory itself, and not a copy."""
        return self._holder is not None

    @property
    def is_being_handed_over(self) -> bool:
        """Whether pickling gives the memory to a child that this thread is starting just now."""
        return self.is_shared and shared.is_starting_a_child()

    def close(self) -> None:
        """Lets others open the directory; nobody may write to the arrays any more.

        The memory goes with the last of them, in this process and all that share it.  Without
        `close`, so does the directory's lock.
        """
        self._arrays = {}
        if self._holder is not None:
            self._holder.release()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_being_handed_over:
            raise TypeError("an arena can be pickled only for a child process that shares it")
        return _attach, (self._layout, self._holder)


def allocate(
    layout: Layout,
    storage: Storage = "private",
    description: Mapping[str, Any] | None = None,
) -> Arena:
    """A new arena, or the one that a directory holds.

    Warns, before anything is allocated, if the bytes are more than what is free: of memory, or
    on the disk.  A directory's space is reserved where it suffices, so that a disk which fills
    up later is no error here.  Shared memory is all taken at once, or refused.

    Parameters
    ----------
    layout : mapping of name to (shape, dtype).  An order of its own, which a directory keeps.
    storage : "private", "shared", or a directory: a path, or a string with a separator in it
        Or an arena that was handed over to this process: then it is that one.
    description : mapping of what JSON can hold
        What the arrays mean to the caller.  A directory gives them back to the same only.

    Raises
    ------
    ValueError, TypeError
        A storage that is none of these.
    MemoryError
        Shared memory of more bytes than are free.
    ValueError
        A directory of another format, description or layout, or whose block is cut off.
        Nothing in it is changed.  An arena of another layout.
    BlockingIOError
        A directory that is open already, in this process or another.
    OSError
        A directory that cannot be written.
    """
    if isinstance(storage, Arena):
        return _handed_over(layout, storage)
    if is_directory(storage):
        return _directory(Path(storage), layout, description or {})
    if storage == "private":
        return _private(layout)
    if storage == "shared":
        return _shared(layout)
    error = ValueError if isinstance(storage, str) else TypeError
    raise error(
        f"storage must be 'private', 'shared', or a directory (a Path, or a string with "
        f"{os.sep!r} in it), got {storage!r}"
    )


def is_directory(storage: object) -> bool:
    """Whether `storage` names a directory, and what lies there outlives the process."""
    return isinstance(storage, os.PathLike) or (isinstance(storage, str) and os.sep in storage)


def _private(layout: Layout) -> Arena:
    _, size = _offsets(layout)
    size += CACHE_LINE
    _warn_if_more(size, _room.memory_left(), "of memory")
    return Arena(layout, np.zeros(size, np.uint8))


def _shared(layout: Layout) -> Arena:
    memory = shared.create(_offsets(layout)[1])
    return Arena(layout, memory.block(), holder=memory)


def _attach(layout: Layout, memory: shared.Memory) -> Arena:
    """The arena that another process handed over."""
    return Arena(layout, memory.block(), fresh=False, holder=memory)


def _handed_over(layout: Layout, arena: Arena) -> Arena:
    if dict(layout) != dict(arena._layout):
        raise ValueError(f"layout must be that of the arena, {arena._layout}, got {layout}")
    return arena


def _directory(path: Path, layout: Layout, description: Mapping[str, Any]) -> Arena:
    meta, (_, size) = _meta(layout, description), _offsets(layout)
    path.mkdir(parents=True, exist_ok=True)
    lock = _Lock(path)
    try:
        fresh = not (path / META).exists()
        if fresh:
            _create(path, lock.fd, size, meta)
        else:
            _check(path, lock.fd, size, meta)
            _reserve(path, lock.fd, size)
        mapping = mmap.mmap(lock.fd, size)
    except BaseException:
        lock.release()
        raise
    _advise(mapping, layout)
    return Arena(layout, np.frombuffer(mapping, np.uint8), fresh=fresh, holder=lock)


class _Lock:
    """The open block of a directory, for one opener at a time.

    The mapping keeps a duplicate of `fd`, and with it the lock: it goes with the last of both, or
    with the process.  A forked child shares it.
    """

    fd = -1

    def __init__(self, directory: Path) -> None:
        try:
            import fcntl  # Windows has none
        except ImportError as error:
            raise ValueError("storage in a directory needs the file locks of POSIX") from error
        self._unlock: Callable[[int], None] = lambda fd: fcntl.flock(fd, fcntl.LOCK_UN)
        self.fd = os.open(directory / BLOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(
                errno.EWOULDBLOCK,
                "the directory is open already, in this process or another",
                os.fspath(directory),
            ) from None

    def release(self) -> None:
        """Unlocks for all who share it; does nothing the second time."""
        if self.fd >= 0:
            self._unlock(self.fd)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    __del__ = _close


def _create(path: Path, fd: int, size: int, meta: Json) -> None:
    """Makes a directory that holds nothing yet, or what a creator left that was killed."""
    found = os.fstat(fd).st_size
    if found and not (path / DRAFT).exists():
        raise ValueError(f"{path} has a {BLOCK} of {found} bytes, and no {META} to say what it is")
    with open(path / DRAFT, "w", encoding="utf-8") as file:
        json.dump(meta, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.ftruncate(fd, 0)
        os.ftruncate(fd, size)
        _reserve(path, fd, size)
    except BaseException:
        os.ftruncate(fd, 0)
        raise
    os.replace(path / DRAFT, path / META)


def _check(path: Path, fd: int, size: int, meta: Json) -> None:
    """ValueError unless the directory holds just what would be made now."""
    try:
        found: Json = json.loads((path / META).read_text(encoding="utf-8"))
        there = found["format"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path / META} is damaged, or no description of an arena") from error
    if there != FORMAT:
        raise ValueError(f"{path} has the format {there!r}, and this version reads {FORMAT!r}")
    for what in ("description", "layout"):
        for name, theirs, ours in _differences(found.get(what), meta[what], what):
            raise ValueError(f"{path} was made with another {name}: {theirs!r}, got {ours!r}")
    length = os.fstat(fd).st_size
    if length != size:
        how = "is cut off" if length < size else "is too long"
        raise ValueError(f"{path / BLOCK} {how}: it has {length} of {size} bytes")


def _differences(theirs: Any, ours: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    """Where two trees of JSON differ: name, and both values; None for what is missing."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in ours | theirs:
            yield from _differences(theirs.get(key), ours.get(key), f"{name}[{key!r}]")
    elif theirs != ours:
        yield name, theirs, ours


def _reserve(path: Path, fd: int, size: int) -> None:
    """Takes the disk's space for the block, so that nobody else can; warns if there is too little.

    Then the file stays sparse, and the process is killed by the first page that finds no space.
    """
    missing, left = size - 512 * os.fstat(fd).st_blocks, _room.disk_left(path)
    _warn_if_more(missing, left, f"on the disk of {path}")
    if not 0 < missing <= left or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # some file systems only
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def _advise(mapping: mmap.mmap, layout: Layout) -> None:
    """No reading ahead in the largest array, where memory cannot keep what was not asked for."""
    left = _room.memory_left()
    if left is None or len(mapping) <= left:
        return
    offsets, _ = _offsets(layout)
    name = max(layout, key=lambda name: _nbytes(*layout[name]))
    first = -(-offsets[name] // mmap.PAGESIZE) * mmap.PAGESIZE
    length = offsets[name] + _nbytes(*layout[name]) - first
    if length > 0:
        mapping.madvise(mmap.MADV_RANDOM, first, length)


def _meta(layout: Layout, description: Mapping[str, Any]) -> Json:
    """What arena.json says, as it reads back."""
    offsets, _ = _offsets(layout)
    arrays = {
        name: {"offset": offsets[name], "shape": shape, "dtype": np.dtype(dtype).descr}
        for name, (shape, dtype) in layout.items()
    }
    meta = {"format": FORMAT, "description": dict(description), "layout": arrays}
    read_back: Json = json.loads(json.dumps(meta))
    return read_back


def _offsets(layout: Layout) -> tuple[dict[str, int], int]:
    """Where each array begins, and the bytes of all of them."""
    offsets, end = {}, 0
    for name, (shape, dtype) in layout.items():
        offsets[name] = end
        end += -(-_nbytes(shape, dtype) // CACHE_LINE) * CACHE_LINE
    return offsets, end


def _nbytes(shape: tuple[int, ...], dtype: npt.DTypeLike) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _warn_if_more(needed: int, left: int | None, where: str) -> None:
    if left is not None and needed > left:
        warnings.warn(
            f"the replay buffer needs more than is free {where}: "
            f"{needed / 1e9:.2f}GB > {left / 1e9:.2f}GB",
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The `stacklevel`, for a warning of the function that asks, of the line that is not ours."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == "kary_replay":
        level, frame = level + 1, frame.f_back
    return level
