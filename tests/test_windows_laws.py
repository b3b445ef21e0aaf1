"""Columns of time against a plain list of episodes: any schedule, lanes, capacity, windows."""

from __future__ import annotations

import copy
import itertools
import pickle
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from episodes import Array, Derived, Discount, Episodes, Mask, Return, Value, Values, Window
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kary_replay import PrioritizedReplayBuffer, ReplayBuffer, Stored

FAR = 5  # the widest that windows look back, or ahead
STEP_COLUMNS = {
    "action": ((2,), np.int16),
    "reward": ((), np.float32),
    "terminated": ((), np.bool_),
    "truncated": ((), np.bool_),
}
OBSERVATIONS = {"x": ((), np.int64), "y": ((2,), np.uint8)}


def observation(number: int) -> Values:
    """Observations that a number makes, so that a wrong row or a torn one is seen."""
    byte = number % 256
    return {"x": np.array(number), "y": np.array([byte, 255 - byte], np.uint8)}


# --- any declaration --------------------------------------------------------------------------


n_steps = st.integers(1, FAR)
horizons = st.none() | n_steps
gammas = st.sampled_from([0.0, 0.5, 1.0])  # with small whole rewards sums are exact
paddings = st.sampled_from([None, "zeros", "edge"])
names = st.sampled_from(["x", "y", "action", "reward"])
values = st.builds(Value, names, st.integers(-FAR, FAR), horizons, paddings)
stacks = st.builds(Window, names, st.integers(-FAR, 0), st.just(1), st.none(), paddings)
returns = st.builds(Return, st.just("reward"), n_steps, gammas)
discounts = st.builds(Discount, n_steps, gammas)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    start = draw(st.integers(-FAR, FAR))
    stop = draw(st.integers(start + 1, FAR + 1))
    return Window(draw(names), start, stop, draw(horizons), draw(paddings))


@st.composite
def derived_columns(draw: st.DrawFn, observations: frozenset[str]) -> dict[str, Derived]:
    """Up to four derived columns, and the masks that they need."""
    columns: dict[str, Derived] = {}
    anything = st.one_of(values, stacks, windows(), returns, discounts)
    for i, column in enumerate(draw(st.lists(anything, max_size=4))):
        columns[f"column_{i}"] = column
        if isinstance(column, Window):
            last = int(column.column in observations) - (column.n_steps is not None)
            if column.stop > last + 1 or draw(st.booleans()):
                columns[f"mask_{i}"] = Mask(column)
    return columns


@dataclass(frozen=True)
class Declaration:
    """The columns of one buffer."""

    observations: frozenset[str]  # those with a value more than there are steps
    drawn: frozenset[str]  # the stored columns that a batch has
    derived: dict[str, Derived]

    @property
    def columns(self) -> dict[str, Any]:
        stored = {
            name: Stored(*column, with_next=name in self.observations, drawn=name in self.drawn)
            for name, column in (STEP_COLUMNS | OBSERVATIONS).items()
        }
        if "x" not in self.observations:  # an ordinary column, which windows may also look at
            stored["next_x"] = Stored((), np.int64)
        return stored | {name: column.expression() for name, column in self.derived.items()}

    @property
    def batch(self) -> set[str]:
        ordinary = {"next_x"} - {f"next_{name}" for name in self.observations}
        return self.drawn | ordinary | self.derived.keys()

    def smallest_lane(self) -> int:
        """The fewest rows of a lane that the declaration is accepted for."""
        return next(rows for rows in itertools.count(1) if self.fits(rows))

    def fits(self, rows: int) -> bool:
        try:
            ReplayBuffer(rows, self.columns)
        except ValueError as error:
            if "lane" in str(error):
                return False
            raise
        return True


@st.composite
def declarations(draw: st.DrawFn) -> Declaration:
    observations = frozenset(draw(st.sampled_from([[], ["x"], ["x"], ["y"], ["x", "y"]])))
    stored = [*STEP_COLUMNS, *OBSERVATIONS]
    hidden = frozenset(draw(st.lists(st.sampled_from(stored), max_size=3)))
    derived = draw(derived_columns(observations))
    return Declaration(observations, frozenset(stored) - hidden, derived)


# --- any schedule -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """One step of one lane."""

    lane: int
    end: str = ""
    reset: frozenset[str] = frozenset()  # observations that are not those announced


