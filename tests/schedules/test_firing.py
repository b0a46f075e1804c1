"""Schedules in fast time, on both databases: each time fires once, whatever happens in between."""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from connmgr.contract.message import time_to_json
from connmgr.contract.run import DONE, FAILED
from connmgr.errors import ConnmgrError, RunLimit, ScheduleExists, TokenRevoked, UnknownSchedule
from connmgr.schedules import schedules
from connmgr.schedules.notices import Notice, Notices
from connmgr.schedules.schedules import Schedules, Store, turn_after
from connmgr.vault import Vault
from connmgr.vault import schedules as stored_schedules
from connmgr.vault.names import LOCAL
from connmgr.vault.principal_rows import put_meta
from connmgr.vault.runs import NewBatch, NewRun
from connmgr.vault.schedules import StoredSchedule
from connmgr.vault.schema import RESTORED

BEGIN = datetime(2026, 3, 28, 12, tzinfo=timezone.utc)
SPEC: dict[str, Any] = {"lineage": [], "waves": [1], "wavePause": 0, "waveApproval": False, "keep": 0, "as": "shell"}


class Recorded(Notices):
    """Notices that are kept in place of being told."""

    def __init__(self) -> None:
        super().__init__(lambda **_: None)
        self.told: list[Notice] = []

    def tell(self, notice: Notice) -> None:
        self.told.append(notice)


class Daemon:
    """One daemon's schedules, with a clock that the test moves, and runs that only the test ends."""

    def __init__(self, vault: Vault, at: datetime = BEGIN) -> None:
        self.vault, self.at = vault, at
        self.notices = Recorded()
        self.events: list[tuple[str, str]] = []
        self.fired: list[str] = []
        self.names: list[str] = []
        self.error: ConnmgrError | None = None
        self.schedules = Schedules(vault, self.notices, self._publish, clock=lambda: self.at)
        self.schedules.start = self._start
        # The test looks, in place of a thread.
        self.schedules.poke = lambda: None  # type: ignore[method-assign]

    def _publish(self, kind: str, change: str, *_: Any, **__: Any) -> None:
        self.events.append((kind, change))

    def _start(self, one: StoredSchedule, fields: Mapping[str, Any], store: Store | None) -> str:
        if self.error is not None:
            raise self.error
        new = NewRun(
            id=str(uuid.uuid4()),
            spec=SPEC,
            batches=[NewBatch(0, [LOCAL])],
            parallel=1,
            name=one.name,
            key=fields.get("key"),
        )
        id, _ = (store or self.vault.runs.submit)(new)
        assert one.due is not None
        self.fired.append(time_to_json(one.due)[:19])
        self.names.append(one.name)
        return id

    def pass_(self, duration: timedelta, *, ends: bool = True) -> None:
        """Let time pass, from one time of a schedule to the next; runs end at once, or not at all."""
        end = self.at + duration
        while self.at < end:
            earliest = self.vault.schedules.earliest()
            is_ahead = earliest is not None and earliest > self.at
            self.at = min(end, earliest if is_ahead and earliest is not None else self.at + timedelta(seconds=50))
            self.schedules.look()
            if ends:
                self.end_runs()

    def end_runs(self, state: str = DONE) -> None:
        for run in self.vault.runs.find(states=["pending"]):
            self.vault.runs.stop(run.id, "over", kill=False, ends=state)
            finished(self.vault, run.id)


def finished(vault: Vault, id: str) -> None:
    """End a run that is stopping, as the daemon's own thread does."""
    vault.runs.tend()
    assert vault.runs.get(id).ended is not None


@pytest.fixture
def daemon(vault: Vault) -> Daemon:
    return Daemon(vault)


def add(daemon: Daemon, name: str = "nightly", **spec: Any) -> StoredSchedule:
    whole = {
        "token": None,
        "lineage": [],
        "cron": None,
        "every": None,
        "timezone": "UTC",
        "anchor": time_to_json(daemon.at),
        "jitter": 0,
        "overlap": "skip",
        "catchUp": "none",
        "until": None,
        "run": {},
        "notify": {"on": ["missed", "skipped", "refused", "failed"], "command": ["tell"]},
        **spec,
    }
    one = StoredSchedule(id=str(uuid.uuid4()), name=name, spec=whole, due=None, next_at=None)
    turn = turn_after(one, daemon.at)
    one = replace(one, due=turn.due, next_at=turn.next_at)
    daemon.vault.schedules.add(one)
    return one


