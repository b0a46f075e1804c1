"""Runs in the vault: several daemons, some of which vanish at any statement, begin no target twice and finish the run.

Daemons are boots within this process: each step is one transaction, and one that is to vanish raises in the middle.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from connmgr.contract.run import DONE
from connmgr.errors import IntegrityError, RunEnded, RunLimit, RunUnderWay, UnknownRun
from connmgr.vault import Vault
from connmgr.vault import runs as stored_runs
from connmgr.vault.backup import backup, restore
from connmgr.vault.jobs import StoredJob
from connmgr.vault.runs import BatchOwner, BegunTarget, NewBatch, NewRun, RunStep, StoredRuns, TargetOutcome
from connmgr.vault.schema import now

SPEC = {"waves": [4, 8], "wavePause": 0, "waveApproval": False, "keep": None, "as": "shell", "lineage": []}
CYCLES = 30


def new_run(vault: Vault, waves: tuple[int, ...] = (4, 8), **more: object) -> str:
    """Submit a run with batches of two targets."""
    numbers = itertools.count()
    batches = [
        NewBatch(wave, [f"c{next(numbers)}" for _ in range(2)])
        for wave, size in enumerate(waves)
        for _ in range(size // 2)
    ]
    spec = {**SPEC, "waves": list(waves), **{name: more.pop(name) for name in list(more) if name in SPEC}}
    id = str(uuid.uuid4())
    new = NewRun(id=id, spec=spec, batches=batches, parallel=3, **more)  # type: ignore[arg-type]
    assert vault.runs.submit(new) == (id, True)
    return id


def step(vault: Vault, id: str, boot: str, outcomes: list[TargetOutcome] | None = None, room: int = 3) -> RunStep:
    return vault.runs.step(id, BatchOwner(boot, "here"), outcomes or [], room, batch=2)


def done(one: BegunTarget, state: str = "done") -> TargetOutcome:
    return TargetOutcome(n=one.n, epoch=one.epoch, state=state, exit_code=0 if state == "done" else 1, seconds=0.1)


class Vanished(Exception):
    """The daemon is gone in the middle of a transaction."""


@contextmanager
def vanishing(vault: Vault, statements: int) -> Iterator[None]:
    """Let the connection break after so many statements of the next transactions."""
    left = itertools.count(statements, -1)

    def count(*_: object) -> None:
        if next(left) == 0:
            raise Vanished

    engine = vault.database._backend.writer
    sa.event.listen(engine, "before_cursor_execute", count)
    try:
        yield
    finally:
        sa.event.remove(engine, "before_cursor_execute", count)


def others_are_gone(vault: Vault, boot: str) -> None:
    """Take over as on SQLite, where one process holds the vault, also on PostgreSQL."""
    owners = vault.database.read(lambda tx: set(tx.scalars(sa.select(stored_runs.batches.c.owner).distinct())))
    gone = sorted(owners - {boot, None})
    vault.database.write(lambda tx: vault.runs._release(tx, gone))


@pytest.mark.parametrize("seed", range(3))
def test_no_target_is_begun_twice_whoever_vanishes_at_any_statement(vault: Vault, seed: int) -> None:
    rng = random.Random(seed)
    for cycle in range(CYCLES // 3):
        id = new_run(vault)
        sent: Counter[int] = Counter()
        boots, begun = itertools.count(), dict[int, BegunTarget]()
        boot = f"here/{next(boots)}"
        while vault.runs.get(id).state not in ("done", "failed"):
            outcomes = [
                done(one, rng.choice(["done", "done", "failed"])) for one in begun.values() if rng.random() < 0.7
            ]
            try:
                with vanishing(vault, rng.randrange(40)) if rng.random() < 0.4 else vanishing(vault, 10**9):
                    told = step(vault, id, boot, outcomes, 3 - len(begun) + len(outcomes))
            except Vanished:
                # Nothing of that transaction stays; what it had begun before is unknown to whoever takes over.
                begun, boot = {}, f"here/{next(boots)}"
                others_are_gone(vault, boot)
                continue
            for one in outcomes:
                del begun[one.n]
            begun |= {one.n: one for one in told.begun}
            sent.update(one.n for one in told.begun)
        assert set(sent.values()) <= {1}, (seed, cycle)
        counts = vault.runs.counts(id)
        assert counts["waiting"] == counts["starting"] == counts["stopped"] == 0
        assert sum(counts.values()) == 12


def test_what_a_fenced_daemon_stores_changes_nothing(vault: Vault) -> None:
    id = new_run(vault)
    first = step(vault, id, "one/1").begun
    others_are_gone(vault, "two/1")
    assert vault.runs.counts(id)["unknown"] == 3
    again = step(vault, id, "two/1").begun
    assert not {one.n for one in first} & {one.n for one in again}
    step(vault, id, "one/1", [done(one) for one in first], 0)
    assert vault.runs.counts(id)["done"] == 0
    step(vault, id, "two/1", [done(one) for one in again], 0)
    assert vault.runs.counts(id)["done"] == len(again)


def test_an_outcome_that_is_stored_twice_is_stored_once(vault: Vault) -> None:
    id = new_run(vault)
    begun = step(vault, id, "one/1", room=1).begun
    for _ in range(2):
        step(vault, id, "one/1", [done(one) for one in begun], 0)
    assert vault.runs.counts(id)["done"] == 1


def test_a_try_in_which_nothing_was_sent_does_not_count(vault: Vault) -> None:
    """Its number is part of a job's key: under another one, a job that a former owner started would start again."""
    id = new_run(vault)
    [first] = step(vault, id, "one/1", room=1).begun
    [second] = step(vault, id, "one/1", [replace(done(first, "stopped"), again=0.0, counts=False)], 1).begun
    assert (second.n, second.tries) == (first.n, 1)
    [third] = step(vault, id, "one/1", [replace(done(second, "failed"), again=0.0)], 1).begun
    assert (third.n, third.tries) == (first.n, 2)


