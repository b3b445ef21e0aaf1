"""Stacks of frames, as SB3's VecFrameStack makes them: each frame is stored once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kary_replay.checks import check_count

from .observations import Array, Part


class FrameStack:
    """Stacks of `size` frames, the newest last, along the axis of their channels.

    That is, as in VecFrameStack, the first axis of images with channels first, and the last axis
    of all else.

    Parameters
    ----------
    part : the observations, one Box
    size : int >= 1
    n_envs : how many streams of them there are

    Raises TypeError or ValueError for observations that are no such stacks.
    """

    def __init__(self, part: Part, size: int, n_envs: int) -> None:
        self.size = check_count("frame_stack", size)
        shape = part.shape
        self._axis = _axis_of_channels(shape, self.size)
        if not shape or shape[self._axis] % size:
            raise ValueError(
                f"frame_stack must divide the channels of the observations, axis {self._axis} of "
                f"{shape}, got {size}"
            )
        channels = shape[self._axis] // size
        self.frame_shape = (*shape[: self._axis], channels, *shape[self._axis + 1 :])
        self._older = self._channels(slice(None, -channels))
        self._newer = self._channels(slice(channels, None))
        self._newest = self._channels(slice(-channels, None))
        # Of each stream: the stack that its next step begins with unless it ended, and its age.
        self._expected = np.zeros((n_envs, *shape), part.dtype)
        self._ages = np.zeros(n_envs, np.int32)
        self._ended = np.ones(n_envs, np.bool_)

    def _channels(self, channels: slice) -> tuple[slice, ...]:
        return (slice(None),) * (1 + self._axis) + (channels,)

    def stacked(self, frames: Array) -> Array:
        """Stacks out of `frames`, shape (n, size, *frame_shape)."""
        n, shape = len(frames), list(self.frame_shape)
        shape[self._axis] *= self.size
        return np.moveaxis(frames, 1, 1 + self._axis).reshape(n, *shape)

    def frames(self, observations: Array, next_observations: Array) -> dict[str, Array]:
        """What a core is to store of one step of each environment, which is checked.

        `age` is the number of steps of its episode before it.  Frames alone would not tell a new
        episode from one that goes on with an equal frame.

        Raises ValueError where `observations` neither continue the step before them nor begin an
        episode, by frames of zeros before its first one, or `next_observations` are not
        `observations` moved on by a frame.
        """
        continues = ~self._ended & _equal(observations, self._expected)
        if not continues.all():
            self._refuse(
                "obs",
                "continue the step before it, or begin an episode: frames of zeros, and its first",
                continues | _equal(observations[self._older], 0),
            )
        self._refuse(
            "next_obs",
            "be obs moved on by one frame (at the end of an episode VecNormalize changes it, "
            "unless norm_obs=False)",
            _equal(next_observations[self._older], observations[self._newer]),
        )
        ages = np.where(continues, self._ages, np.int32(0))
        return {
            "observations": observations[self._newest],
            "next_observations": next_observations[self._newest],
            "age": ages,
            "next_age": ages + np.int32(1),
        }

    def _refuse(self, name: str, rule: str, fits: npt.NDArray[np.bool_]) -> None:
        if not fits.all():
            raise ValueError(
                f"{name} must be a stack of {self.size} frames along axis {self._axis}: it must "
                f"{rule}, which it does not in environment {int(np.argmin(fits))}"
            )

    def move_on(
        self, next_observations: Array, next_age: Array, ended: npt.NDArray[np.bool_]
    ) -> None:
        """Notes what the next steps must begin with, after those before them were stored."""
        self._expected = next_observations.copy()
        self._ages = next_age
        self._ended = ended


def _axis_of_channels(shape: tuple[int, ...], size: int) -> int:
    """That of three along which a frame is smallest, or else the last.

    If both ends can be, small stacks of images, it is the one with 1, 3 or 4 channels a frame.
    """
    ends = []
    for axis in (0, 2) if len(shape) == 3 else ():
        frame = [length // size if a == axis else length for a, length in enumerate(shape)]
        if shape[axis] % size == 0 and int(np.argmin(frame)) == axis:
            ends.append((frame[axis] not in (1, 3, 4), frame[axis], axis))
    return min(ends)[2] if ends else max(len(shape) - 1, 0)


def _equal(stacks: Array, others: Array | int) -> npt.NDArray[np.bool_]:
    """Which of the stacks are the same; shape (n,)."""
    return np.asarray((stacks == others).reshape(len(stacks), -1).all(axis=1))
