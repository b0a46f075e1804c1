"""All audit logs that a vault knows: what was moved, renamed, copied, restored or taken away whole is told."""

from __future__ import annotations

import json
import os
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from connmgr.audit import log as audit_log
from connmgr.audit.log import FILE_NAME, NOTE_NAME
from connmgr.audit.verify import Verdict, verify
from connmgr.vault.anchors import Anchor
from tests.audit.logs import CHAIN, KeptAnchors, open_log
from tests.cli.program import run
from tests.conftest import StartDaemon
from tests.daemon import Daemon

FACTS = {"id": "1", "path": "/shell/exec", "status": 200}


class Machine:
    """One or several machines whose daemons use one vault."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        self.anchors = KeptAnchors()
        self.be("one")

    def be(self, name: str, machine: str | None = None) -> None:
        """Continue on a machine with another name, and another machine-id(5) unless it is given."""
        self._monkeypatch.setattr(os, "uname", lambda: types.SimpleNamespace(nodename=name))
        self._monkeypatch.setattr(audit_log, "machine_id", lambda: name if machine is None else machine)

    def directory(self, name: str) -> Path:
        path = self.root / name
        path.mkdir(exist_ok=True)
        return path

    def write(self, name: str = "data", entries: int = 3) -> str:
        """Run a daemon that writes ``entries`` into a directory and ends, and return its log's id."""
        log = open_log(self.directory(name), self.anchors)
        for _ in range(entries):
            log.record(FACTS, {}, {})
        log.close()
        return log.id

    def verified(self, name: str = "data", *also: str) -> Verdict:
        return verify(self.directory(name) / FILE_NAME, CHAIN, self.anchors, [self.root / one for one in also])

    def kinds(self, name: str = "data", *also: str) -> list[str]:
        return [fault.kind for fault in self.verified(name, *also).faults]

    def states(self, name: str = "data", *also: str) -> dict[str, str]:
        return {one.log: one.state for one in self.verified(name, *also).logs}

    def first_entry(self, name: str = "data") -> dict[str, Any]:
        with (self.root / name / FILE_NAME).open() as file:
            return dict(json.loads(file.readline()))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def _renamed(machine: Machine) -> None:
    machine.be("renamed", "one")


def _on_another_machine(machine: Machine) -> None:
    machine.be("two")


def _without_machine_ids(machine: Machine) -> None:
    machine.be("renamed", "")


def _away(machine: Machine) -> None:
    (machine.root / "data").rename(machine.root / "away")


def _empty(machine: Machine) -> None:
    (machine.root / "data" / FILE_NAME).write_bytes(b"")


MOVES: dict[str, list[Callable[[Machine], None]]] = {
    "the files are removed": [lambda machine: shutil.rmtree(machine.root / "data")],
    "the file is emptied": [_empty],
    "the directory is moved away": [_away],
    "the directory is moved away and the host renamed": [_away, _renamed],
    "the host is renamed and has no machine id": [_away, _without_machine_ids],
    "the vault is put back on another machine": [_away, _on_another_machine],
    "the same directory on another machine": [
        lambda machine: shutil.rmtree(machine.root / "data"),
        _on_another_machine,
    ],
}


@pytest.mark.parametrize("begins_again", [False, True])
@pytest.mark.parametrize("place", ["data", "elsewhere"])
@pytest.mark.parametrize("move", MOVES)
def test_a_missing_log_is_a_fault_wherever_the_vault_is_used(
    machine: Machine, move: str, place: str, *, begins_again: bool
) -> None:
    lost = machine.write()
    for step in MOVES[move]:
        step(machine)
    if begins_again:
        machine.write(place)
        first = machine.first_entry(place)
        assert first["event"] == "resumed"
        assert [(one["trail"], one["seq"]) for one in first["gone"]] == [(lost, 3)]
        assert first["gone"][0]["place"].startswith("one:")
    found = machine.verified(place)
    assert [fault.kind for fault in found.faults] == ["gone"]
    assert all(word in found.faults[0].message for word in (lost, "entry 3", str(machine.root / "data"), "one"))
    assert machine.states(place)[lost] == "gone"
    machine.anchors.remove(lost)
    assert machine.kinds(place) == (["gone"] if begins_again else []), "only the new log can tell of a removed anchor"