@pytest.mark.parametrize("state", ["failed", "stopped"])
def test_no_target_waits_for_another_try_in_a_run_that_ends(vault: Vault, state: str) -> None:
    id = new_run(vault)
    [one] = step(vault, id, "one/1", room=1).begun
    vault.runs.stop(id, "enough")
    step(vault, id, "one/1", [replace(done(one, state), again=0.0)], 1)
    counts = {state: count for state, count in vault.runs.counts(id).items() if count}
    assert counts == ({"failed": 1, "stopped": 11} if state == "failed" else {"stopped": 12})
    assert vault.runs.get(id).state == "stopped"


def test_targets_of_a_vanished_daemon_that_are_jobs_wait_for_another(vault: Vault) -> None:
    id = new_run(vault, **{"as": "job"})
    first = step(vault, id, "one/1").begun
    others_are_gone(vault, "two/1")
    again = step(vault, id, "two/1").begun
    assert [(one.n, one.tries) for one in again] == [(one.n, 1) for one in first]


def test_the_job_of_a_target_is_kept_until_its_outcome_is_stored_and_longer_where_two_may_have_begun_it(
    vault: Vault, add: Callable[..., str]
) -> None:
    there = add("there")

    def started(one: BegunTarget, state: str = "exited") -> TargetOutcome:
        job = StoredJob(
            id=str(uuid.uuid4()),
            connection=there,
            session=None,
            name=None,
            key=f"run:{one.n}:{one.tries}",
            command="true",
            stdin_open=False,
            keep=60,
            created=now(),
        )
        job = vault.jobs.add(job)
        vault.jobs.set_state(job.id, state)
        return replace(done(one), job=job.id)

    def kept(one: TargetOutcome) -> int:
        assert one.job is not None
        return vault.jobs.get(one.job).keep

    id = new_run(vault, **{"as": "job"})
    over, runs_on, taken = step(vault, id, "one/1").begun
    ended, open_end, late = started(over), started(runs_on, "running"), started(taken)
    assert kept(ended) == 60
    step(vault, id, "one/1", [ended, open_end], 0)
    assert (kept(ended), kept(open_end)) == (0, 60)
    others_are_gone(vault, "two/1")
    again = next(one for one in step(vault, id, "two/1", room=9).begun if one.n == taken.n)
    # The former owner may wake, and has no say; the key must stay for it.
    step(vault, id, "one/1", [late], 0)
    assert kept(late) == 60
    step(vault, id, "two/1", [started(again)], 0)
    assert kept(late) == (60 if vault.database.is_shared else 0)


