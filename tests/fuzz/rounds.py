"""How a fuzzer runs: some examples that are always the same, or rounds of random ones for as long as asked.

``make test`` runs the first, ``make fuzz`` the second: ``pytest --fuzz-seconds=60 tests/fuzz``.
"""

from __future__ import annotations

import functools
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

ROUND = 20
"""How many times the examples of a small run a round of a long one has."""

seconds = 0.0
"""How long each fuzzer runs; 0 for the small run. :mod:`tests.fuzz.conftest` sets it."""

tried: Counter[str] = Counter()
"""How many examples the running fuzzer has tried."""

_FIXED = settings(
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


def fuzz(examples: int, **strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the decorator of a test that ``strategies`` give their examples: ``examples`` of them in the small run.

    A long run prints the seed of the round that failed, and keeps the example in ``.hypothesis``, where the next long
    run begins. Fixtures are shared by all examples.
    """

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def counted(**arguments: Any) -> None:
            tried["examples"] += 1
            test(**arguments)

        small = settings(_FIXED, max_examples=examples, derandomize=True, database=None)(given(**strategies)(counted))

        @functools.wraps(small)
        def run(**fixtures: Any) -> None:
            if not seconds:
                small(**fixtures)
                return
            end = time.monotonic() + seconds
            phases = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
            while time.monotonic() < end:
                number = random.SystemRandom().getrandbits(64)
                long = settings(_FIXED, max_examples=examples * ROUND, phases=phases)(given(**strategies)(counted))
                try:
                    seed(number)(long)(**fixtures)
                except BaseException:
                    print(f"{test.__qualname__}: the seed of this round is {number}.")
                    raise
                # What an earlier run found is tried once.
                phases = [Phase.generate, Phase.shrink]

        return run

    return decorated
