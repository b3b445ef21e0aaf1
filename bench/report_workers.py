"""The tables of bench_concurrency.py: rates by number of workers, and the targets."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from rivals_shared import EACH, OURS, PEER

BATCH = 256
BUSY = 0.9  # of the cores that workers can use: else the machine had other work


class Measured(NamedTuple):
    """Of one job, with threads or processes, by rival and number of workers; rates as medians."""

    kind: str
    capacity: int
    name: str
    job: dict[str, Any]
    rates: dict[str, dict[int, float]]  # steps a second
    cpu: dict[str, dict[int, float]]  # seconds a step
    longest: dict[str, dict[int, float]]  # seconds; the longest step of all windows

    def speedup(self, rival: str, workers: int) -> float:
        return self.rates[rival][workers] / self.rates[rival][1]

    def busy(self, workers: int, cores: int) -> float:
        """The share of its cores that the machine gave workers who wait for nobody."""
        used = self.rates[EACH][workers] * self.cpu[EACH][workers]
        return used / min(workers, cores)


def measured(benchmark: dict[str, Any]) -> Iterator[Measured]:
    info = benchmark["extra_info"]
    for name, rivals in info["paces"].items():
        middle = [
            {
                rival: {int(n): of_all(pace[i] for pace in paces) for n, paces in by_number.items()}
                for rival, by_number in rivals.items()
            }
            for i, of_all in enumerate((median, median, max))
        ]
        yield Measured(info["workers"], info["capacity"], name, info["jobs"][name], *middle)


def tables(races: list[Measured], cores: int) -> Iterator[str]:
    for kind in dict.fromkeys(race.kind for race in races):
        of_kind = [race for race in races if race.kind == kind]
        workers = list(of_kind[0].rates[OURS])
        yield from ("", f"### By {kind}, a second", "")
        yield f"| job | of | rival | {' | '.join(map(str, workers))} | µs of a core a step |"
        yield "|---" * (len(workers) + 4) + "|"
        for race in of_kind:
            yield from _rates(race)
    yield from ("", "### Targets of concurrency", "")
    for race in races:
        yield from _targets(race, cores)


def _rates(race: Measured) -> Iterator[str]:
    """Of a learner its steps are counted: its name says how many rows go into one."""
    job = race.job
    what, times = ("steps", 1) if job["draws"] and job["updates"] else ("rows", BATCH)
    if job["adds"] and not job["draws"]:
        times = job["rows"] * job["adds"]
    for rival, rates in race.rates.items():
        numbers = " | ".join(f"{times * rate:,.0f}" for rate in rates.values())
        cpu = " to ".join(f"{1e6 * race.cpu[rival][n]:,.1f}" for n in (min(rates), max(rates)))
        yield f"| {race.name} | {what} | {rival} | {numbers} | {cpu} |"


def _targets(race: Measured, cores: int) -> Iterator[str]:
    learns = race.name.startswith("learn")
    inserts = race.name.startswith("insert")
    is_wide = "KB" in race.name
    doubts = ""
    if min(race.busy(n, cores) for n in (1, 2)) < BUSY:
        doubts = f" (the machine gave {race.busy(1, cores):.0%} and {race.busy(2, cores):.0%})"
    where = f"{race.kind}, {race.name}"
    if race.kind == "processes" and (learns or (inserts and is_wide)):
        speedup, possible = race.speedup(OURS, 2), race.speedup(EACH, 2)
        yield (
            f"- {where}: 2 are {speedup:.2f} times 1, wanted 1.8; "
            f"a buffer each {possible:.2f}{doubts}"
        )
    if learns:
        kept = race.rates[OURS][8] / race.rates[OURS][2]
        longest, alone = (1e3 * race.longest[rival][8] for rival in (OURS, EACH))
        yield (
            f"- {where}: 8 are {kept:.2f} times 2, wanted 0.75; their longest step takes "
            f"{longest:.0f} ms, wanted 50; with a buffer each {alone:.0f}{doubts}"
        )
    if race.capacity == 2**20 and race.kind == "processes":
        ratios = [race.rates[OURS][n] / race.rates[PEER][n] for n in race.rates[OURS]]
        wanted = ", wanted 10" if learns else ""
        yield f"- {where}: {min(ratios):.1f} to {max(ratios):.1f} times {PEER}{wanted}"