def test_a_daemon_whose_lease_has_lapsed_begins_nothing(vault: Vault) -> None:
    """Its step may have waited for the server until others had freed its batches: it would have targets twice."""
    id = new_run(vault)
    vault.runs.join("one/1", "one")
    begun = vault.runs.step(id, BatchOwner("one/1", "one", 5.0), [], 2, batch=2).begun
    assert len(begun) == 2
    silent = stored_runs.daemons.update().values(seen=now() - timedelta(seconds=6))
    vault.database.write(lambda tx: tx.execute(silent))
    others_are_gone(vault, "two/1")
    step = vault.runs.step(id, BatchOwner("one/1", "one", 5.0), [], 3, batch=2)
    assert (step.begun, step.has_work) == ([], False)
    # What others have begun since is theirs.
    vault.runs.join("two/1", "two")
    assert vault.runs.step(id, BatchOwner("two/1", "two", 5.0), [], 3, batch=2).begun


def test_a_database_that_was_put_back_begins_nothing_that_may_have_begun(vault: Vault) -> None:
    """As after `pg_restore` of a dump beneath a running daemon: what waited then may have begun since."""
    id = new_run(vault)
    known = vault.runs.join("one/1", "one")
    assert not vault.runs.is_put_back("one/1", known)
    assert vault.runs.beat("one/1", 60.0, known)
    assert len(vault.runs.step(id, BatchOwner("one/1", "one", 60.0, known), [], 2, batch=2).begun) == 2
    # The dump is of a time before the last beat of which the daemon knows, and its lease has not lapsed.
    later = now() + timedelta(seconds=1)
    assert vault.runs.is_put_back("one/1", later)
    assert vault.runs.beat("one/1", 60.0, later) is None
    assert vault.runs.step(id, BatchOwner("one/1", "one", 60.0, later), [], 2, batch=2).begun == []
    # A daemon that has joined since the dump is not in it; one that was silent for a day was forgotten.
    assert vault.runs.is_put_back("gone/1", now())
    assert not vault.runs.is_put_back("gone/1", now() - timedelta(days=2))
    vault.runs.note_put_back(known)
    run = vault.runs.get(id)
    assert (run.state, run.reason) == ("stopped", stored_runs.PUT_BACK)
    counts = vault.runs.counts(id)
    assert (counts["unknown"], counts["waiting"], counts["starting"]) == (2, 0, 0)
    assert counts["stopped"] == sum(counts.values()) - 2
    assert (vault.schedules.restored() or known) > known
    # The next daemon that notices stops no run that was begun since.
    other = new_run(vault)
    vault.runs.note_put_back(known)
    assert vault.runs.get(other).state == "pending"


def test_a_batch_that_is_bound_is_claimed_at_home_alone(vault: Vault) -> None:
    id = str(uuid.uuid4())
    spec = {**SPEC, "waves": [2]}
    batches = [NewBatch(0, ["a"], "there", bound=True), NewBatch(0, ["b"], "there/1")]
    vault.runs.submit(NewRun(id=id, spec=spec, batches=batches, parallel=5))
    assert [one.n for one in step(vault, id, "here/1").begun] == [1]
    assert [one.n for one in vault.runs.step(id, BatchOwner("there/2", "there"), [], 5, batch=2).begun] == [0]


