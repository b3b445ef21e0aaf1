"""The tables of bench_sb3.py: calls beside SB3's, whole trainings, and the targets."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

OURS, STOCK = "kary-replay", "stock"
PRIORITIZED, PYTHON_TREE = "kary-replay, prioritized", "tree in an array"  # the usual one
CALL_TARGETS = {("sample", "uniform", 256): 5.0, ("sample", "images", 256): 1.8}

Info = dict[str, Any]  # the extra_info of a benchmark


def tables(infos: list[Info]) -> Iterator[str]:
    calls = [info for info in infos if "us" in info]
    trainings = [info for info in infos if "steps_per_second" in info]
    if calls:
        yield from ("", "### SB3: calls, µs", "", *_calls(calls))
    if trainings:
        yield from ("", "### SB3: trainings, environment steps a second of processor time", "")
        yield from _trainings(trainings)
    short = [line for info in calls for line in _short_call(info)]
    short += [line for info in trainings for line in _short_training(info)]
    yield from ("", "### SB3: targets that were missed", "", *(short or ["None."]))


def _calls(infos: list[Info]) -> Iterator[str]:
    yield "What SB3 has no buffer for, `prioritized`, is its buffer with the usual tree in Python."
    yield ""
    yield "| call | buffer | rows | batch | kary-replay | SB3 | times faster | rows that agree |"
    yield "|---" * 8 + "|"
    for info in infos:
        mine, theirs = info["us"][OURS], info["us"]["SB3"]
        cells = [info["call"], info["kind"], f"{info['rows']:,}", f"{info['batch']:,}"]
        cells += [f"{mine:,.1f}", f"{theirs:,.1f}", f"{theirs / mine:.2f}", f"{info['agrees']:.0%}"]
        yield f"| {' | '.join(cells)} |"


def _trainings(infos: list[Info]) -> Iterator[str]:
    names = list(dict.fromkeys(name for info in infos for name in info["steps_per_second"]))
    yield f"| training | turns | {' | '.join(names)} | times {STOCK} |"
    yield "|---" * (len(names) + 3) + "|"
    for info in infos:
        turns, shares = info["steps_per_second"], info["share_in_buffer"]
        rates = {name: median(turns[name]) for name in turns}
        cells = [f"{rates[n]:,.0f} ({shares[n]:.0%})" if n in rates else "" for n in names]
        times = " / ".join(f"{_times(info, mine, STOCK):.2f}" for mine in (OURS, PRIORITIZED))
        row = [info["training"], str(len(turns[OURS])), *cells, times]
        yield f"| {' | '.join(row)} |"
    yield ""
    yield "In brackets: the share of the time that was spent in the buffer."


def _times(info: Info, mine: str, theirs: str) -> float:
    """How many times as fast, in turns that followed each other."""
    turns = info["steps_per_second"]
    return median(a / b for a, b in zip(turns[mine], turns[theirs], strict=False))


def _short_call(info: Info) -> Iterator[str]:
    target = CALL_TARGETS.get((info["call"], info["kind"], info["batch"]), 1.0)
    times = info["us"]["SB3"] / info["us"][OURS]
    if times < target:
        what = f"{info['call']} {info['batch']}, {info['kind']}, {info['rows']:,} rows"
        yield f"- {what}: {times:.2f} times SB3, wanted {target:g}"


def _short_training(info: Info) -> Iterator[str]:
    wanted = [(OURS, STOCK, 1.0), (PRIORITIZED, PYTHON_TREE, 1.5)]
    wanted += [(PRIORITIZED, STOCK, 1.0)] * (info["training"] == "DQN CartPole")
    for mine, theirs, target in wanted:
        if theirs in info["steps_per_second"]:
            times = _times(info, mine, theirs)
            if times < target:
                yield f"- {info['training']}: {mine} {times:.2f} times {theirs}, wanted {target:g}"
