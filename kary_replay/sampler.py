"""Which rows are drawn, and what they weigh: every formula of prioritized replay.

After "Prioritized Experience Replay" (arXiv 1511.05952): section 3.3 for priority and
probability, 3.4 for the importance weights, appendix B.2.1 for the strata.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kary_replay._parts import Parts
from kary_replay._ring import Ring
from kary_replay._sampling import places, priorities, relative, stratify
from kary_replay._sum_tree import SumTree
from kary_replay.checks import check_count, check_number

Float64s: TypeAlias = npt.NDArray[np.float64]
Int64s: TypeAlias = npt.NDArray[np.int64]

PATIENCE = 32  # looks at rows of which few may be drawn, before these are listed


@dataclass(frozen=True)
class LinearSchedule:
    """A number that moves from `start` to `end` in `steps` equal steps and stays there.

    Raises TypeError or ValueError unless both ends are finite numbers >= 0 and `steps` is an
    integer >= 1.
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        check_number("start", self.start)
        check_number("end", self.end)
        check_count("steps", self.steps)

    def at(self, step: int) -> float:
        """The number after `step` steps."""
        if step >= self.steps:
            return float(self.end)
        return self.start + (self.end - self.start) * (step / self.steps)


class Draw(NamedTuple):
    """What one draw of n rows says of them; each array has shape (n,)."""

    slots: Int64s
    probabilities: Float64s | None
    weights: npt.NDArray[np.float32] | None


@dataclass(slots=True)
class Found:
    """Where rows were found, perhaps not yet for good; each array has shape (n,).

    Slot -1 is none: others were just retiring the row.
    """

    slots: Int64s
    masses: Float64s | None = None
    total: float = 0.0
    rounds: int = 0  # of looking again


class UniformSampler:
    """Draws every drawable row of a ring with the same probability."""

    def __init__(self, ring: Ring, rng: np.random.Generator) -> None:
        self._ring = ring
        self.rng = rng

    has_mass: ClassVar[bool] = True

    def find(self, size: int) -> Found:
        """Finds `size` of all rows with replacement, drawable or not."""
        return Found(self._slots(size))

    def find_again(self, found: Found, positions: Int64s) -> None:
        """Replaces what was found at `positions`."""
        found.rounds += 1
        if found.rounds < PATIENCE:
            found.slots[positions] = self._slots(len(positions))
            return
        live = self._ring.live_slots()  # few of them, if so many looks were in vain
        if live.size:
            found.slots[positions] = live[self.rng.integers(live.size, size=len(positions))]

    def finish(self, found: Found, live: int) -> Draw:  # noqa: ARG002 (the other needs it)
        """What there is to say of rows that were found for good."""
        return Draw(found.slots, None, None)

    def _slots(self, size: int) -> Int64s:
        """Slots of any rows, drawable or not."""
        nth = places(self.rng.random(size), self._ring.filled)
        if self._ring.lanes == 1:  # then the rows are the first slots
            return nth
        counts = self._ring.counts()
        ends = np.cumsum(counts)
        lane = np.searchsorted(ends, nth, side="right")
        row = nth - (ends - counts)[lane]
        slots: Int64s = row * self._ring.lanes + lane
        return slots