def events(lanes: int) -> st.SearchStrategy[Event]:
    ends = ["", "", "", "", "terminated", "truncated", "terminated truncated"]
    resets = [frozenset[str]()] * 5 + [frozenset({"x"}), frozenset({"y"}), frozenset({"x", "y"})]
    return st.builds(
        Event, st.integers(0, lanes - 1), st.sampled_from(ends), st.sampled_from(resets)
    )


class Simulators:
    """Makes the values of steps: everything in them is a number that is used once."""

    def __init__(self, lanes: int) -> None:
        self.number = 0
        self.announced = [observation(0)] * lanes

    def step(self, event: Event) -> Values:
        self.number += 2
        here = self.announced[event.lane] | {
            name: value for name, value in observation(self.number).items() if name in event.reset
        }
        after = observation(self.number + 1)
        self.announced[event.lane] = after
        return {
            **here,
            **{f"next_{name}": value for name, value in after.items()},
            "action": np.array([self.number, -self.number], np.int16),
            "reward": np.array(self.number % 61 + 1, np.float32),
            "terminated": np.array("terminated" in event.end),
            "truncated": np.array("truncated" in event.end),
        }


def stacked(steps: list[Values]) -> Values:
    return {name: np.stack([step[name] for step in steps]) for name in steps[0]}