def told(daemon: Daemon) -> list[str]:
    return [notice.body["event"] for notice in daemon.notices.told if notice.command]


def test_each_time_of_a_day_with_a_changed_clock_fires_once(daemon: Daemon) -> None:
    add(daemon, "hourly", cron="0 * * * *", timezone="Europe/Vienna")
    add(daemon, "night", cron="30 2 * * *", timezone="Europe/Vienna", jitter=100)
    daemon.pass_(timedelta(days=1))
    night = [time for time in daemon.fired if not time.endswith(":00:00") or daemon.fired.count(time) > 1]
    # 2:30 does not exist in Vienna on this night; 3:00 there is 1:00 in UTC.
    assert set(night) == {"2026-03-29T01:00:00"}
    hours = [f"{time_to_json(BEGIN + timedelta(hours=n))[:19]}" for n in range(1, 25)]
    assert sorted(daemon.fired) == sorted([*hours, "2026-03-29T01:00:00"])
    assert told(daemon) == []


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        ("none", ["13:00", "19:00"]),
        ("latest", ["13:00", "14:00", "19:00"]),
        ("all", ["13:00", "14:00", "15:00", "16:00", "17:00", "18:00", "19:00"]),
    ],
)
def test_what_was_missed_is_caught_up_as_asked(daemon: Daemon, catch_up: str, expected: list[str]) -> None:
    add(daemon, cron="0 * * * *", catchUp=catch_up)
    daemon.pass_(timedelta(hours=1, minutes=30))
    # Nobody looks for five hours.
    daemon.at = BEGIN + timedelta(hours=6, minutes=30)
    daemon.pass_(timedelta(minutes=40))
    assert [time[11:16] for time in daemon.fired] == expected
    assert told(daemon) == (["missed"] if catch_up == "none" else [])


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
def test_a_restored_vault_fires_nothing_that_may_have_fired_before(daemon: Daemon, catch_up: str) -> None:
    add(daemon, cron="0 * * * *", catchUp=catch_up)
    daemon.pass_(timedelta(hours=1))
    restored = (daemon.at + timedelta(days=1, minutes=30)).isoformat().encode()
    daemon.vault.database.write(lambda tx: put_meta(tx, RESTORED, restored))
    daemon.at += timedelta(days=1, minutes=31)
    daemon.schedules.look()
    assert daemon.fired == ["2026-03-28T13:00:00"]
    assert [one.body["event"] for one in daemon.notices.told if one.run is None] == ["missed"]
    daemon.pass_(timedelta(hours=1))
    assert daemon.fired == ["2026-03-28T13:00:00", "2026-03-29T14:00:00"]


def test_a_time_while_the_run_before_is_under_way_is_skipped_or_waits(daemon: Daemon) -> None:
    skips = add(daemon, "skips", cron="*/10 * * * *")
    queues = add(daemon, "queues", cron="*/10 * * * *", overlap="queue")
    daemon.pass_(timedelta(minutes=45), ends=False)
    assert [time[11:16] for time in daemon.fired] == ["12:10", "12:10"]
    assert told(daemon) == ["skipped"] * 3
    assert daemon.vault.schedules.get(skips.id).skipped == 3
    assert daemon.vault.schedules.get(queues.id).waits
    daemon.end_runs()
    daemon.pass_(timedelta(minutes=10))
    # One time waited, 12:20; those after it were left out.
    assert [time[11:16] for time in daemon.fired] == ["12:10", "12:10", "12:20", "12:50", "12:50"]
    assert daemon.vault.schedules.get(queues.id).skipped == 2
    assert told(daemon) == ["skipped"] * 4


def test_a_time_that_waits_is_not_looked_at_without_a_pause(daemon: Daemon) -> None:
    add(daemon, every=600, overlap="queue")
    daemon.pass_(timedelta(minutes=25), ends=False)
    assert len(daemon.fired) == 1
    interval = daemon.schedules.look()
    assert interval is not None
    assert interval >= 1