def test_daemons_have_equal_shares_of_what_may_run(vault: Vault) -> None:
    id = new_run(vault, (20,))
    [first, second, third] = step(vault, id, "one/1").begun
    # One process holds a vault on SQLite, and counts for itself.
    alone = not vault.database.is_shared
    assert len(step(vault, id, "two/1").begun) == (3 if alone else 0)
    left = step(vault, id, "one/1", [done(first), done(second)], room=2).begun
    assert len(left) == (2 if alone else 1)
    assert len(step(vault, id, "two/1", room=3).begun) == (3 if alone else 1)
    assert third.epoch == 1


def test_a_daemon_with_room_for_all_leaves_batches_to_others(vault: Vault) -> None:
    id = str(uuid.uuid4())
    found = [NewBatch(0, [f"c{n}a", f"c{n}b"]) for n in range(20)] + [NewBatch(0, ["home"], "here")]
    vault.runs.submit(NewRun(id=id, spec={**SPEC, "waves": [41]}, batches=found, parallel=41))
    first = step(vault, id, "one/1", room=41)
    if not vault.database.is_shared:
        assert (len(first.begun), first.leaves) == (41, False)
        return
    # What is at home there, and a quarter of the rest.
    assert (len(first.begun), first.leaves) == (11, True)
    other = vault.runs.step(id, BatchOwner("two/1", "there"), [], 41, batch=2)
    assert (len(other.begun), other.leaves) == (10, True)
    # Where no other takes any, it soon has all that its share allows.
    steps = [step(vault, id, "one/1", room=30 - n) for n in range(6)]
    assert 11 + sum(len(one.begun) for one in steps) == 21
    assert not steps[-1].leaves


