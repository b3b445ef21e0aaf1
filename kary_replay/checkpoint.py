"""Named arrays in one file: written whole or not at all, refused unless whole."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

META = "meta"  # the entry that holds everything that is no array, as JSON
FORMAT = "kary-replay 3"

State = dict[str, Any]


def save(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Writes `state` (arrays, and values that JSON can hold) to `path`.

    The file is an uncompressed .npz. It takes the place of an older one only when it is
    complete and on disk; an error leaves the older one as it was.
    """
    path = Path(path)
    arrays: State = {name: each for name, each in state.items() if isinstance(each, np.ndarray)}
    meta = {name: value for name, value in state.items() if name not in arrays}
    meta["format"] = FORMAT
    arrays[META] = np.array(json.dumps(meta, default=_plain))
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(draft, "xb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def load(path: str | os.PathLike[str]) -> State:
    """Reads what `save` wrote.

    Raises ValueError for a file that is cut off, damaged, or something else; OSError if it
    cannot be read.
    """
    with open(path, "rb") as file:
        try:
            return _read(file)
        except Exception as error:  # zipfile, zlib, NumPy and JSON have many names for damage
            raise ValueError(f"{os.fspath(path)!r} is not a complete file of {FORMAT!r}") from error


def _read(file: BinaryIO) -> State:
    with np.load(file, allow_pickle=False) as archive:
        state: State = {name: archive[name] for name in archive.files}
    meta: State = json.loads(str(state.pop(META)))
    if meta.pop("format") != FORMAT:
        raise ValueError("another format")
    return state | meta


def generator_state(rng: np.random.Generator) -> State:
    """The state of a generator, for `generator`."""
    with rng.bit_generator.lock:  # another thread may be drawing
        return dict(rng.bit_generator.state)


def generator(state: State) -> np.random.Generator:
    """A generator that goes on from `state`."""
    bit_generator = getattr(np.random, state["bit_generator"])()
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def _plain(value: npt.NDArray[Any]) -> list[Any]:
    """Arrays inside a generator's state (MT19937, Philox)."""
    plain: list[Any] = value.tolist()
    return plain