class PrioritizedSampler:
    """Draws rows with probability mass / total, and weighs them against the bias.

        priority = abs(td_error) + eps
        mass     = priority ** alpha                     what a leaf of the tree holds
        weight   = (N * mass / total) ** -beta           N is the number of live rows

    That is (mean mass / mass) ** beta.  Over the largest such weight, which belongs to the
    smallest mass, it is (smallest mass / mass) ** beta: N and total cancel.  Rows never written
    have mass 0, whatever alpha.

    Parameters
    ----------
    capacity : number of rows
    alpha : float >= 0.  0 draws uniformly.
    beta : float >= 0, or a LinearSchedule that moves one step a draw.
    eps : float >= 0
    weight_norm : "batch", "buffer" or "none".  Over the largest weight in the batch, over that
        of any row, or as they are.
    stratified : bool.  One target from each of n equal strata, or n independent targets.
    fanout : of the sum tree
    rng : where targets come from
    """

    def __init__(
        self,
        capacity: int,
        *,
        alpha: float,
        beta: float | LinearSchedule,
        eps: float,
        weight_norm: str,
        stratified: bool,
        fanout: int,
        rng: np.random.Generator,
    ) -> None:
        if weight_norm not in ("batch", "buffer", "none"):
            raise ValueError(
                f"weight_norm must be 'batch', 'buffer' or 'none', got {weight_norm!r}"
            )
        if not isinstance(stratified, (bool, np.bool_)):
            raise TypeError(f"stratified must be a bool, got {stratified!r}")
        self.alpha = check_number("alpha", alpha)
        self.eps = check_number("eps", eps)
        self.weight_norm = weight_norm
        self.stratified = stratified
        SumTree.doubles(capacity, fanout)  # refuses what is wrong
        self.capacity, self.fanout = int(capacity), int(fanout)
        self.rng = rng
        self.set_beta(beta)
        self._priority_limit = _priority_limit(self.alpha, self.capacity)

    @cached_property
    def tree(self) -> SumTree | Parts:
        """The masses: in memory of its own, unless `move` came first."""
        return SumTree(self.capacity, self.fanout)

    @property
    def beta(self) -> float:
        """The exponent of the next draw's weights."""
        schedule, step = self.beta_state
        return schedule if isinstance(schedule, float) else schedule.at(step)

    @property
    def beta_state(self) -> tuple[float | LinearSchedule, int]:
        """Beta as it was set, and the draws since."""
        return self._beta, self._beta_step

    def set_beta(self, beta: float | LinearSchedule, step: int = 0) -> None:
        """Takes a number or a schedule; a schedule goes on from `step`."""
        self._beta = beta if isinstance(beta, LinearSchedule) else check_number("beta", beta)
        self._beta_step = step

    @property
    def has_mass(self) -> bool:
        """Whether any row can be drawn."""
        return self.tree.total > 0.0

    @property
    def max_priority(self) -> float:
        """The largest priority of any row; 1.0 without rows, or where alpha = 0 forgot them."""
        largest = self.tree.largest()
        if largest == 0.0 or self.alpha == 0.0:
            return 1.0
        return float(largest ** (1.0 / self.alpha))

    def masses(self, td_errors: Any, size: int) -> Float64s:
        """The masses of `size` TD errors, float64, shape (size,).

        `td_errors` may be signed, of shape (size,) or (size, 1), a list, an array of any real
        dtype, or a torch tensor on any device, with or without grad.

        Raises
        ------
        ValueError
            A TD error that is NaN or infinite or whose mass is too large for `size` of the
            buffer's capacity to have a finite sum; another shape.
        TypeError
            Something that is not real numbers.
        """
        errors = _as_reals(td_errors)
        if errors.shape not in ((size,), (size, 1)) and not (size == 1 and errors.ndim == 0):
            raise ValueError(
                f"td_errors must have shape ({size},) or ({size}, 1), got {errors.shape}"
            )
        sizes, wrong = priorities(errors, self.eps, self._priority_limit)
        if wrong >= 0:
            raise ValueError(self._refusal(float(errors.reshape(size)[wrong]), wrong))
        masses: Float64s = sizes**self.alpha
        return masses

    def _refusal(self, td_error: float, position: int) -> str:
        rule = "must be finite"
        if math.isfinite(td_error):
            rule = f"must be smaller than {self._priority_limit:g} with alpha = {self.alpha}"
        return f"td_errors {rule}, got {td_error} at position {position}"

    def new_mass(self) -> float:
        """The mass of new rows: the largest in the tree, 1 if there is none."""
        return self.tree.largest() or 1.0

    def update(self, slots: npt.ArrayLike, masses: float | Float64s) -> None:
        """Gives rows their masses; where the sampler has not moved, and the tree is its own."""
        assert isinstance(self.tree, SumTree)
        self.tree.update(slots, masses)

    def move(self, parts: Parts) -> None:
        """Draws from a tree that others write to."""
        self.tree = parts

    def forget(self) -> None:
        """Begins again, with a tree in memory of its own."""
        self.tree = SumTree(self.capacity, self.fanout)

    def draw(self, size: int, live: int) -> Draw:
        """Draws `size` of `live` rows with replacement, and takes one step of beta's schedule.

        Raises ValueError where no row has a mass > 0.
        """
        if not self.has_mass:  # before the generator moves
            raise ValueError("cannot draw where no row has a mass > 0")
        return self.finish(self.find(size), live)

    def find(self, size: int) -> Found:
        """Finds `size` rows with replacement."""
        return Found(*self._drawn(self._fractions(size)))

    def find_again(self, found: Found, positions: Int64s) -> None:
        """Replaces what was found at `positions`, each in its stratum."""
        fractions = self.rng.random(len(positions))
        if self.stratified:
            fractions = (fractions + positions) / float(len(found.slots))
        slots, masses, found.total = self._drawn(fractions)
        found.slots[positions] = slots
        found.masses[positions] = masses  # type: ignore[index]

    def _drawn(self, fractions: Float64s) -> tuple[Int64s, Float64s, float]:
        try:
            return self.tree.draw(fractions)
        except ValueError:  # all rows have just been retired, for the fractions are right
            return np.full(len(fractions), -1), np.zeros(len(fractions)), 0.0

    def finish(self, found: Found, live: int) -> Draw:
        """What there is to say of rows found for good; one step of beta's schedule."""
        assert found.masses is not None
        weights = self._weights(found.masses, live)
        self._beta_step += 1
        return Draw(found.slots, found.masses / found.total, weights)

    def _fractions(self, size: int) -> Float64s:
        """Numbers in [0, 1]: the j-th of them in [j / size, (j + 1) / size], if stratified."""
        fractions = self.rng.random(size)
        if self.stratified:
            stratify(fractions)
        return fractions

    def weights(self, slots: Int64s, live: int) -> npt.NDArray[np.float32]:
        """What the rows of `slots` would weigh, drawn together now; 0 where the mass is 0."""
        masses = self.tree.masses(slots)
        weights = np.zeros(len(masses), np.float32)
        drawable = masses > 0.0
        if drawable.any():
            weights[drawable] = self._weights(masses[drawable], live)
        return weights

    def _weights(self, masses: Float64s, live: int) -> npt.NDArray[np.float32]:
        if self.weight_norm == "batch":
            ratios = relative(masses)
        elif self.weight_norm == "buffer":
            ratios = relative(masses, self.tree.smallest())
        else:
            ratios = relative(masses, self.tree.total / live)
        weights: npt.NDArray[np.float32] = (ratios**self.beta).astype(np.float32)
        return weights


