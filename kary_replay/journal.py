"""A small record that survives the death of its process at any moment.

    place 0   number | length | checksum | JSON ...
    place 1   number | length | checksum | JSON ...

A write goes to the place that does not hold the newest record, under the next number.  Whoever
reads takes the place of the highest number whose checksum holds: a write that was cut off leaves
the record before it.
"""

from __future__ import annotations

import json
import struct
import threading
import zlib
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from kary_replay.checkpoint import State

PLACE = 8192  # bytes; the longest state, that of MT19937, is 624 numbers of up to 10 digits
HEADER = struct.Struct("<QII")  # number (1, 2, ...), length of the JSON, checksum
NUMBERS = struct.Struct("<QI")  # what the checksum covers beside the JSON


class Journal:
    """The newest record that was written whole.  Threads may write at once.

    Parameters
    ----------
    memory : uint8 array, shape (Journal.SIZE,), contiguous and writable.  Zeros in the beginning.

    Raises ValueError for other memory, or where no record is left of those that were there.
    """

    SIZE: ClassVar[int] = 2 * PLACE

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None:
        view = memory.data
        if view.format != "B" or view.shape != (self.SIZE,) or view.readonly or not view.contiguous:
            raise ValueError(
                f"memory must be a contiguous, writable uint8 array of shape ({self.SIZE},), "
                f"got format {view.format!r} of shape {view.shape}"
            )
        self._places = view[:PLACE], view[PLACE:]
        self._writing = threading.Lock()
        self._number = max(map(_whole_number, self._places))
        if self._number == 0 and all(HEADER.unpack_from(place)[0] for place in self._places):
            raise ValueError(
                "memory must hold a whole record, and both that were there are damaged"
            )

    def write(self, state: State) -> None:
        """Records `state`, a dict of what JSON can hold, and of arrays, which become lists.

        Raises ValueError, and changes nothing, if it is too long for a place.
        """
        text = _ENCODER.encode(state).encode()
        if len(text) > PLACE - HEADER.size:
            raise ValueError(
                f"state must have at most {PLACE - HEADER.size} bytes of JSON, got {len(text)}"
            )
        with self._writing:
            number = self._number + 1
            place = self._places[number % 2]
            place[HEADER.size : HEADER.size + len(text)] = text
            HEADER.pack_into(place, 0, number, len(text), _checksum(number, text))
            self._number = number

    def read(self) -> State | None:
        """The newest record, or None if there is none yet."""
        if self._number == 0:
            return None
        place = self._places[self._number % 2]
        _, length, _ = HEADER.unpack_from(place)
        state: State = json.loads(bytes(place[HEADER.size : HEADER.size + length]))
        return state


def _whole_number(place: memoryview) -> int:
    """The number of the record in a place; 0 if there is none, or it was cut off."""
    number, length, checksum = HEADER.unpack_from(place)
    text = place[HEADER.size : HEADER.size + length]
    return int(number) if checksum == _checksum(number, text) else 0


def _checksum(number: int, text: bytes | memoryview) -> int:
    return zlib.crc32(text, zlib.crc32(NUMBERS.pack(number, len(text))))


def _plain(value: Any) -> Any:
    """Arrays inside a generator's state (MT19937, Philox, SFC64), and NumPy's numbers."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise TypeError(f"state must hold what JSON can, got {value!r}")
    return value.tolist()


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_plain)