def test_the_files_of_a_missing_log_are_verified_where_they_are(machine: Machine) -> None:
    lost = machine.write()
    _away(machine)
    machine.write("new")
    assert machine.kinds("new") == ["gone"]
    assert (machine.kinds("new", "away"), machine.states("new", "away")[lost]) == ([], "verified")
    at = machine.root / "away" / FILE_NAME
    at.write_bytes(b"".join(at.read_bytes().splitlines(keepends=True)[:-1]))
    (fault,) = machine.verified("new", "away").faults
    assert (fault.kind, fault.seq, fault.file) == ("cut_off", 3, str(at))


def test_the_log_of_another_machine_is_listed_and_not_missed_in_a_shared_vault(machine: Machine) -> None:
    machine.anchors.is_shared = True
    first = machine.write("data")
    machine.be("two")
    second = machine.write("other")
    entry = machine.first_entry("other")
    assert (entry["event"], [one["trail"] for one in entry["others"]], "gone" in entry) == ("began", [first], False)
    assert (machine.kinds("other"), machine.states("other")) == ([], {second: "verified", first: "elsewhere"})
    # The first machine's directory, as another machine sees it after a mount.
    assert machine.states("other", "data") == {second: "verified", first: "verified"}
    machine.be("one")
    assert machine.states("data") == {first: "verified", second: "elsewhere"}
    shutil.rmtree(machine.root / "data")
    assert machine.kinds("data") == ["gone"], "this machine's own"
    machine.be("renamed", "one")
    assert machine.kinds("data") == ["gone"], "its name alone has changed"


def test_a_renamed_host_and_a_moved_directory_continue_their_log(machine: Machine) -> None:
    log = machine.write()
    machine.be("renamed", "one")
    assert machine.write() == log
    (machine.root / "data").rename(machine.root / "moved")
    assert machine.write("moved") == log
    found = machine.verified("moved")
    assert (found.faults, found.entries) == ([], 11)
    assert ["one:" in found.remarks[0], "renamed:" in found.remarks[1]] == [True, True]


def test_two_daemons_that_continue_copies_of_a_log_are_told(machine: Machine) -> None:
    log = machine.write()
    shutil.copytree(machine.root / "data", machine.root / "copy")
    assert machine.kinds("data", "copy") == [], "a copy is not a fork"
    assert [one.state for one in machine.verified("data", "copy").logs] == ["verified", "copy"]
    original = open_log(machine.directory("data"), machine.anchors)
    copy = open_log(machine.directory("copy"), machine.anchors)
    copy.record(FACTS, {}, {})
    copy.anchor()
    original.record(FACTS, {}, {})
    original.anchor()
    original.anchor()
    copy.close()
    original.close()
    lines = (machine.root / "data" / FILE_NAME).read_text().splitlines()
    (forked,) = [json.loads(line) for line in lines if '"event":"forked"' in line]
    assert forked["by"]["place"] == f"one:{machine.root / 'copy'}"
    assert machine.anchors.kept[log].directory == str(machine.root / "copy"), "the other daemon's anchor is replaced"
    assert "forked" in machine.kinds("data")
    assert "forked" in machine.kinds("copy"), "it is found beside the original on this machine"


@pytest.mark.parametrize(
    ("note", "told", "noticed"),
    [
        pytest.param(True, 7, [4, 5, 6], id="with the note"),
        # The last record is in no entry yet, and without the note its loss looks like a crash.
        pytest.param(False, 6, [4, 5], id="by the entries alone"),
    ],
)
def test_a_vault_that_is_older_than_its_log_by_one_record_is_told(
    machine: Machine, told: int, noticed: list[int], *, note: bool
) -> None:
    machine.write(entries=3)
    log = open_log(machine.directory("data"), machine.anchors)
    vaults = {}
    for entry in (4, 5, 6, 7):
        log.record(FACTS, {}, {})
        log.anchor()
        vaults[entry] = dict(machine.anchors.kept)
    log.close()
    assert machine.verified().remarks == []
    if not note:
        (machine.root / "data" / NOTE_NAME).unlink()
    remarks = {}
    for entry, machine.anchors.kept in vaults.items():
        found = machine.verified()
        assert (found.faults, found.anchored) == ([], entry)
        older = [remark for remark in found.remarks if "older" in remark]
        if older:
            (remarks[entry],) = older
    assert list(remarks) == noticed
    for entry, remark in remarks.items():
        assert remark.startswith(
            f"The vault is older than the log: it had recorded entry {told}, and knows only entry {entry}, recorded at "
        )


def test_the_next_daemon_records_that_its_vault_is_an_older_one(machine: Machine) -> None:
    machine.write()
    kept = dict(machine.anchors.kept)
    machine.write(entries=4)
    machine.anchors.kept = kept
    machine.write(entries=0)
    assert json.loads((machine.root / "data" / FILE_NAME).read_text().splitlines()[-1])["behind"]["seq"] == 3
    found = machine.verified()
    assert (found.faults, [remark for remark in found.remarks if "older" in remark]) == ([], [])
    assert "knew only entry 3" in found.remarks[-1]