def test_the_owners_schedules_go_first_and_tokens_take_turns(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "TOKENS_SECONDS", 60.0)

    def of(token: str) -> dict[str, Any]:
        # The token whose share counts is the first one of the line.
        return {"token": token, "lineage": [token, "above" if token == "below" else token]}

    for number in range(3):
        add(daemon, f"one{number}", every=60, **of("one"))
    for name in ("below", "above"):
        add(daemon, name, every=60, **of(name))
    add(daemon, "own", every=61)
    daemon.at += timedelta(seconds=65)
    daemon.schedules.look()
    assert daemon.names == ["own", "above", "one0", "below", "one1", "one2"]


def test_the_owners_times_are_looked_at_between_those_of_tokens(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "TOKENS_SECONDS", -1.0)
    add(daemon, "theirs", every=60, token="one", lineage=["one"])
    add(daemon, "own", every=60)
    daemon.at += timedelta(seconds=61)
    assert daemon.schedules.look() == 0
    assert daemon.names == ["own"]


def test_a_token_has_its_share_of_schedules(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_schedules, "MAX_SCHEDULES", 8)
    for number in range(5):
        add(daemon, f"one{number}", every=60, token="one", lineage=["one"])
    with pytest.raises(ScheduleExists, match="the token has 5 of them"):
        add(daemon, "one more", every=60, token="below", lineage=["below", "one"])
    add(daemon, "another's", every=60, token="other", lineage=["other"])
    with pytest.raises(ScheduleExists, match="tokens have 6 of them"):
        add(daemon, "another's second", every=60, token="other", lineage=["other"])
    add(daemon, "own", every=60)
    add(daemon, "own second", every=60)


def test_the_name_of_a_schedule_hides_no_other(daemon: Daemon) -> None:
    one = add(daemon, "nightly", every=60)
    add(daemon, one.id, every=60, token="one", lineage=["one"])
    assert daemon.vault.schedules.get(one.id).name == "nightly"


def test_catching_up_all_drops_nothing(daemon: Daemon) -> None:
    add(daemon, cron="*/10 * * * *", overlap="queue", catchUp="all")
    daemon.pass_(timedelta(minutes=45), ends=False)
    assert [time[11:16] for time in daemon.fired] == ["12:10"]
    daemon.end_runs()
    daemon.pass_(timedelta(minutes=3))
    assert [time[11:16] for time in daemon.fired] == ["12:10", "12:20", "12:30", "12:40"]


def test_a_schedule_ends(daemon: Daemon) -> None:
    one = add(daemon, every=600, until=time_to_json(BEGIN + timedelta(minutes=25)))
    daemon.pass_(timedelta(hours=2))
    assert len(daemon.fired) == 2
    assert daemon.vault.schedules.get(one.id).due is None
    assert daemon.schedules.look() is None or daemon.vault.database.is_shared


def test_an_author_without_rights_pauses_the_schedule(daemon: Daemon) -> None:
    one = add(daemon, every=600)
    daemon.error = TokenRevoked("The token was revoked.")
    daemon.pass_(timedelta(hours=1))
    stored = daemon.vault.schedules.get(one.id)
    assert stored.paused == "Its token has no rights any more: The token was revoked."
    assert ("schedule", "paused") in daemon.events
    assert told(daemon) == ["refused"]
    assert daemon.fired == []


def test_a_refused_run_is_told_and_the_next_time_comes(daemon: Daemon) -> None:
    one = add(daemon, every=600)
    daemon.error = ConnmgrError("The selection is empty: no connection matches.")
    daemon.pass_(timedelta(minutes=10))
    assert told(daemon) == ["refused"]
    assert daemon.vault.schedules.get(one.id).last_error == "The selection is empty: no connection matches."
    daemon.error = RunLimit("100 runs are under way.")
    daemon.pass_(timedelta(minutes=10, seconds=20))
    daemon.error = None
    daemon.pass_(timedelta(seconds=20))
    assert [time[11:16] for time in daemon.fired] == ["12:20"]
    assert daemon.vault.schedules.get(one.id).last_error is None


def test_the_end_of_a_run_is_told_once(daemon: Daemon, vault: Vault) -> None:
    other = Daemon(vault)
    add(daemon, every=600)
    daemon.pass_(timedelta(minutes=10), ends=False)
    daemon.end_runs(FAILED)
    other.at = daemon.at
    for one in (daemon, other, daemon, other):
        one.schedules.look()
    assert told(daemon) + told(other) == ["failed"]
    [notice] = [notice for notice in daemon.notices.told if notice.run]
    assert notice.run is not None
    assert (notice.run["state"], notice.run["schedule"]) == (FAILED, "nightly")