class WindowsAgainstEpisodes(RuleBasedStateMachine):
    @initialize(
        declaration=declarations(),
        lanes=st.integers(1, 4),
        more_rows=st.integers(0, 7),
        prioritized=st.booleans(),
        on_disk=st.booleans(),
    )
    def start(
        self,
        declaration: Declaration,
        lanes: int,
        more_rows: int,
        prioritized: bool,
        on_disk: bool,
    ) -> None:
        self.declaration = declaration
        self.lanes, self.rows_per_lane = lanes, declaration.smallest_lane() + more_rows
        self.prioritized = prioritized
        self.folder = tempfile.TemporaryDirectory()
        self.storage = str(Path(self.folder.name) / "rows") if on_disk else "private"
        self.buffer = self.empty(self.storage)
        self.model = Episodes(
            lanes, self.rows_per_lane, sorted(declaration.observations), declaration.derived
        )
        self.simulators = Simulators(lanes)
        self.masses: dict[int, float] = {}  # of every step ever added
        self.stale = 0

    def empty(self, storage: str = "private") -> Any:
        arguments: dict[str, Any] = {"lanes": self.lanes, "seed": 1, "storage": storage}
        if self.prioritized:  # alpha = 1 and eps = 0: masses are the errors, whole numbers
            return PrioritizedReplayBuffer(
                self.lanes * self.rows_per_lane,
                self.declaration.columns,
                alpha=1.0,
                eps=0.0,
                **arguments,
            )
        return ReplayBuffer(self.lanes * self.rows_per_lane, self.declaration.columns, **arguments)

    # What happens.

    @rule(data=st.data())
    def add_one(self, data: st.DataObject) -> None:
        event = data.draw(events(self.lanes))
        lanes = {} if self.lanes == 1 and data.draw(st.booleans()) else {"lanes": event.lane}
        self.add([event], self.simulators.step(event), lanes)

    @rule(data=st.data())
    def add_some(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(events(self.lanes), min_size=1, max_size=8))
        errors = {}
        if self.prioritized and data.draw(st.booleans()):
            error = st.integers(-9, 9)
            errors["td_errors"] = data.draw(st.lists(error, min_size=len(some), max_size=len(some)))
        self.add_events(some, errors)

    @rule(data=st.data())
    def add_to_each(self, data: st.DataObject) -> None:
        each = [
            Event(lane, event.end, event.reset)
            for lane, event in enumerate(
                data.draw(st.lists(events(self.lanes), min_size=self.lanes, max_size=self.lanes))
            )
        ]
        steps = [self.simulators.step(event) for event in each]
        self.add(each, stacked(steps), {})

    @rule(data=st.data(), more=st.integers(1, 4))
    def add_more_than_a_lane_holds(self, data: st.DataObject, more: int) -> None:
        event = data.draw(events(self.lanes))
        many = [Event(event.lane)] * (self.rows_per_lane + more)
        place = data.draw(st.integers(0, len(many) - 1))
        many[place] = event
        self.add_events(many, {})

    def add_events(self, some: list[Event], errors: dict[str, Any]) -> None:
        steps = [self.simulators.step(event) for event in some]
        self.add(some, stacked(steps), {"lanes": [event.lane for event in some], **errors})

    def add(self, some: list[Event], columns: Values, arguments: dict[str, Any]) -> None:
        new_mass = self.largest_mass() or 1.0
        masses = np.abs(arguments.get("td_errors", [new_mass] * len(some)))
        taken = self.taken(columns)
        keys = self.buffer.add(**taken, **arguments).tolist()
        many = {
            name: np.reshape(column, (len(some), *self.shape(name)))
            for name, column in taken.items()
        }
        for i, event in enumerate(some):
            step = {name: column[i] for name, column in many.items()}
            key = self.model.add(event.lane, step)
            assert keys[i] == key
            self.masses[key] = float(masses[i])
        assert len(keys) == len(some)

    def taken(self, columns: Values) -> Values:
        """Those of a step's values that the buffer stores."""
        nexts = {"next_x"} | {f"next_{name}" for name in self.declaration.observations}
        return {
            name: column
            for name, column in columns.items()
            if not name.startswith("next_") or name in nexts
        }

    def shape(self, name: str) -> tuple[int, ...]:
        shape, _ = (STEP_COLUMNS | OBSERVATIONS)[name.removeprefix("next_")]
        return shape

    @precondition(lambda self: self.prioritized and self.masses)
    @rule(data=st.data())
    def update_priorities(self, data: st.DataObject) -> None:
        recent = self.model.keys()[-60:] + sorted(self.model.drawable())
        pairs = st.tuples(st.sampled_from(recent), st.integers(-9, 9))
        updates = data.draw(st.lists(pairs, max_size=20))
        applied = self.buffer.update_priorities(*np.reshape(updates, (-1, 2)).T)
        drawable = self.model.drawable()
        fresh = [(key, error) for key, error in updates if key in drawable]
        self.masses.update((key, float(abs(error))) for key, error in fresh)
        self.stale += len(updates) - len(fresh)
        assert applied == len(fresh)

    @precondition(lambda self: self.storage != "private")
    @rule()
    def reopen(self) -> None:
        self.buffer.close()
        self.buffer = self.empty(self.storage)

    @rule()
    def pickle(self) -> None:
        self.go_on_with(pickle.loads(pickle.dumps(self.buffer)))

    @rule()
    def deepcopy(self) -> None:
        self.go_on_with(copy.deepcopy(self.buffer))

    def go_on_with(self, other: Any) -> None:
        self.buffer.close()
        self.buffer, self.storage = other, "private"

    @rule(rows=st.integers(0, 9))
    def save_and_load_into_another(self, rows: int) -> None:
        other = self.empty()
        for lane in range(self.lanes * (rows > 0)):  # rows that must not be drawn any more
            steps = [Simulators(self.lanes).step(Event(lane)) for _ in range(rows)]
            other.add(**self.taken(stacked(steps)), lanes=[lane] * rows)
        with tempfile.TemporaryDirectory() as folder:
            self.buffer.save(Path(folder) / "buffer")
            other.load(Path(folder) / "buffer")
        self.go_on_with(other)

    @rule(data=st.data())
    def refused(self, data: st.DataObject) -> None:
        """Whatever is refused leaves everything as it was."""
        before = pickle.dumps(self.buffer)
        good = self.taken(Simulators(self.lanes).step(Event(0)))
        calls = [
            lambda: self.buffer.add(**good, lanes=[self.lanes]),
            lambda: self.buffer.add(**good | {"reward": "much"}, lanes=[0]),
            lambda: self.buffer.add(**good | {"next_y": [1, 2, 300]}, lanes=[0]),
            lambda: self.buffer.add(
                **{name: good[name] for name in good if name != "terminated"}, lanes=[0]
            ),
            lambda: self.buffer.sample(0),
        ]
        with pytest.raises((ValueError, IndexError, TypeError)):
            data.draw(st.sampled_from(calls))()
        assert pickle.dumps(self.buffer) == before

    def teardown(self) -> None:
        if hasattr(self, "model"):
            self.buffer.close()
            self.folder.cleanup()

    # What holds.

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        rows = self.model.drawable()
        assert len(self.buffer) == len(rows)
        assert bool(rows) == bool(self.masses)  # the newest step can always be drawn
        if self.prioritized:
            self.check_masses(rows)
        drawn = self.sampled(rows)
        if not self.prioritized:  # which a row misses with probability exp(-25)
            assert drawn == rows.keys()

    def check_masses(self, rows: Iterable[int]) -> None:
        masses = np.zeros(self.buffer.capacity)
        for key in rows:
            masses[key % self.buffer.capacity] = self.masses[key]
        assert self.buffer._sampler.tree.masses().tolist() == masses.tolist()
        assert self.buffer.stale_updates == self.stale
        assert self.buffer.max_priority == (self.largest_mass() or 1.0)

    def largest_mass(self) -> float:
        return max((self.masses[key] for key in self.model.drawable()), default=0.0)

    def sampled(self, rows: dict[int, Values]) -> set[int]:
        """The keys of many draws, of which every row is compared with the model's."""
        if not rows or (self.prioritized and self.largest_mass() == 0.0):
            with pytest.raises(ValueError, match=r"empty|mass"):
                self.buffer.sample(1)
            return set()
        stored = self.buffer._ring.rows.tobytes()
        batch = self.buffer.sample(25 * len(rows))
        assert self.buffer._ring.rows.tobytes() == stored
        keys, of_row = np.unique(batch.keys, return_inverse=True)
        assert (batch.slots == batch.keys % self.buffer.capacity).all()
        assert set(batch) == self.declaration.batch
        for name in batch:
            want = np.stack([np.asarray(rows[key][name]) for key in keys.tolist()])
            assert_same(name, batch[name], want[of_row])
        return set(keys.tolist())


