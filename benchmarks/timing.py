"""Timing of several subjects in turns, and tables of the results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median


def interleaved(subjects: Mapping[str, Callable[[], object]], *, calls: int, rounds: int = 5) -> dict[str, list[float]]:
    """Call each subject ``calls`` times a round, round by round in turns, and return the seconds of each call.

    Turns spread the machine's slow moments over all subjects. The first call of each is not measured.
    """
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for call in subjects.values():
        call()
    for _ in range(rounds):
        for name, call in subjects.items():
            for _ in range(calls):
                start = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - start)
    return taken


def percentile(seconds: Sequence[float], percent: float) -> float:
    """Return the smallest of ``seconds`` that at least ``percent`` of them do not exceed."""
    return sorted(seconds)[max(0, math.ceil(len(seconds) * percent / 100) - 1)]


def print_timings(title: str, taken: Mapping[str, Sequence[float]], *, base: str, repeat: str) -> None:
    """Print least, median, 95th percentile and the ratio of medians to ``base`` of each subject, in milliseconds."""
    reference = median(taken[base])
    rows = [
        (
            name,
            f"{min(seconds) * 1e3:.3f}",
            f"{median(seconds) * 1e3:.3f}",
            f"{percentile(seconds, 95) * 1e3:.3f}",
            f"{median(seconds) / reference:.2f}",
            str(len(seconds)),
        )
        for name, seconds in taken.items()
    ]
    print_table(title, ("", "least ms", "median ms", "p95 ms", f"x {base}", "calls"), rows, repeat=repeat)


def print_table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], *, repeat: str) -> None:
    """Print a table, only its first column left-aligned, and the command that repeats the measurement."""
    table = [heads, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(heads))]
    print(f"\n{title}")
    for first, *others in table:
        cells = [first.ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        print("  " + "  ".join(cells))
    print(f"  repeat: {repeat}", flush=True)