def test_two_of_one_name_are_refused(daemon: Daemon) -> None:
    one = add(daemon, every=60)
    with pytest.raises(ScheduleExists, match="A schedule is called 'nightly' already"):
        add(daemon, every=60)
    other = add(daemon, "other", every=60)
    with pytest.raises(ScheduleExists):
        daemon.vault.schedules.change(other.id, lambda now: replace(now, name="nightly"))
    daemon.vault.schedules.remove(one.id)
    assert daemon.vault.schedules.called("nightly") == []
    with pytest.raises(UnknownSchedule):
        daemon.vault.schedules.get(one.id)


def test_what_all_schedules_run_has_a_bound_and_a_token_a_share(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored_schedules.MAX_BYTES == 32 << 20
    monkeypatch.setattr(stored_schedules, "MAX_BYTES", 32 << 10)

    def holding(size: int, of: str | None = None) -> dict[str, Any]:
        # Random letters, for what is stored may be compressed.
        text = "".join(random.choices(string.ascii_letters, k=size << 10))
        return {"every": 60, "run": {"stdin": text}, "token": of, "lineage": [] if of is None else [of]}

    theirs = add(daemon, "theirs", **holding(16, "token"))
    with pytest.raises(ScheduleExists, match=r"6,\d{3} bytes, and only 3,\d{3} are left"):
        add(daemon, "more", **holding(6, "token"))
    # Nor by a change, which may make it smaller.
    larger = {**theirs.spec, **holding(22, "token")}
    with pytest.raises(ScheduleExists, match=r"22,.* are left"):
        daemon.vault.schedules.change(theirs.id, lambda now: replace(now, spec=larger))
    add(daemon, "other", **holding(6, "another token"))
    with pytest.raises(ScheduleExists):
        add(daemon, "yet another", **holding(2, "a third token"))
    add(daemon, "own", **holding(7))
    with pytest.raises(ScheduleExists):
        add(daemon, "much", **holding(2))
    smaller = {**theirs.spec, **holding(12, "token")}
    daemon.vault.schedules.change(theirs.id, lambda now: replace(now, spec=smaller))
    add(daemon, "much", **holding(2))


def test_what_was_changed_meanwhile_does_not_fire_as_it_was(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that has come is still its own; what it runs is not."""
    one = add(daemon, every=60, run={"command": "old"})
    daemon.at += timedelta(seconds=60)
    asked: list[str] = []
    started = daemon.schedules.start

    def start(schedule: StoredSchedule, fields: Mapping[str, Any], store: Store | None) -> str:
        asked.append(fields["command"])
        if len(asked) == 1:
            spec = {**schedule.spec, "run": {"command": "new"}}
            daemon.vault.schedules.change(one.id, lambda now: replace(now, spec=spec))
        return started(schedule, fields, store)

    monkeypatch.setattr(daemon.schedules, "start", start)
    daemon.schedules.look()
    assert (asked, daemon.vault.runs.find(limit=10)) == (["old"], [])
    daemon.schedules.look()
    assert (asked, len(daemon.vault.runs.find(limit=10))) == (["old", "new"], 1)


def test_many_daemons_fire_each_time_at_most_once(
    url: str,
    open_vault: Callable[..., Vault],
    vault: Vault,
) -> None:
    # One process holds a vault on SQLite; its threads must not fire twice either.
    shared = [] if url.startswith("sqlite") else [open_vault(url) for _ in range(3)]
    vaults = [vault, *(shared or [vault] * 3)]
    daemons = [Daemon(one) for one in vaults]
    for number in range(5):
        add(daemons[0], f"s{number}", every=60)
    with ThreadPoolExecutor(4) as pool:
        for _ in range(6):
            for daemon in daemons:
                daemon.at += timedelta(seconds=60)
            list(pool.map(lambda daemon: daemon.schedules.look(), daemons))
            daemons[0].end_runs()
    fired = [time for daemon in daemons for time in daemon.fired]
    assert len(fired) == 5 * 6
    assert {fired.count(time) for time in fired} == {5}
