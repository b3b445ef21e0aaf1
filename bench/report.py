"""Turns saved benchmarks into Markdown: python bench/report.py out/bench.json

For each operation, capacity and batch: our time, the fastest peer's, and whether the project's
target is met.  Then what a transition takes of memory, our fanouts, a draw's cost as the tree
grows (with a picture beside the file), and every wrong answer.  `--all` adds the times of all
rivals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import report_sb3
import report_workers

OURS = "kary-replay"
YARDSTICK = "memory copy"  # what is named so is no peer
STORES_STACKS = "SB3 ReplayBuffer"
FEWER_BYTES = 7.5  # times, than what stores stacks
CHI_SQUARE_LIMIT = 30.0  # three degrees of freedom: p = 1e-6


class Target(NamedTuple):
    """How many times faster than a peer we want to be; against=None is the fastest one."""

    operation: str
    at_least: float
    capacity: int | None = None
    batch: int | None = None
    against: str | None = None

    def is_for(self, race: Race) -> bool:
        return (
            self.operation == race.operation
            and self.capacity in (None, race.capacity)
            and self.batch in (None, race.batch)
        )


TARGETS = (  # the first that fits a race counts
    Target("find", 4.0, capacity=10**6, batch=256),
    Target("find", 1.5, batch=32),
    Target("find", 3.0),
    Target("update", 1.5, capacity=10**6, batch=256),
    Target("update", 0.9),
    Target("add 1", 1.0, against="SB3 ReplayBuffer"),
    Target("add 10", 7.0, against="Tianshou PrioritizedVectorReplayBuffer"),
    Target("sample", 5.0, batch=256),
    Target("sample images", 1 / 1.3, batch=256, against=YARDSTICK),
    Target("sample n-step, uniform", 5.0, batch=256),
    Target("sample n-step, prioritized", 5.0, batch=256),
    Target("sample stacks, uniform", 1 / 1.5, against=YARDSTICK),
    Target("sample stacks, prioritized", 1 / 1.5, against=YARDSTICK),
)
TITLES = {
    "find": "Sum tree: find",
    "update": "Sum tree: update",
    "add 1": "Whole buffer: add one transition",
    "add 10": "Whole buffer: add ten transitions, of ten environments, in one call",
    "sample": "Whole buffer: sample",
    "update priorities": "Whole buffer: update priorities",
    "learn": "Whole buffer: sample, then update priorities",
    "sample images": "Whole buffer: sample pairs of (4, 84, 84) uint8",
    "sample n-step, uniform": "Columns: sample n-step batches of vectors",
    "sample n-step, prioritized": "Columns: sample n-step batches of vectors by priority",
    "sample stacks, uniform": "Columns: sample pairs of stacks of 4 frames of (84, 84) uint8",
    "sample stacks, prioritized": "Columns: sample the same pairs of stacks by priority",
    "step n-step, uniform": "Columns: add one step of vectors, then sample an n-step batch",
    "step n-step, prioritized": "Columns: the same step, with priorities",
    "add n-step, uniform": "Columns: add one step of vectors",
    "add n-step, prioritized": "Columns: add one step of vectors, with a priority",
    "add stacks, uniform": "Columns: add one step of frames",
    "add stacks, prioritized": "Columns: add one step of frames, with a priority",
}


OPTIONAL = "agrees", "chi_square", "nbytes", "bytes_per_transition"


class Race(NamedTuple):
    """One race: µs per call of every rival, and how right they were."""

    operation: str
    capacity: int
    batch: int
    ours: str
    us: dict[str, float]
    float32: list[str]  # trees too imprecise to count
    uniform: list[str]  # buffers without priorities, which have less to do
    agrees: dict[str, float]
    chi_square: dict[str, float]
    nbytes: dict[str, int]
    bytes_per_transition: dict[str, float]

    @property
    def target(self) -> Target | None:
        return next((target for target in TARGETS if target.is_for(self)), None)

    @property
    def peer(self) -> str:
        """Whom the target names, or else the fastest peer that counts."""
        if self.target and self.target.against:
            return self.target.against
        return self.fastest(without=self.float32)

    def fastest(self, without: list[str]) -> str:
        """The fastest peer that is not in a list; ours where there is none."""
        peers = [n for n in self.us if not n.startswith((OURS, YARDSTICK)) and n not in without]
        return min(peers, key=self.us.__getitem__, default=self.ours)

    def times(self, name: str) -> float:
        """How many times ours is faster than `name`."""
        return self.us[name] / self.us[self.ours]

    @property
    def verdict(self) -> str:
        if not self.target:
            return ""
        met = self.times(self.peer) >= self.target.at_least
        return f"{self.target.at_least:.2g}: {'met' if met else 'short'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="what --benchmark-json wrote")
    parser.add_argument("--all", action="store_true", help="also print every rival's time")
    arguments = parser.parse_args()
    saved = json.loads(arguments.file.read_text(encoding="utf-8"))
    of_sb3 = [b["extra_info"] for b in saved["benchmarks"] if "framework" in b["extra_info"]]
    alone = [b for b in saved["benchmarks"] if not {"workers", "framework"} & set(b["extra_info"])]
    races = [_race(benchmark) for benchmark in alone]
    growth = [race for race in races if race.operation == "growth"]
    print("\n".join(_report(races, growth, saved["machine_info"], arguments.all)))
    together = [b for b in saved["benchmarks"] if "workers" in b["extra_info"]]
    if together:
        measured = [m for benchmark in together for m in report_workers.measured(benchmark)]
        print("\n".join(report_workers.tables(measured, saved["machine_info"]["cores"])))
    if of_sb3:
        print("\n".join(report_sb3.tables(of_sb3)))
    if growth:
        picture = arguments.file.with_name("growth.png")
        draw(growth, saved["machine_info"]["caches"], picture)
        print(f"\nThe picture is in {picture}.")


def _race(benchmark: dict[str, Any]) -> Race:
    info = benchmark["extra_info"]
    us = info["us"]
    optional = [info.get(key, {}) for key in OPTIONAL]
    what = info["operation"], info["capacity"], info["batch"]
    left_out = info.get("float32", []), info.get("uniform", [])
    return Race(*what, next(iter(us)), us, *left_out, *optional)


def _report(
    races: list[Race], growth: list[Race], machine: dict[str, Any], everything: bool
) -> Iterator[str]:
    yield from _where(machine)
    for operation, title in TITLES.items():
        of_operation = [race for race in races if race.operation == operation]
        if of_operation:
            yield from ("", f"### {title}", "", *_against_peers(of_operation))
    taken = {name: taken for race in races for name, taken in race.bytes_per_transition.items()}
    if taken:
        yield from ("", "### Bytes per transition of stacks", "", *_memory(taken))
    if growth:
        yield from ("", "### ns per draw as the tree grows", "", *_growth(growth))
    of_trees = [race for race in races if race.operation in ("find", "update")]
    if of_trees:
        yield from ("", "### Fanouts, µs per call", "", *_fanouts(of_trees))
    yield from ("", "### Targets", "", *_targets(races), "", "### Wrong answers", "")
    yield from _wrong(races)
    if everything:
        yield from ("", "### All rivals, µs per call", "", *_everything(races))


def _where(machine: dict[str, Any]) -> Iterator[str]:
    caches = ", ".join(f"{name} {_size(size)}" for name, size in sorted(machine["caches"].items()))
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    yield (
        f"{machine['cpu'].get('brand_raw', machine['machine'])}, {machine['cores']} cores "
        f"({caches}), {machine['system']}; one thread; seed {machine['seed']}."
    )
    yield f"Python {machine['python_version']}, {versions}."


def _against_peers(races: list[Race]) -> Iterator[str]:
    names = ["capacity", "batch", "kary-replay, µs", "peer, µs", "times faster", "target"]
    mixed = any(race.uniform for race in races)
    measured = any(race.peer == YARDSTICK for race in races)
    second = "fastest prioritized peer, µs" if mixed else "fastest peer, µs"
    yield from _header(*names, *([second, "times faster"] * (mixed or measured)))
    for race in sorted(races):
        cells = [f"{race.capacity:,}", f"{race.batch:,}", _number(race.us[race.ours])]
        cells += [*_compared(race, race.peer), race.verdict]
        fastest = _compared(race, race.fastest(without=race.uniform))
        yield _row(*cells, *(fastest * (mixed or measured)))


def _compared(race: Race, peer: str) -> tuple[str, str]:
    return f"{_number(race.us[peer])} ({peer})", f"{race.times(peer):.2f}"


def _memory(taken: dict[str, float]) -> Iterator[str]:
    yield from _header("buffer", "bytes", f"times fewer than {STORES_STACKS}", "target")
    for name, count in taken.items():
        fewer = taken[STORES_STACKS] / count
        verdict = f"{FEWER_BYTES}: {'met' if fewer >= FEWER_BYTES else 'short'}"
        ours = name.startswith(OURS)
        yield _row(name, f"{count:,.0f}", f"{fewer:.2f}", verdict if ours else "")


def _growth(races: list[Race]) -> Iterator[str]:
    names = list(races[0].us)
    yield from _header("capacity", "bytes", *names)
    for race in sorted(races):
        nanoseconds = (_number(1e3 * race.us[name] / race.batch) for name in names)
        yield _row(f"{race.capacity:,}", _size(race.nbytes[race.ours]), *nanoseconds)


def _fanouts(races: list[Race]) -> Iterator[str]:
    names = [n for n in races[0].us if n.startswith(OURS)]
    yield from _header("operation", "capacity", "batch", *names)
    for race in sorted(races):
        times = (_number(race.us[name]) if name in race.us else "" for name in names)
        yield _row(race.operation, f"{race.capacity:,}", f"{race.batch:,}", *times)


def _targets(races: list[Race]) -> Iterator[str]:
    aimed = [race for race in races if race.target]
    short = [race for race in aimed if race.verdict.endswith("short")]
    yield f"{len(aimed) - len(short)} of {len(aimed)} met."
    for race in short:
        assert race.target
        times = f"{race.times(race.peer):.2f} times {race.peer}"
        yield f"- {_name(race)}: {times}, wanted {race.target.at_least:.2g}"


def _wrong(races: list[Race]) -> Iterator[str]:
    """Rows or leaves that are not the right ones, and frequencies that chance does not explain."""
    shares: dict[tuple[str, str, int], float] = {}  # the worst of all batches
    for race in races:
        for name, share in race.agrees.items():
            what = name, race.operation, race.capacity
            shares[what] = min(share, shares.get(what, 1.0))
    lines = [
        f"- {name}: {1 - share:.2%} wrong, {operation}, capacity {capacity:,}"
        for (name, operation, capacity), share in sorted(shares.items())
        if share < 1
    ]
    unlikely = {
        f"- {name}: draws do not follow the priorities, capacity {race.capacity:,}"
        for race in races
        for name, statistic in race.chi_square.items()
        if statistic > CHI_SQUARE_LIMIT
    }
    yield from [*lines, *sorted(unlikely)] or ["None."]


def _everything(races: list[Race]) -> Iterator[str]:
    yield from _header("operation", "capacity", "batch", "rival", "µs", "right")
    for race in races:
        for name, us in race.us.items():
            right = f"{race.agrees[name]:.2%}" if name in race.agrees else ""
            yield _row(*map(str, race[:3]), name, _number(us), right)


def draw(races: list[Race], caches: dict[str, int], picture: Path) -> None:
    """Draws ns per draw over the bytes of the tree, with the sizes of the caches."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    races = sorted(races)
    for name in races[0].us:
        sizes = [race.nbytes[name] for race in races]
        axes.plot(sizes, [1e3 * race.us[name] / race.batch for race in races], "o-", label=name)
    for name, size in caches.items():
        axes.axvline(size, color="grey", linestyle=":")
        axes.annotate(name, (size, 0), xytext=(3, 3), textcoords="offset points", color="grey")
    axes.set(xscale="log", xlabel="bytes of the tree", ylabel="ns per draw", ylim=(0, None))
    axes.set_title(f"find, {races[0].batch:,} targets a call")
    axes.legend()
    figure.savefig(picture, dpi=120)


def _name(race: Race) -> str:
    return f"{race.operation}, capacity {race.capacity:,}, batch {race.batch:,}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _header(*names: str) -> Iterable[str]:
    return _row(*names), "|" + "---|" * len(names)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