def assert_same(name: str, got: Array, want: Array) -> None:
    assert got.shape == want.shape, name
    assert got.dtype == (want.dtype if want.dtype != np.float64 else np.float32), name
    assert np.array_equal(got, want), f"{name}: {got.tolist()} != {want.tolist()}"


WindowsAgainstEpisodes.TestCase.settings = settings(max_examples=350, stateful_step_count=20)
TestWindowsAgainstEpisodes = WindowsAgainstEpisodes.TestCase


# --- the smallest lane ------------------------------------------------------------------------


@given(declaration=declarations())
@settings(max_examples=200)
def test_the_smallest_lane_holds_the_longest_window(declaration: Declaration) -> None:
    """Of an endless episode, it has a row that can be drawn and is whole: for every column."""
    rows = declaration.smallest_lane()
    assert all(whole_row(declaration, rows, column) for column in declaration.derived.values())
    if rows > 1 + bool(declaration.observations):
        some = declaration.derived.values()
        assert not all(whole_row(declaration, rows - 1, column) for column in some)


def whole_row(declaration: Declaration, rows: int, column: Derived) -> bool:
    model = Episodes(1, rows, sorted(declaration.observations), {"column": column})
    simulators = Simulators(1)
    for _ in range(5 * FAR):
        model.add(0, simulators.step(Event(0)))
    return any(column.whole(episode, i) for _, episode, i in model.lanes[0].whole(column.back))


# --- draws ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("prioritized", [False, True])
def test_draws_are_uniform_over_the_rows_that_can_be_drawn(lanes: int, prioritized: bool) -> None:
    """Chi-square at 5 sigma, on lanes of unequal length with holes, some of them wrapped."""
    declaration = Declaration(frozenset({"x"}), frozenset({"x"}), {"stack": Window("x", -2, 1)})
    model = Episodes(lanes, 24, ["x"], declaration.derived)
    arguments: dict[str, Any] = {"lanes": lanes, "seed": 7}
    buffer: Any = ReplayBuffer(lanes * 24, declaration.columns, **arguments)
    if prioritized:
        buffer = PrioritizedReplayBuffer(
            lanes * 24, declaration.columns, stratified=False, **arguments
        )
    simulators = Simulators(lanes)
    for lane in range(lanes):
        for i in range([50, 9, 31][lane]):
            step = simulators.step(Event(lane, "truncated" if i % 5 == 3 else ""))
            step = {name: value for name, value in step.items() if name != "next_y"}
            assert buffer.add(**step, lanes=lane) == model.add(lane, step)
    rows = sorted(model.drawable())
    assert 0 < len(rows) < lanes * 24 - 3
    draws = 2000 * len(rows)
    keys, seen = np.unique(buffer.sample(draws).keys, return_counts=True)
    assert keys.tolist() == rows
    freedom = len(rows) - 1
    chi2 = ((seen - 2000.0) ** 2 / 2000.0).sum()
    assert abs(chi2 - freedom) < 5 * (2 * freedom) ** 0.5
