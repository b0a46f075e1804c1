"""Fetching by references: checked before they are stored, shared by those who ask at once, and kept by nobody."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from connmgr.errors import SecretLocked, SecretUnavailable
from connmgr.fields import ValidationError
from connmgr.plugin import Deadline, Schema, Secret, SecretSource, Text
from connmgr.registry import Offered, Registry
from connmgr.secret_sources import MAX_BYTES, SecretSources
from tests.deadlines import DEADLINE_SECONDS, eventually


class ShelfSchema(Schema):
    book = Text(required=True)
    pin = Secret()


class Shelf(SecretSource):
    """Waits until it is let go, and counts."""

    name = "shelf"
    description = "A shelf."
    schema = ShelfSchema
    example: ClassVar = {"book": "a"}

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.go = threading.Event()
        self.failure: Exception | None = None
        self.returns: Any = "hunter2"

    def fetch(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        self.calls.append(dict(data))
        self.go.wait(DEADLINE_SECONDS)
        if self.failure is not None:
            raise self.failure
        return self.returns  # type: ignore[no-any-return]


def reference(book: str = "a", **more: Any) -> dict[str, Any]:
    return {"from": {"source": "shelf", "book": book, **more}}


def plain(secret: Any) -> str:
    assert isinstance(secret, str)
    return secret


def in_time() -> Deadline:
    return Deadline(DEADLINE_SECONDS)


def waiting(sources: SecretSources, pool: ThreadPoolExecutor, number: int, book: str = "a") -> list[Any]:
    return [pool.submit(sources.fetch, reference(book), in_time(), plain) for _ in range(number)]


class Looked(Deadline):
    """A deadline that is looked at by those who wait for another's fetch, and by nobody else."""

    def __init__(self, waiting: list[int]) -> None:
        super().__init__(DEADLINE_SECONDS)
        self._waiting = waiting

    def within(self, seconds: float) -> Deadline:
        return self

    def left(self, least: float = 0.0) -> float:
        self._waiting.append(1)
        return super().left(least)


def test_those_who_ask_at_once_share_one_fetch_and_the_next_one_fetches_anew() -> None:
    shelf = Shelf()
    sources, waiting = SecretSources([shelf]), list[int]()
    with ThreadPoolExecutor(32) as pool:
        books = [*["a"] * 30, *["b"] * 2]
        asked = [pool.submit(sources.fetch, reference(book), Looked(waiting), plain) for book in books]
        eventually(lambda: len(waiting) == 30, "not all who share a fetch wait for it")
        shelf.go.set()
        assert {one.result(DEADLINE_SECONDS) for one in asked} == {"hunter2"}
    assert sorted(call["book"] for call in shelf.calls) == ["a", "b"]
    assert sources.fetch(reference(), in_time(), plain) == "hunter2"
    assert len(shelf.calls) == 3
    assert sources._under_way == {}


def test_a_failure_is_everybody_s_own() -> None:
    shelf = Shelf()
    shelf.failure = SecretUnavailable("The shelf is empty.")
    sources = SecretSources([shelf])
    with ThreadPoolExecutor(4) as pool:
        asked = waiting(sources, pool, 4)
        eventually(lambda: shelf.calls, "the fetch does not begin")
        shelf.go.set()
        errors = [one.exception(DEADLINE_SECONDS) for one in asked]
    assert {str(error) for error in errors} == {"The shelf is empty."}
    # Each adds the name of its own connection to the message.
    assert len({id(error) for error in errors}) == 4
    assert sources._under_way == {}


def test_who_waits_does_so_until_its_own_deadline() -> None:
    shelf = Shelf()
    sources = SecretSources([shelf])
    with ThreadPoolExecutor(1) as pool:
        [first] = waiting(sources, pool, 1)
        eventually(lambda: shelf.calls, "the fetch does not begin")
        with pytest.raises(SecretUnavailable, match="shelf did not answer in time"):
            sources.fetch(reference(), Deadline(0.05), plain)
        shelf.go.set()
        assert first.result(DEADLINE_SECONDS) == "hunter2"