def generator(seed: int | np.random.Generator | None, name: str = "seed") -> np.random.Generator:
    """`seed` itself if it is a generator, else a new one; errors call it `name`."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"{name} must be an int >= 0, a numpy.random.Generator or None, got {seed!r}"
        ) from error


def _priority_limit(alpha: float, capacity: int) -> float:
    """The largest priority whose mass can fill every leaf and leave the total finite."""
    largest = np.finfo(np.float64).max
    log_limit = math.log(largest) - math.log(2 * capacity)
    if log_limit >= alpha * math.log(largest):
        return float(largest)
    return math.exp(log_limit / alpha)


def _as_reals(numbers: Any) -> npt.NDArray[np.floating]:
    """`numbers` as an array of float32 or float64, contiguous and aligned."""
    if hasattr(numbers, "detach"):  # a torch tensor
        tensor = numbers.detach().cpu()
        try:
            numbers = tensor.numpy()
        except TypeError:  # NumPy knows no bfloat16
            numbers = tensor.double().numpy()
    try:
        array = np.asarray(numbers)
    except (ValueError, RuntimeError) as error:  # ragged; or tensors with grad in a list
        raise ValueError(f"td_errors must be an array, got {numbers!r}") from error
    if array.dtype.kind not in "iuf" and array.size:
        raise TypeError(f"td_errors must be real numbers, got dtype {array.dtype}")
    if array.dtype in (np.float32, np.float64):
        return np.require(array, requirements=["C", "A"])
    with np.errstate(over="ignore"):  # what float64 cannot hold becomes inf, and is refused
        return array.astype(np.float64, order="C")
