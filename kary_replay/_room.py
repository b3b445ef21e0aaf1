"""How many bytes are left: of memory, for this process, and on the disk of a directory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


def memory_left() -> int | None:
    """What the system, or a tighter control group, can still give; None where neither says."""
    try:
        return min([_available(), *_left_in_groups()])
    except OSError:  # not Linux
        return None


def disk_left(directory: Path) -> int:
    """What an ordinary user can still write there."""
    return shutil.disk_usage(directory).free


def _available() -> int:
    return 1024 * _number("MemAvailable:", PROC / "meminfo")


def _left_in_groups() -> list[int]:
    """What is left in each control group with a limit that this process is in."""
    left: list[int] = []
    groups = PROC / "self" / "cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            names = ("memory.max", "memory.current", "inactive_file")
            left += _left_above(CGROUPS, path, *names)
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            left += _left_above(CGROUPS / "memory", path, *names)
    return left


def _left_above(root: Path, path: str, limit: str, usage: str, cache: str) -> Iterator[int]:
    """For a group and all that it is part of.  A container may see no more than the root."""
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if folder == root.parent:
            return
        try:
            most, used = int((folder / limit).read_text()), int((folder / usage).read_text())
            # Of the files that the kernel remembers, it can forget these at once.
            yield most - used + _number(cache, folder / "memory.stat")
        except (OSError, ValueError):  # no such group from here, or "max"
            continue


def _number(name: str, file: Path) -> int:
    """The number behind a name at the beginning of a line.  OSError if there is none."""
    found = re.search(rf"^{name}\s+(\d+)", file.read_text(), re.MULTILINE)
    if found is None:
        raise OSError(f"no {name} in {file}")
    return int(found[1])