def test_a_restored_backup_goes_on_with_no_run(vault: Vault, tmp_path: Path, open_vault: Callable[..., Vault]) -> None:
    ended, begun = new_run(vault), new_run(vault)
    vault.runs.stop(ended, "enough")
    step(vault, begun, "one/1")
    backup(vault.database, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")
    restored = open_vault(f"sqlite:///{tmp_path}/restored/vault.db")
    assert (restored.runs.get(ended).state, restored.runs.get(ended).reason) == ("stopped", "enough")
    assert restored.runs.get(begun).reason == "The vault was restored from a backup."
    counts = restored.runs.counts(begun)
    assert (counts["unknown"], counts["stopped"]) == (3, 9)
    assert not restored.runs.are_under_way()


def test_a_row_that_was_changed_is_refused(vault: Vault) -> None:
    id = new_run(vault)
    table = stored_runs.runs
    vault.database.write(lambda tx: tx.execute(table.update().where(table.c.id == id).values(token="another")))
    with pytest.raises(IntegrityError, match="changed outside of connmgr"):
        vault.runs.get(id)


def test_the_selection_is_that_of_the_submission_whatever_the_table_says(vault: Vault) -> None:
    id = new_run(vault)
    table = stored_runs.targets
    vault.database.write(lambda tx: tx.execute(table.update().values(connection="another")))
    assert vault.runs.selection(id)[:2] == ["c0", "c1"]


def test_only_ended_runs_are_removed_and_only_others_stopped(vault: Vault) -> None:
    id = new_run(vault)
    with pytest.raises(RunUnderWay):
        vault.runs.remove(id)
    vault.runs.stop(id, "enough")
    assert vault.runs.get(id).state == "stopped"
    for change in (vault.runs.pause, vault.runs.resume, lambda id: vault.runs.stop(id, "again")):
        with pytest.raises(RunEnded):
            change(id)
    vault.runs.remove(id)
    with pytest.raises(UnknownRun):
        vault.runs.get(id)


def test_an_expired_run_is_removed(vault: Vault) -> None:
    kept, expired = new_run(vault), new_run(vault, keep=0)
    for id in (kept, expired):
        vault.runs.stop(id, "enough")
    assert vault.runs.remove_expired() == 1
    assert vault.runs.get(kept).state == "stopped"
    with pytest.raises(UnknownRun):
        vault.runs.get(expired)


def test_there_is_a_limit_of_runs_under_way(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_runs, "MAX_RUNS", 2)
    new_run(vault)
    new_run(vault)
    with pytest.raises(RunLimit):
        new_run(vault)


def test_a_token_has_its_share_of_runs_under_way(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_runs, "MAX_RUNS", 8)
    for _ in range(5):
        new_run(vault, token="one", lineage=["one"])
    with pytest.raises(RunLimit, match="the token has 5 of them"):
        new_run(vault, token="below", lineage=["below", "one"])
    new_run(vault, token="other", lineage=["other"])
    with pytest.raises(RunLimit, match="tokens have 6 of them"):
        new_run(vault, token="other", lineage=["other"])
    new_run(vault)
    new_run(vault)


def test_runs_of_tokens_displace_only_their_own(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_runs, "MAX_KEPT", 8)
    own = [new_run(vault), new_run(vault)]
    theirs = [new_run(vault, token="one", lineage=["one"]) for _ in range(7)]
    for id in (*own, *theirs):
        vault.runs.stop(id, "enough")
    assert vault.runs.remove_expired() == 2
    assert {run.id for run in vault.runs.find()} == {*own, *theirs[2:]}
    more = [new_run(vault) for _ in range(7)]
    for id in more:
        vault.runs.stop(id, "enough")
    # The oldest goes, whosever it is.
    assert vault.runs.remove_expired() == 6
    assert {run.id for run in vault.runs.find()} == {*more, theirs[-1]}


def test_equal_outputs_have_one_digest_and_are_sealed(vault: Vault) -> None:
    runs: StoredRuns = vault.runs
    printed = runs.sealed_output(b"out", b"err", truncated=True)
    assert printed is not None
    assert runs.opened(printed[1]) == (b"out", b"err", True)
    assert runs.sealed_output(b"", b"", truncated=False) is None
    again = runs.sealed_output(b"out", b"err", truncated=True)
    assert again is not None
    assert (again[0] == printed[0], again[1] == printed[1]) == (True, False)


def printed_run(vault: Vault, size: int, **more: object) -> str:
    """Return a run that has ended, whose only output has ``size`` bytes."""
    id = new_run(vault, waves=(2,), **more)
    step = vault.runs.step(id, BatchOwner("boot/1", "here"), [], 1, batch=2)
    printed = vault.runs.sealed_output(bytes(size), b"", truncated=False)
    [begun] = step.begun
    ended = TargetOutcome(n=begun.n, epoch=begun.epoch, state=DONE, exit_code=0, printed=printed)
    vault.runs.step(id, BatchOwner("boot/1", "here"), [ended], 0, batch=2)
    return id


def test_kept_runs_have_so_many_bytes(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_runs, "MAX_KEPT_BYTES", 80_000)
    own = printed_run(vault, 9_000)
    theirs = [printed_run(vault, 9_000, token="one", lineage=["one"]) for _ in range(7)]
    for id in (own, *theirs):
        vault.runs.stop(id, "enough")
    assert vault.runs.full() == set()
    # A token has five eighths, and its older runs go first.
    assert vault.runs.remove_expired() == 2
    assert {run.id for run in vault.runs.find()} == {own, *theirs[2:]}
    # Runs under way are not removed, and use room.
    greedy = printed_run(vault, 60_000, token="one", lineage=["one"])
    beside = printed_run(vault, 1_000)
    assert vault.runs.full() == {greedy}
    assert vault.runs.remove_expired() == 5
    assert {run.id for run in vault.runs.find()} == {own, greedy, beside}


def test_a_list_of_runs_reads_nothing_of_what_they_run(vault: Vault) -> None:
    """Otherwise one token's inputs would fill the memory of the daemon when anybody lists runs."""
    content: dict[str, object] = {"request": {"stdin": "x" * 100_000}, "asked": None, "grounds": []}
    ids = [new_run(vault, content=content) for _ in range(3)]
    listed = vault.runs.find(limit=2)
    assert len(listed) == 2
    assert all(len(str(run.spec)) < 10_000 for run in listed)
    assert {run.id for run in vault.runs.find()} == set(ids)
    assert vault.runs.content(listed[0]) == content
    assert vault.runs.find(is_wanted=lambda run: run.id == ids[0])[0].id == ids[0]
