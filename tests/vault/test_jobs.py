"""Jobs in the vault, on SQLite and PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from connmgr.engine.waiting import WaitingWork
from connmgr.errors import JobLimit, KeyReused, UnknownConnection, UnknownJob
from connmgr.jobs.jobs import JobLimits, Jobs
from connmgr.jobs.remote import JobStream, RemoteHosts, RemoteJob
from connmgr.vault import Vault
from connmgr.vault.jobs import JobFilter, StoredJob
from connmgr.vault.names import LOCAL
from connmgr.vault.schema import now
from tests.deadlines import eventually
from tests.vault.conftest import Add

if TYPE_CHECKING:
    from connmgr.secrets.principals import Access

LIMITS = {"most_of_connection": 3, "most": 4}


def new(connection: str = LOCAL, **given: Any) -> StoredJob:
    given = {"session": None, "name": None, "key": None, "command": "true", "stdin_open": False, "keep": 60} | given
    return StoredJob(id=str(uuid.uuid4()), connection=connection, created=now(), **given)


def test_a_job_is_read_as_it_was_stored(vault: Vault) -> None:
    job = new(session="build", name="nightly", key="k", command="make -j4 # ü", stdin_open=True, keep=86400)
    assert vault.jobs.add(job) == job
    assert vault.jobs.get(job.id) == job


def test_a_key_finds_the_job_of_the_same_connection(vault: Vault, add: Add) -> None:
    first = vault.jobs.add(new(key="deploy"))
    assert vault.jobs.add(new(key="deploy")) == first
    # An older version has not stored what it was asked for.
    asked = [vault.jobs.digest({"env": {"A": value}}) for value in "12"]
    assert vault.jobs.add(new(key="deploy", asked=asked[0])) == first
    with pytest.raises(KeyReused, match=f"The job {first.id} was started with this key"):
        vault.jobs.add(new(key="deploy", command="false"))
    second = vault.jobs.add(new(key="release", asked=asked[0]))
    assert vault.jobs.add(new(key="release", asked=asked[0])) == second
    with pytest.raises(KeyReused):
        vault.jobs.add(new(key="release", asked=asked[1]))
    elsewhere = vault.jobs.add(new(add("other"), key="deploy"))
    assert elsewhere.id != first.id


def test_jobs_under_way_are_limited_by_connection_and_in_all(vault: Vault, add: Add) -> None:
    last = [vault.jobs.add(new()) for _ in range(3)][-1]
    with pytest.raises(JobLimit, match=r"3 jobs .* on this connection"):
        vault.jobs.require_room(LOCAL, **LIMITS)
    other = add("other")
    vault.jobs.require_room(other, **LIMITS)
    vault.jobs.add(new(other))
    with pytest.raises(JobLimit, match=r"4 jobs .* on this vault"):
        vault.jobs.require_room(other, **LIMITS)
    vault.jobs.set_state(last.id, "exited", 0)
    vault.jobs.require_room(LOCAL, **LIMITS)


def test_the_first_end_that_was_seen_stays(vault: Vault) -> None:
    job = vault.jobs.add(new())
    assert vault.jobs.set_state(job.id, "running")
    assert vault.jobs.set_state(job.id, "exited", 7)
    assert not vault.jobs.set_state(job.id, "lost")
    assert not vault.jobs.set_state(job.id, "running")
    ended = vault.jobs.get(job.id)
    assert (ended.state, ended.exit_code) == ("exited", 7)
    assert ended.ended is not None
    assert job.created <= ended.ended <= now()


def test_jobs_are_found_by_their_fields(vault: Vault, add: Add) -> None:
    other = add("other")
    one, two = vault.jobs.add(new(name="a")), vault.jobs.add(new(other))
    vault.jobs.set_state(two.id, "killed", 143)

    def found(**given: Any) -> list[str]:
        return [job.id for job in vault.jobs.find(JobFilter(**given))]

    assert found() == [one.id, two.id]
    assert found(connections=[other]) == [two.id]
    assert found(connections=[]) == []
    assert found(states=["starting"]) == [one.id]
    assert found(name="a") == [one.id]
    assert found(created_after=now() + timedelta(seconds=1)) == []
    assert found(created_before=one.created) == [one.id]


def test_a_removed_job_is_unknown(vault: Vault) -> None:
    job = vault.jobs.add(new())
    vault.jobs.remove(job.id)
    vault.jobs.remove(job.id)
    with pytest.raises(UnknownJob):
        vault.jobs.get(job.id)


def test_the_jobs_of_a_removed_connection_go_with_it(vault: Vault, add: Add) -> None:
    other = add("other")
    job = vault.jobs.add(new(other))
    here = vault.jobs.add(new())
    removed = vault.connections.remove([other])
    assert (removed.connections, removed.jobs) == ([other], {other: [job.id]})
    with pytest.raises(UnknownJob):
        vault.jobs.get(job.id)
    assert vault.jobs.known([job.id, here.id]) == {here.id}
    with pytest.raises(UnknownConnection):
        vault.jobs.add(new(other))


def test_of_many_ids_those_are_known_that_are_jobs(vault: Vault, add: Add) -> None:
    jobs = {vault.jobs.add(new(connection)).id for connection in (LOCAL, LOCAL, add("other"))}
    assert vault.jobs.known([*(str(uuid.uuid4()) for _ in range(1200)), *jobs]) == jobs
    assert vault.jobs.known([]) == set()


class Hosts:
    """In place of the links: one host, whose ``look`` a test defines."""

    def __init__(self, look: Callable[[], str]) -> None:
        self._look = look

    def ask_at_once(self, _connection: str, work: Callable[[Hosts], bool]) -> bool:
        return work(self)

    def look(self, names: Iterable[str], _timeout: float) -> dict[str, RemoteJob]:
        state = self._look()
        return {name: RemoteJob(state, None, JobStream(0), JobStream(0)) for name in names}


def test_a_job_that_begins_while_a_look_at_its_host_is_under_way_is_not_lost(vault: Vault) -> None:
    job = vault.jobs.add(new())
    looks: list[Callable[[], str]] = [lambda: (jobs.refresh([job]), "gone")[1], lambda: "running"]
    hosts = Hosts(lambda: looks.pop(0)())
    jobs = Jobs(vault, cast("RemoteHosts", hosts), JobLimits(8, 8), nullcontext, lambda *_, **__: None)
    jobs.refresh([job])
    assert vault.jobs.get(job.id).state == "running"
    looks.append(lambda: "gone")
    jobs.refresh([vault.jobs.get(job.id)])
    assert vault.jobs.get(job.id).state == "lost"


class Asking(Hosts):
    """A remote host whose job waits for input, which it gets ``meanwhile``: while it is looked at."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(lambda: "running")
        self.meanwhile = meanwhile

    def ask_once(self, _connection: str, _access: object, work: Callable[[Hosts], None]) -> None:
        work(self)

    def input(self, *_: object) -> None:
        pass

    def waiting(self, jobs: Mapping[str, RemoteJob], _timeout: float) -> dict[str, RemoteJob]:
        self.meanwhile()
        waits = WaitingWork(now(), ("Go on?",), is_secret=False, is_certain=True)
        return {name: replace(job, waiting=waits) for name, job in jobs.items()}


def test_a_job_that_gets_input_while_it_is_looked_at_does_not_wait_for_it(vault: Vault) -> None:
    # Begun before the daemon, it is looked at at once.
    job = replace(new(stdin_open=True), created=now() - timedelta(minutes=1))
    vault.jobs.add(job)
    vault.jobs.set_state(job.id, "running")
    hosts = Asking(lambda: jobs.input(job.id, cast("Access", None), b"yes\n", eof=False))
    jobs = Jobs(vault, cast("RemoteHosts", hosts), JobLimits(8, 8), nullcontext, lambda *_, **__: None)

    def waits() -> WaitingWork | None:
        stored = vault.jobs.get(job.id)
        assert jobs.refresh([stored])
        return jobs.waiting(stored)

    assert waits() is None
    hosts.meanwhile = lambda: None
    eventually(waits, "its next question is not seen")
