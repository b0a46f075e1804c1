"""What a run is to be, before it begins: its waves, its batches, the number of failures that stops it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice

from connmgr.contract.message import camel_case
from connmgr.contract.run import JOB, LONG_SECONDS, SHELL, RunStartRequest, share_of
from connmgr.errors import InvalidRequest
from connmgr.vault.runs import NewBatch

BATCH = 100
"""Most targets that a daemon claims at a time."""

LEAST_BATCHES = 20
"""A small run has smaller batches, so that several daemons find some."""

Home = Callable[[str], tuple[str, bool]]
"""Returns the home of a connection's batch, and whether the batch is bound to it; see :class:`NewBatch`."""


def waves_of(request: RunStartRequest, total: int) -> list[int]:
    """Return how many of ``total`` targets each wave has.

    :raises InvalidRequest: nothing is selected, or a wave has no target of its own.
    """
    if not total:
        filters = ("connection_filter", "category_filter", "type_filter", "where")
        first, *others = [camel_case(name) for name in filters if getattr(request, name) is not None] or ["connections"]
        together = f" It must match {' and '.join(others)}, too." if others else ""
        raise InvalidRequest(f"{first}: The selection is empty: no connection matches.{together}")
    ends: list[int] = []
    for number, value in enumerate(request.waves or ()):
        share = share_of(value, f"waves.{number}")
        end = min(total, share) if isinstance(share, int) else math.ceil(share * total)
        # On a small fleet 1 and 10% may be the same target.
        if ends and end < ends[-1]:
            raise InvalidRequest(f"waves.{number}: Smaller than the wave before it: {end} targets after {ends[-1]}.")
        if not ends or end > ends[-1]:
            ends.append(end)
    if not ends or ends[-1] < total:
        ends.append(total)
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def warning_of(request: RunStartRequest, waves: Sequence[int], within: str = "") -> str | None:
    """Return what of the request has no effect, such as on so few targets as its ``waves`` have, or None.

    ``within`` stands before the names of its fields: ``run.`` where it is part of another request.
    """
    total, warnings = sum(waves), []
    if (failures := stop_after_of(request, total)) is not None and failures > total:
        warnings.append(
            f"{within}stopAfter: {failures} targets cannot fail, because the run has {total}: it does not stop."
        )
    if len(waves) == 1 and (request.wave_pause or request.wave_approval):
        warnings.append(f"{within}waves: All targets ({total}) are in the first wave, so nothing waits after it.")
    if not request.retries and request.retry_delay != RunStartRequest.retry_delay:
        warnings.append(f"{within}retryDelay: Nothing is tried again without retries.")
    return " ".join(warnings) or None


def stop_after_of(request: RunStartRequest, total: int) -> int | None:
    """Return the number of failures after which a run of ``total`` targets stops, or None."""
    if request.stop_after is None:
        return None
    share = share_of(request.stop_after, "stopAfter")
    return share if isinstance(share, int) else math.ceil(share * total)


def manner_of(request: RunStartRequest, timeout: float) -> tuple[str, str]:
    """Return whether each command runs in a ``shell`` or as a ``job``, and why."""
    if request.facts is not None:
        return SHELL, "facts are gathered by a short program beside the shells"
    if request.as_ is not None:
        return request.as_, "as the request asked"
    if request.fresh or (request.elevate is not None and request.elevate.password is not None):
        return SHELL, "a new shell, or a password of one request, ends with the daemon"
    if request.timeout is not None and timeout > LONG_SECONDS:
        return JOB, f"its timeout of {timeout:g} s is more than {LONG_SECONDS} s, so it is to outlive the daemon"
    return SHELL, f"no timeout of more than {LONG_SECONDS} s was given"


def batch_size(total: int, *, shared: bool) -> int:
    """Return how many targets a batch has at most, in a run of ``total``."""
    # Where daemons do not share them, small ones would only be claimed one after the other.
    return max(1, min(BATCH, total // LEAST_BATCHES)) if shared else BATCH


def batches_of(waves: Sequence[int], connections: Sequence[str], home: Home, *, shared: bool) -> list[NewBatch]:
    """Return the batches of a run; the targets of one have the same wave and the same home."""
    most = batch_size(len(connections), shared=shared)
    rest = iter(connections)
    batches = []
    for wave, size in enumerate(waves):
        homes = {id: home(id) for id in islice(rest, size)}
        for (where, bound), ids in groupby(sorted(homes, key=homes.__getitem__), key=homes.__getitem__):
            batches += [NewBatch(wave, part, where, bound) for part in _in_lists(ids, most)]
    return batches


def _in_lists(ids: Iterator[str], most: int) -> Iterator[list[str]]:
    while part := list(islice(ids, most)):
        yield part