def test_each_log_of_a_shared_vault_tells_that_the_vault_is_an_older_one(machine: Machine) -> None:
    machine.anchors.is_shared = True
    for name in ("one", "two"):
        machine.be(name)
        machine.write(name)
    kept = dict(machine.anchors.kept)
    for name in ("one", "two"):
        machine.be(name)
        machine.write(name, 1)
        assert machine.verified(name).remarks == []
    machine.anchors.kept = kept
    for name in ("one", "two"):
        machine.be(name)
        (remark,) = machine.verified(name).remarks
        assert remark.startswith("The vault is older than the log")
    machine.be("one")
    assert len(machine.verified("one", "two").remarks) == 2, "a log of another machine, whose files are at hand"


def test_a_log_put_back_together_with_its_vault_is_told_by_the_newer_note(machine: Machine) -> None:
    machine.write()
    kept, text = dict(machine.anchors.kept), (machine.root / "data" / FILE_NAME).read_bytes()
    machine.write(entries=2)
    machine.anchors.kept = kept
    (machine.root / "data" / FILE_NAME).write_bytes(text)
    found = machine.verified()
    assert [(fault.kind, fault.seq, fault.last) for fault in found.faults] == [("cut_off", 4, 5)]


def test_an_older_vault_is_told_by_its_age_where_the_log_does_not_tell(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.write(entries=1)
    kept = dict(machine.anchors.kept)
    log = open_log(machine.directory("data"), machine.anchors)
    log.record(FACTS, {}, {})
    log.close()
    (machine.root / "data" / NOTE_NAME).write_text(f"{'0' * 64} {log.id} 2\n")
    monkeypatch.setattr(audit_log, "LAG_SECONDS", -1.0)
    monkeypatch.setattr("connmgr.audit.verify.LAG_SECONDS", -1.0)
    machine.anchors.kept = kept
    found = machine.verified()
    assert (found.faults, found.anchored, found.last) == ([], 1, 2)
    assert "older vault" in found.remarks[0]


class State(NamedTuple):
    """What a kill leaves: the content of the files, by their names, and the vault's anchors."""

    files: dict[str, bytes]
    anchors: dict[str, Anchor]

    @classmethod
    def of(cls, machine: Machine) -> State:
        files = {file.name: file.read_bytes() for file in machine.directory("data").iterdir()}
        return cls(files, dict(machine.anchors.kept))

    def put_back(self, machine: Machine) -> None:
        shutil.rmtree(machine.root / "data")
        for name, content in self.files.items():
            file = machine.directory("data") / name
            file.write_bytes(content)
            file.chmod(0o600)
        machine.anchors.kept = dict(self.anchors)


def _states_between_writes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[State]:
    """Have two daemons write a log one after the other, and return the states before and after each of their steps."""
    data, states = machine.directory("data"), []

    def between(usual: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            states.append(State.of(machine))
            result = usual(*arguments, **options)
            states.append(State.of(machine))
            return result

        return step

    with monkeypatch.context() as steps:
        for owner, name in (
            (os, "write"),
            (os, "fsync"),
            (os, "open"),
            (Path, "replace"),
            (Path, "unlink"),
            (KeptAnchors, "put"),
        ):
            steps.setattr(owner, name, between(getattr(owner, name)))
        for _ in range(2):
            log = open_log(data, machine.anchors, max_bytes=700)
            for number in range(14):
                log.record(FACTS, {}, {})
                if number % 3:
                    log.anchor()
            log.close()
    return states


def test_a_kill_between_any_two_writes_never_looks_like_an_older_vault(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is written by the thread that anchors: each state belongs to one step.
    monkeypatch.setattr(audit_log, "ANCHOR_SECONDS", 3600.0)
    states = [state for state in _states_between_writes(machine, monkeypatch) if FILE_NAME in state.files]
    assert len(states) > 100
    for state in states:
        state.put_back(machine)
        found = machine.verified()
        assert (found.faults, [remark for remark in found.remarks if "older" in remark]) == ([], [])
        machine.write(entries=1)
        text = (machine.root / "data" / FILE_NAME).read_text()
        assert (machine.kinds(), '"behind"' in text) == ([], False)


def test_many_other_logs_are_counted_and_the_newest_named(machine: Machine) -> None:
    machine.anchors.is_shared = True
    for number in range(audit_log.MAX_OTHERS + 3):
        machine.be(f"host{number}")
        machine.write(f"data{number}", 1)
    machine.be("last")
    machine.write("last", 1)
    entry = machine.first_entry("last")
    assert (len(entry["others"]), entry["othersNumber"]) == (audit_log.MAX_OTHERS, audit_log.MAX_OTHERS + 3)


@pytest.mark.parametrize("instead", ["a link", "a directory"])
def test_something_else_in_place_of_a_neighbour_s_log_is_a_fault(machine: Machine, instead: str) -> None:
    lost = machine.write("data")
    at = machine.root / "data" / FILE_NAME
    at.unlink()
    at.symlink_to(machine.root / "nowhere") if instead == "a link" else at.mkdir()
    machine.write("other")
    assert (machine.kinds("other"), machine.states("other")[lost]) == (["gone"], "gone")


def test_a_directory_without_a_log_is_not_verified_in_silence(machine: Machine) -> None:
    machine.write()
    machine.directory("empty")
    with pytest.raises(FileNotFoundError, match="no audit log"):
        machine.verified("data", "empty")


def test_a_log_that_its_user_may_not_read_is_listed_and_not_missed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root reads everything, so the system's refusal is imitated.
    lost = machine.write("data")
    machine.write("other")
    closed = str(machine.root / "data" / FILE_NAME)
    usual = audit_log._open_to_read

    def refuse(path: str, flags: int) -> int:
        if path == closed:
            raise PermissionError(13, "Permission denied", path)
        return usual(path, flags)

    monkeypatch.setattr(audit_log, "_open_to_read", refuse)
    assert (machine.kinds("other"), machine.states("other")[lost]) == ([], "unreadable")
    with pytest.raises(PermissionError):
        machine.verified("other", "data")


def test_a_log_cut_back_together_with_its_vault_is_what_verification_cannot_see(machine: Machine) -> None:
    machine.write()
    kept, text = dict(machine.anchors.kept), (machine.root / "data" / FILE_NAME).read_bytes()
    machine.write(entries=4)
    machine.anchors.kept = kept
    (machine.root / "data" / FILE_NAME).write_bytes(text)
    (machine.root / "data" / NOTE_NAME).unlink()
    assert machine.kinds() == [], "docs/SECURITY.md says so"


def _verified(daemon: Daemon, *more: str) -> tuple[int, dict[str, Any], str]:
    told = run("audit", "verify", *more, environment=daemon.environment)
    as_json = run("audit", "verify", "--json", *more, environment=daemon.environment)
    assert (told.errors, told.code) == ("", as_json.code)
    return told.code, as_json.json, told.output


def test_a_vault_moved_without_its_log_is_told_until_the_owner_has_it_forgotten(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    daemon = start_daemon(home=tmp_path / "home")
    daemon.client.secret.encrypt("x")
    daemon.stop()
    code, found, _ = _verified(daemon)
    assert (code, [one["state"] for one in found["logs"]]) == (0, ["verified"])
    shutil.copytree(tmp_path / "home", tmp_path / "new", ignore=shutil.ignore_patterns(f"{FILE_NAME}*"))
    (tmp_path / "home").rename(tmp_path / "old")
    copy = start_daemon(home=tmp_path / "new")
    answer = copy.client.post("/audit/verify")
    (lost,) = [one for one in answer["logs"] if one["state"] == "gone"]
    assert (answer["sound"], lost["trail"], lost["seq"]) == (False, found["trail"], 1)
    code, _, text = _verified(copy)
    assert code == 1
    assert all(word in text for word in (found["trail"], str(tmp_path / "home"), "connmgr audit forget"))
    assert "nothing was changed" not in text
    old = copy.data_dir.parts[len((tmp_path / "new").parts) :]
    code, _, text = _verified(copy, "--also", str((tmp_path / "old").joinpath(*old)))
    assert (code, "nothing was changed" in text) == (0, True)
    own = answer["trail"]
    assert run("audit", "forget", own, environment=copy.environment).code != 0
    assert run("audit", "forget", "0" * 16, environment=copy.environment).code != 0
    assert run("audit", "forget", found["trail"], environment=copy.environment).code == 0
    code, after, text = _verified(copy)
    assert (code, len(after["logs"])) == (0, 1)
    assert f"forget a missing log: {found['trail']}" in text
    (entry,) = copy.client.post("/audit/query", action="audit.forget", limit=1)["entries"]
    assert (entry["forgotten"], entry["forgottenSeq"]) == (found["trail"], 1)