def test_who_has_more_time_than_the_one_who_fetched_fetches_again() -> None:
    shelf = Shelf()
    sources = SecretSources([shelf])
    with ThreadPoolExecutor(2) as pool:
        hasty = pool.submit(sources.fetch, reference(), Deadline(0.05), plain)
        eventually(lambda: shelf.calls, "the fetch does not begin")
        [patient] = waiting(sources, pool, 1)
        eventually(lambda: sources._under_way and pool._work_queue.empty(), "nobody waits")
        # The source answers after the first one's time.
        deadline = next(iter(sources._under_way.values()))[0]
        eventually(lambda: deadline.passed, "time stands still")
        shelf.go.set()
        with pytest.raises(SecretUnavailable, match="in time"):
            hasty.result(DEADLINE_SECONDS)
        assert patient.result(DEADLINE_SECONDS) == "hunter2"


def test_a_secret_within_is_opened_for_each_who_asks() -> None:
    shelf = Shelf()
    shelf.go.set()
    sources = SecretSources([shelf])
    assert sources.fetch(reference(pin={"sealed": 1}), in_time(), lambda secret: f"opened {secret}") == "hunter2"
    assert shelf.calls == [{"book": "a", "pin": "opened {'sealed': 1}"}]

    def locked(_: Any) -> str:
        raise SecretLocked("locked", principals=["alice"])

    with pytest.raises(SecretLocked):
        sources.fetch(reference(pin={"sealed": 1}), in_time(), locked)
    assert len(shelf.calls) == 1


@pytest.mark.parametrize(
    ("returns", "why"),
    [
        (None, "not a text"),
        (b"hunter2", "not a text"),
        ("", "nothing"),
        ("hunter2\0", "a NUL"),
        ("x" * (MAX_BYTES + 1), "more than 64 KiB"),
    ],
)
def test_what_is_no_secret_is_refused(returns: Any, why: str) -> None:
    shelf = Shelf()
    shelf.returns = returns
    shelf.go.set()
    with pytest.raises(SecretUnavailable, match=f"shelf returned .*{why}") as failure:
        SecretSources([shelf]).fetch(reference(), in_time(), plain)
    assert "hunter2" not in failure.value.message


def test_what_a_plugin_raises_is_not_repeated() -> None:
    shelf = Shelf()
    shelf.failure = ValueError("hunter2 is a bad password")
    shelf.go.set()
    with pytest.raises(SecretUnavailable, match=r"The secret source shelf failed \(ValueError\)") as failure:
        SecretSources([shelf]).fetch(reference(), in_time(), plain)
    assert failure.value.__suppress_context__


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"source": "nonesuch"}, "Unknown secret source: nonesuch"),
        ({"source": "shelf"}, "book"),
        ({"source": "shelf", "book": "a", "more": 1}, "more"),
        ({"source": "shelf", "book": "a", "pin": {"from": {"source": "nonesuch"}}}, "nonesuch"),
        (
            {
                "source": "shelf",
                "book": "a",
                "pin": {"from": {"source": "shelf", "book": "b", "pin": {"from": {"source": "shelf", "book": "c"}}}},
            },
            "within a reference",
        ),
    ],
)
def test_a_reference_is_checked_by_its_source(members: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        SecretSources([Shelf()]).checked({"from": members})


@pytest.mark.parametrize(
    "value", [{"from": "pass"}, {"from": {}}, {"from": {"source": 7}}, {"from": {"source": "a"}, "b": 1}]
)
def test_the_form_of_a_reference_is_checked_by_the_field(value: Any) -> None:
    with pytest.raises(ValidationError):
        ShelfSchema().load({"book": "a", "pin": value})


def test_a_source_that_is_gone_is_an_error_of_its_connection() -> None:
    with pytest.raises(SecretUnavailable, match="Unknown secret source: shelf"):
        SecretSources().fetch(reference(), in_time(), plain)


def test_of_rivals_the_bundled_one_is_used_or_none() -> None:
    one, other = Shelf(), Shelf()
    offered = [Offered(one, "connmgr"), Offered(other, "stranger")]
    registry = Registry([], sources=offered)
    assert list(registry.sources) == [one]
    assert [problem.distribution for problem in registry.problems] == ["stranger"]
    registry = Registry([], sources=[Offered(one, "a"), Offered(other, "b")])
    assert list(registry.sources) == []
    assert [problem.distribution for problem in registry.problems] == ["a", "b"]


def test_the_bundled_sources_are_found_and_accept_their_examples() -> None:
    registry = Registry.load()
    assert registry.problems == []
    names = {source.name for source in registry.sources}
    assert names == {"command", "pass", "envFile", "vault", "keyring", "op", "bw"}
    for source in registry.sources:
        assert source.description.endswith(".")
        registry.sources.checked({"from": {"source": source.name, **source.example}})
