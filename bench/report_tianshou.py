"""Turns the figures of bench_tianshou.py into Markdown: python bench/report_tianshou.py FILE..."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_tianshou import KINDS, OF_ROWS, OURS, PATCHED, THEIRS

TRAINING = "a training step of "


def main(paths: list[Path]) -> None:
    races = [
        benchmark["extra_info"]
        for path in paths
        for benchmark in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]
        if "us" in benchmark["extra_info"]
    ]
    for race in races:
        operation, race["kind"] = race["operation"].removeprefix("Tianshou: ").split(", ")
        race["operation"] = operation.removeprefix(TRAINING)
    races.sort(key=lambda race: (race["kind"], race["capacity"]))
    print("\n".join(_calls([race for race in races if PATCHED not in race["us"]])))
    print()
    print("\n".join(_trainings([race for race in races if PATCHED in race["us"]])))


def _calls(races: list[dict[str, Any]]) -> Iterator[str]:
    figures = {(r["operation"], r["capacity"], r["kind"]): r["us"] for r in races}
    of_kinds = (f"{kind}: ours | {THEIRS} | times" for kind in KINDS)
    yield f"| call, µs | rows | {' | '.join(of_kinds)} |"
    yield "|---|---|" + "---|---|---|" * len(KINDS)
    for operation, size in sorted({(operation, size) for operation, size, _ in figures}):
        cells = [operation, f"{size:,}"]
        for kind in KINDS:
            us = figures.get((operation, size, kind))
            of_kind = (us[OURS], us[THEIRS], us[THEIRS] / us[OURS]) if us else ()
            cells += [*map(_number, of_kind)] or ["", "", ""]
        yield f"| {' | '.join(cells)} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _trainings(races: list[dict[str, Any]]) -> Iterator[str]:
    """The times are those of Tianshou, with its buffer and without hasnull, over ours."""
    yield (
        f"| training step, ms | | rows | {OURS} | {THEIRS} | times "
        f"| {PATCHED} | times | {OF_ROWS} | times |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for algorithm in dict.fromkeys(race["operation"] for race in races):
        for race in races:
            if race["operation"] == algorithm:
                us = race["us"]
                ours, theirs, patched, of_rows = (
                    us[name] / 1e3 for name in (OURS, THEIRS, PATCHED, OF_ROWS)
                )
                figures = (
                    f"{ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} | {patched:.2f} "
                    f"| {patched / ours:.2f} | {of_rows:.2f} | {patched / of_rows:.2f}"
                )
                yield f"| {algorithm} | {race['kind']} | {race['capacity']:,} | {figures} |"


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
