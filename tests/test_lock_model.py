"""The steps of _lock.h and of what it protects, in every order, with deaths and stops between them.

A few processes share a tree of two leaves: `node` is their sum, `root` a copy of it, and both are
functions of the leaves.  Each process sets one leaf and recomputes, under the lock:

    announce -> take -> look -> (rebuild) -> leaf -> node -> root -> release
                                                                       | lost: once more, to rebuild

Everything that the C code does by one atomic store or load is one step here.  Between any two
steps, any process may be killed, or stopped, and continued later: as often as `deaths` and `stops`
say.  Time is not in the model: a waiter may find the second of a stopped holder over at any
moment, and the 10 ms between two looks at the suspects.

`explore` visits every state that can be reached and says what is wrong in one; each `without` is a
line of the protocol that is left out, to see that the model finds what it is there for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pytest

# What a process is about to do.
ANNOUNCE, TAKE, LOOK, FORGET, SUM, NODE, LEAF, ROOT, RELEASE, DONE = range(10)
ALIVE, STOPPED, DEAD = range(3)


class Process(NamedTuple):
    at: int = TAKE
    life: int = ALIVE
    ticket: int = 0  # by which it holds the lock, or thinks so
    must_set: bool = True  # its leaf, still; or else it has come back to repair
    sum: int = 0  # what it has added up and not stored yet
    fenced: bool = False  # a ghost: whether somebody took the lock from it
    victim: int = 0  # ticket of the stopped holder that it announced as a suspect


class State(NamedTuple):
    processes: tuple[Process, ...]
    deaths: int
    stops: int
    ticket: int = 0  # these three are the lock's word
    holder: int = -1
    has_suspects: bool = False
    suspects: frozenset[int] = frozenset()
    leaves: tuple[int, int] = (0, 0)
    node: int = 0
    root: int = 0

    def moved(self, who: int, **changes) -> State:
        processes = list(self.processes)
        processes[who] = processes[who]._replace(**changes)
        return self._replace(processes=tuple(processes))

    @property
    def is_whole(self) -> bool:
        return self.root == self.node == sum(self.leaves)


def takers(state: State, who: int, without: str) -> Iterator[State]:
    """What `who` does that wants the lock."""
    me = state.processes[who]
    if state.holder == -1:
        yield taken(state, who, rebuild=False, suspects=state.has_suspects)
        return
    if without == "takeover":
        return
    holder = state.processes[state.holder]
    if holder.life == DEAD:
        yield taken(state, who, rebuild=True, suspects=state.has_suspects)
    if holder.life == STOPPED and me.at == TAKE:
        if without == "suspects":
            yield taken(state, who, rebuild=True, suspects=False)
        else:
            after = state._replace(suspects=state.suspects | {state.holder})
            yield after.moved(who, at=ANNOUNCE, victim=state.ticket)


def announced(state: State, who: int) -> State:
    """The compare-and-swap behind the announcement: the holder may have come back meanwhile."""
    if state.ticket == state.processes[who].victim and state.holder != -1:
        return taken(state, who, rebuild=True, suspects=True)
    return state.moved(who, at=TAKE)


def taken(state: State, who: int, rebuild: bool, suspects: bool) -> State:
    me = state.processes[who]
    if state.holder != -1:
        state = state.moved(state.holder, fenced=True)
    suspects = suspects or me.victim > 0
    state = state._replace(ticket=state.ticket + 1, holder=who, has_suspects=suspects)
    rebuild = rebuild or not me.must_set
    at = LOOK if suspects else SUM if rebuild else LEAF
    return state.moved(who, at=at, ticket=state.ticket, sum=int(rebuild), fenced=False, victim=0)


def looked(state: State, who: int) -> State:
    """Forgets a suspect that is dead, and rebuilds then: `sum` says whether that must be anyway."""
    me = state.processes[who]
    dead = {suspect for suspect in state.suspects if state.processes[suspect].life == DEAD}
    state = state._replace(suspects=state.suspects - dead)
    rebuild = bool(dead) or me.sum > 0
    if not state.suspects:
        return state.moved(who, at=FORGET, sum=int(rebuild))
    return state.moved(who, at=SUM if rebuild else LEAF, sum=0)


def forgot(state: State, who: int) -> State:
    """Clears the mark in the word, if the lock is still ours."""
    me = state.processes[who]
    if state.ticket == me.ticket:
        state = state._replace(has_suspects=False)
    return state.moved(who, at=SUM if me.sum else LEAF, sum=0)


def released(state: State, who: int, without: str) -> State:
    me = state.processes[who]
    if without == "compare" or (state.ticket == me.ticket and state.holder == who):
        return state._replace(holder=-1).moved(who, at=DONE, ticket=0)
    if without == "repair":
        return state.moved(who, at=DONE, ticket=0)
    return state.moved(who, at=TAKE, ticket=0, must_set=False, fenced=False)


def stored(state: State, who: int, without: str) -> State:
    """One store, or the loads before it, of who is inside."""
    me = state.processes[who]
    if me.at == LEAF:
        leaves = tuple(1 << who if leaf == who % 2 else x for leaf, x in enumerate(state.leaves))
        return state._replace(leaves=leaves).moved(who, at=SUM, must_set=False)
    if me.at == SUM:
        if without == "rebuild" and me.must_set:
            return state.moved(who, at=LEAF, sum=0)
        return state.moved(who, at=NODE, sum=sum(state.leaves))
    if me.at == NODE:
        return state._replace(node=me.sum).moved(who, at=ROOT)
    # Whoever rebuilt and still has its own leaf to set goes on with that.
    return state._replace(root=me.sum).moved(who, at=LEAF if me.must_set else RELEASE, sum=0)


def steps(state: State, who: int, without: str) -> Iterator[State]:
    at = state.processes[who].at
    if at == TAKE:
        yield from takers(state, who, without)
    elif at == ANNOUNCE:
        yield announced(state, who)
    elif at == LOOK:
        yield looked(state, who)
    elif at == FORGET:
        yield forgot(state, who)
    elif at == RELEASE:
        yield released(state, who, without)
    elif at != DONE:
        yield stored(state, who, without)


def faults(state: State, who: int) -> Iterator[State]:
    life = state.processes[who].life
    if state.processes[who].at == DONE:
        return
    if state.deaths and life != DEAD:
        yield state._replace(deaths=state.deaths - 1).moved(who, life=DEAD)
    if state.stops and life == ALIVE:
        yield state._replace(stops=state.stops - 1).moved(who, life=STOPPED)
    if life == STOPPED:
        yield state.moved(who, life=ALIVE)


def is_inside(process: Process) -> bool:
    return process.at not in (ANNOUNCE, TAKE, DONE)


def may_do_damage(process: Process) -> bool:
    """Whether it lost the lock and lives: it may store anything still, and repairs it when done."""
    if process.life == DEAD:
        return False
    return process.fenced if is_inside(process) else process.at != DONE and not process.must_set


def wrong(state: State) -> str | None:
    """What is wrong in a state, if anything."""
    living = [process for process in state.processes if process.life != DEAD]
    holders = [process for process in living if is_inside(process) and not process.fenced]
    if len(holders) > 1:
        return "two hold the lock"
    is_known = state.has_suspects and any(state.processes[i].life == DEAD for i in state.suspects)
    if is_known or any(map(may_do_damage, state.processes)) or state.is_whole:
        return None
    if any(process.at == LEAF for process in holders):
        return "a holder finds the tree broken"
    if state.holder == -1:
        return "the tree is left broken"
    return None


def is_over(state: State) -> bool:
    return all(process.at == DONE for process in state.processes if process.life == ALIVE)


def explore(n_processes: int, deaths: int, stops: int, without: str = "") -> tuple[set[str], int]:
    """All that is wrong in states that can be reached, and how many states these are."""
    start = State((Process(),) * n_processes, deaths, stops)
    comes_from = defaultdict(list)  # by steps of those who run, without another fault
    seen, fresh = {start}, [start]
    while fresh:
        state = fresh.pop()
        for who, process in enumerate(state.processes):
            after_steps = list(steps(state, who, without)) if process.life == ALIVE else []
            for after in after_steps:
                comes_from[after].append(state)
            for after in (*after_steps, *faults(state, who)):
                if after not in seen:
                    seen.add(after)
                    fresh.append(after)
    found = {wrong(state) for state in seen} - {None}
    if len(all_before({state for state in seen if is_over(state)}, comes_from)) < len(seen):
        found.add("somebody waits for ever")
    return found, len(seen)


def all_before(ends: set[State], comes_from: dict[State, list[State]]) -> set[State]:
    """The states from which one of the ends can be reached, and the ends."""
    before, fresh = set(ends), list(ends)
    while fresh:
        for state in comes_from[fresh.pop()]:
            if state not in before:
                before.add(state)
                fresh.append(state)
    return before


@pytest.mark.parametrize(
    ("n_processes", "deaths", "stops", "n_states"),
    [
        (3, 0, 0, 75),
        (2, 1, 2, 8_989),
        (2, 2, 1, 3_012),
        (3, 1, 1, 71_387),
        pytest.param(3, 2, 1, 190_805, marks=pytest.mark.slow),
        pytest.param(3, 1, 2, 1_017_164, marks=pytest.mark.slow),
    ],
)
def test_every_order_of_the_steps_is_right(n_processes, deaths, stops, n_states):
    assert explore(n_processes, deaths, stops) == (set(), n_states)


@pytest.mark.parametrize(
    ("without", "fault"),
    [
        ("compare", "two hold the lock"),
        ("rebuild", "a holder finds the tree broken"),
        ("repair", "the tree is left broken"),
        ("suspects", "the tree is left broken"),
        ("takeover", "somebody waits for ever"),
    ],
)
def test_no_line_of_the_protocol_can_be_left_out(without, fault):
    faults, _ = explore(3, 1, 1, without)
    assert fault in faults
