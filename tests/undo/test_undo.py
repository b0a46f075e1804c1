"""Undo: what tokens change in files is kept before, and put back only where nobody else has changed it since."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connmgr.undo import snapshots
from tests.api.wire import LOCAL, Answer, send
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.rights.wire import Holder, create

Restore = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def agent(daemon: Daemon) -> Holder:
    holder = create(daemon, "fs.read", "fs.write", "shell.any", name="agent")
    holder.ok("/shell/start", connection=LOCAL)
    return holder


def put(holder: Holder, path: Path, content: bytes, **more: Any) -> Answer:
    headers = {"Authorization": f"Bearer {holder.secret}", "Content-Type": "application/octet-stream"}
    blob = send(holder.url, "/fs/blob", content, headers).json["blob"]
    return holder.send("/fs/write", connection=LOCAL, blob=blob, path=str(path), **more)


def changes_of(daemon: Daemon, holder: Holder) -> list[dict[str, Any]]:
    """The changes of a token, the newest first."""
    return list(daemon.client.post("/undo/query", token=holder.id)["changes"])


def undo(daemon: Daemon, *changes: dict[str, Any] | str, **more: Any) -> list[dict[str, Any]]:
    ids = [one if isinstance(one, str) else one["change"] for one in changes]
    return list(daemon.client.post("/undo/restore", connection=LOCAL, changes=ids, **more)["results"])


def states(results: list[dict[str, Any]]) -> list[str]:
    return [one["state"] for one in results]


def test_an_edit_is_kept_and_put_back(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    file = tmp_path / "motd"
    file.write_bytes(b"before")
    file.chmod(0o640)
    os.utime(file, (1_600_000_000, 1_600_000_000))
    [change] = put(agent, file, b"after").json["changes"]
    [listed] = changes_of(daemon, agent)
    assert (listed["change"], listed["path"], listed["by"]) == (change, str(file), "agent")
    assert (listed["before"]["size"], listed["after"]["size"]) == (6, 5)
    [done] = undo(daemon, change)
    assert (done["state"], file.read_bytes()) == ("restored", b"before")
    status = file.stat()
    assert (status.st_mode & 0o7777, int(status.st_mtime)) == (0o640, 1_600_000_000)


def test_what_somebody_else_has_changed_since_is_left_alone(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"before")
    [change] = put(agent, file, b"after").json["changes"]
    file.write_bytes(b"somebody's")
    [done] = undo(daemon, change)
    assert (done["state"], file.read_bytes()) == ("changed_since", b"somebody's")
    assert "somebody else" in done["message"]
    [forced] = undo(daemon, change, force=True)
    assert (forced["state"], file.read_bytes()) == ("restored", b"before")
    # What was overwritten by force is kept, too.
    [back] = undo(daemon, forced["restoredAs"])
    assert (back["state"], file.read_bytes()) == ("restored", b"somebody's")


def test_another_token_s_change_is_named(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    other = create(daemon, "fs.write", name="somebody")
    file = tmp_path / "file"
    [change] = put(agent, file, b"one").json["changes"]
    put(other, file, b"two")
    [done] = undo(daemon, change)
    assert done["state"] == "changed_since"
    assert "by somebody at" in done["message"]
    [unnamed] = agent.ok("/undo/restore", connection=LOCAL, changes=[change])["results"]
    assert "by somebody else:" in unnamed["message"]


def test_a_chain_of_edits_goes_back_to_its_beginning(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0")
    for content in (b"1", b"2", b"3"):
        assert put(agent, file, content).status == 200
    chain = changes_of(daemon, agent)
    assert states(undo(daemon, *chain, dryRun=True)) == ["restorable"] * 3
    assert file.read_bytes() == b"3"
    assert states(undo(daemon, *reversed(chain))) == ["restored"] * 3
    assert file.read_bytes() == b"0"
    assert states(undo(daemon, *chain)) == ["changed_since", "changed_since", "unchanged"]


def test_a_chain_that_somebody_broke_stops_there(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"0")
    put(agent, file, b"1")
    file.write_bytes(b"somebody's")
    put(agent, file, b"2")
    chain = changes_of(daemon, agent)
    assert states(undo(daemon, *chain, dryRun=True)) == ["restorable", "changed_since"]
    assert states(undo(daemon, *chain)) == ["restored", "changed_since"]
    assert file.read_bytes() == b"somebody's"


def test_new_removed_and_moved_files(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    new, gone, source, target = (tmp_path / name for name in ("new", "gone", "source", "target"))
    for path in (gone, source, target):
        path.write_bytes(path.name.encode())
    gone.chmod(0o4711)
    put(agent, new, b"new")
    agent.ok("/fs/remove", connection=LOCAL, path=str(gone))
    agent.ok("/fs/move", connection=LOCAL, source=str(source), target=str(target), overwrite=True)
    agent.ok("/fs/mkdir", connection=LOCAL, path=str(tmp_path / "made"), mode="0750")
    agent.ok("/fs/attributes", connection=LOCAL, path=str(target), mode="0600")
    made = changes_of(daemon, agent)
    assert [one["action"] for one in made] == [
        "fs.attributes",
        "fs.mkdir",
        "fs.move",
        "fs.move",
        "fs.remove",
        "fs.write",
    ]
    assert states(undo(daemon, *made)) == ["restored"] * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gone", "source", "target"]
    assert [path.read_bytes() for path in (gone, source, target)] == [b"gone", b"source", b"target"]
    assert gone.stat().st_mode & 0o7777 == 0o4711
    assert target.stat().st_mode & 0o777 == 0o644


def test_a_directory_that_was_filled_since_stays(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    made = agent.ok("/fs/mkdir", connection=LOCAL, path=str(tmp_path / "made"))["changes"]
    (tmp_path / "made" / "file").touch()
    [done] = undo(daemon, *made)
    assert done["state"] == "failed"
    assert (tmp_path / "made" / "file").exists()


def test_what_cannot_be_kept_is_said(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--max-undo-file", "10")
    agent = create(daemon, "fs.write")
    agent.ok("/shell/start", connection=LOCAL)
    file, tree = tmp_path / "file", tmp_path / "tree"
    file.write_bytes(b"x" * 11)
    (tree / "below").mkdir(parents=True)
    answer = put(agent, file, b"short").json
    assert answer["changes"] == []
    assert "more than 10 bytes" in answer["notKept"]
    assert "directory" in agent.ok("/fs/remove", connection=LOCAL, path=str(tree), recursive=True)["notKept"]
    assert states(undo(daemon, *changes_of(daemon, agent))) == ["not_kept", "not_kept"]
    assert file.read_bytes() == b"short"


def test_a_large_file_that_somebody_changed_is_left_alone(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--max-undo-file", "10")
    agent = create(daemon, "fs.write")
    agent.ok("/shell/start", connection=LOCAL)
    file = tmp_path / "file"
    file.write_bytes(b"small")
    [change] = put(agent, file, b"x" * 20).json["changes"]
    file.write_bytes(b"y" * 20)
    assert states(undo(daemon, change)) == ["changed_since"]
    file.write_bytes(b"x" * 20)
    assert states(undo(daemon, change)) == ["restored"]
    assert file.read_bytes() == b"small"


def test_a_directory_that_became_a_link_is_not_followed(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "elsewhere").mkdir()
    [change] = put(agent, tmp_path / "real" / "file", b"same").json["changes"]
    (tmp_path / "elsewhere" / "file").write_bytes(b"same")
    (tmp_path / "real").rename(tmp_path / "moved")
    (tmp_path / "real").symlink_to(tmp_path / "elsewhere")
    assert states(undo(daemon, change)) == ["changed_since"]
    assert (tmp_path / "elsewhere" / "file").exists()


def test_copies_are_encrypted_private_and_outlive_the_daemon(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    agent = create(daemon, "fs.write")
    agent.ok("/shell/start", connection=LOCAL)
    file = tmp_path / "file"
    file.write_bytes(b"a secret of the file")
    [change] = put(agent, file, b"after").json["changes"]
    kept = list((daemon.data_dir / "undo").iterdir())
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert not any(word in path.read_bytes() for path in kept for word in (b"secret", b"file", b"after"))
    daemon.stop()
    again = start_daemon(home=daemon.home)
    assert states(undo(again, change)) == ["restored"]
    assert file.read_bytes() == b"a secret of the file"


def test_a_changed_copy_is_refused(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    agent = create(daemon, "fs.write")
    agent.ok("/shell/start", connection=LOCAL)
    file = tmp_path / "file"
    file.write_bytes(b"before")
    [change] = put(agent, file, b"after").json["changes"]
    [copy] = (daemon.data_dir / "undo").glob("*.copy")
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    assert states(undo(daemon, change)) == ["failed"]
    assert file.read_bytes() == b"after"


def test_a_token_undoes_its_own_changes_under_its_rules(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "open").mkdir()
    bound = create(daemon, "fs.read", "fs.write", rules=[{"effect": "allow", "path": f"{root}/open/**"}])
    [own] = put(bound, root / "open" / "file", b"bound").json["changes"]
    [others] = put(agent, root / "open" / "other", b"agent's").json["changes"]
    assert [one["change"] for one in bound.ok("/undo/query")["changes"]] == [own]
    assert bound.refused("/undo/restore", connection=LOCAL, changes=[others]) == "unknown_change"
    assert bound.refused("/undo/read", change=own) == "scope_denied"
    [done] = bound.ok("/undo/restore", connection=LOCAL, changes=[own])["results"]
    assert (done["state"], (root / "open" / "file").exists()) == ("restored", False)
    assert create(daemon, "fs.read").refused("/undo/query") == "scope_denied"


def test_a_copy_has_no_file_that_rules_keep_from_the_token(daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "open").mkdir()
    (root / "secret").write_text("secret")
    (root / "open" / "link").symlink_to(root / "secret")
    bound = create(daemon, "fs.read", "fs.write", rules=[{"effect": "allow", "path": f"{root}/open/**"}])
    bound.ok("/shell/start", connection=LOCAL)
    assert put(bound, root / "open" / "link", b"x").code == "policy_denied"
    assert changes_of(daemon, bound) == []


def test_an_approved_write_is_asked_about_once(daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "file").write_bytes(b"before")
    asking = create(daemon, "fs.read", "fs.write", "shell.any", rules=[{"effect": "ask", "path": f"{root}/**"}])
    asking.ok("/shell/exec", connection=LOCAL, command=f"cd {root}", start=True, session="asking")
    headers = {"Authorization": f"Bearer {asking.secret}", "Content-Type": "application/octet-stream"}
    blob = send(asking.url, "/fs/blob", b"after", headers).json["blob"]
    # A relative path is not the real one that is asked about.
    wanted: dict[str, Any] = {"connection": LOCAL, "blob": blob, "path": "file", "session": "asking"}
    asked = asking.send("/fs/write", **wanted)
    assert asked.code == "approval_required", asked.json
    daemon.client.approval.decide(asked.json["approval"], "once")
    [change] = asking.ok("/fs/write", **wanted)["changes"]
    assert (root / "file").read_bytes() == b"after"
    assert states(undo(daemon, change)) == ["restored"]


def test_an_undo_asks_about_each_file_before_the_first_is_put_back(daemon: Daemon, tmp_path: Path) -> None:
    root = tmp_path.resolve()
    files = [root / "one", root / "two"]
    asking = create(daemon, "fs.read", "fs.write", "shell.any", rules=[{"effect": "ask", "path": f"{root}/**"}])
    asking.ok("/shell/start", connection=LOCAL)
    headers = {"Authorization": f"Bearer {asking.secret}", "Content-Type": "application/octet-stream"}
    blob = send(asking.url, "/fs/blob", b"after", headers).json["blob"]

    def asked(path: str, /, **wanted: Any) -> str:
        answer = asking.send(path, connection=LOCAL, **wanted)
        assert answer.code == "approval_required", answer.json
        return str(answer.json["approval"])

    for file in files:
        file.write_bytes(b"before")
        daemon.client.approval.decide(asked("/fs/write", blob=blob, path=str(file)), "once")
        asking.ok("/fs/write", connection=LOCAL, blob=blob, path=str(file))
    changes = [one["change"] for one in changes_of(daemon, asking)]
    for file in reversed(files):
        id = asked("/undo/restore", changes=changes)
        [shown] = [one for one in daemon.client.approval.query() if one["approval"] == id]
        assert (shown["asked"]["realPath"], shown["asked"]["undoes"] in changes) == (str(file), True)
        assert [one.read_bytes() for one in files] == [b"after"] * 2
        daemon.client.approval.decide(id, "once")
    # What was approved is this undo, and no other.
    asked("/undo/restore", changes=changes, force=True)
    done = asking.ok("/undo/restore", connection=LOCAL, changes=changes)["results"]
    assert (states(done), [one.read_bytes() for one in files]) == (["restored"] * 2, [b"before"] * 2)
    asked("/undo/restore", changes=[one["restoredAs"] for one in done])


def test_each_restored_file_is_in_the_audit_log(daemon: Daemon, agent: Holder, tmp_path: Path) -> None:
    [change] = put(agent, tmp_path / "audited", b"x").json["changes"]
    undo(daemon, change)
    entries = daemon.client.post("/audit/query", action="undo.restore", limit=10)["entries"]
    [entry] = [one for one in entries if one.get("undoes") == change]
    assert (entry["file"], entry["state"]) == (str(tmp_path / "audited"), "restored")


def test_the_owner_s_own_writes_are_not_kept(daemon: Daemon, tmp_path: Path) -> None:
    daemon.client.shell.start(LOCAL)
    blob = daemon.client.fs.blob(b"x")
    answer = daemon.client.post("/fs/write", connection=LOCAL, blob=blob, path=str(tmp_path / "file"))
    assert answer == {}, "the answer to the owner has no body"


def test_nothing_is_put_back_where_the_connection_leads_elsewhere(daemon: Daemon, tmp_path: Path) -> None:
    """A token that may not read a file could have its former content written to a machine of its own."""
    client = daemon.client
    connection = client.connection.add("undone elsewhere", {"type": "local", "shell": "/bin/././bash"})
    client.shell.start(connection)
    holder = create(daemon, "fs.write", "connection.write")
    (file := tmp_path / "file").write_bytes(b"secret")
    headers = {"Authorization": f"Bearer {holder.secret}", "Content-Type": "application/octet-stream"}
    blob = send(holder.url, "/fs/blob", b"another", headers).json["blob"]
    [change] = holder.ok("/fs/write", connection=connection, blob=blob, path=str(file))["changes"]
    client.connection.update(connection, data={"type": "local", "shell": "/bin/./././bash"})
    asked = {"connection": connection, "changes": [change]}

    def restored(send: Callable[..., Any], **more: Any) -> str:
        [done] = send("/undo/restore", **asked, **more)["results"]
        return str(done["state"])

    assert restored(holder.ok, force=True) == "changed_since"
    assert restored(client.post) == "changed_since"
    assert file.read_bytes() == b"another"
    assert restored(client.post, force=True) == "restored"
    assert file.read_bytes() == b"secret"


def test_copies_of_one_token_are_in_memory_one_after_the_other(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon()
    holder = create(daemon, "fs.write")
    daemon.client.shell.start(LOCAL)
    size, count = 4 << 20, 24
    for number in range(count):
        (tmp_path / str(number)).write_bytes(bytes([number]) * size)
    headers = {"Authorization": f"Bearer {holder.secret}", "Content-Type": "application/octet-stream"}
    blob = send(holder.url, "/fs/blob", b"after", headers).json["blob"]
    # The peak counts from now on (proc(5)).
    Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")
    before = memory_of(daemon, "VmRSS")

    def write(number: int) -> Answer:
        return holder.send("/fs/write", connection=LOCAL, blob=blob, path=str(tmp_path / str(number)))

    with ThreadPoolExecutor(count) as pool:
        answers = list(pool.map(write, range(count)))
    assert all(len(one.json["changes"]) == 1 for one in answers), answers
    # One is there about four times.
    assert memory_of(daemon, "VmHWM") - before < 12 * size


def memory_of(daemon: Daemon, name: str) -> int:
    lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


@pytest.fixture
def site(daemon: Daemon, tmp_path: Path) -> tuple[Holder, Path]:
    """A token that may run anything, and whose rules name a directory; and that directory, with files."""
    root = tmp_path.resolve() / "site"
    (root / "below").mkdir(parents=True)
    (root / "kept").write_bytes(b"kept")
    (root / "changed").write_bytes(b"before")
    (root / "below" / "removed").write_bytes(b"removed")
    rules = [{"effect": "allow", "path": f"{root}/**"}]
    holder = create(daemon, "fs.read", "fs.write", "shell.any", "job", name="site", rules=rules)
    holder.ok("/shell/start", connection=LOCAL)
    return holder, root


CHANGING = "echo after >changed; rm below/removed; echo new >new; cat kept"


def check_undone(daemon: Daemon, holder: Holder, root: Path) -> None:
    made = changes_of(daemon, holder)
    assert sorted(Path(one["path"]).name for one in made) == ["changed", "new", "removed"]
    assert states(undo(daemon, *made)) == ["restored"] * 3
    assert sorted(path.name for path in root.rglob("*")) == ["below", "changed", "kept", "removed"]
    assert (root / "changed").read_bytes() == b"before"
    assert (root / "below" / "removed").read_bytes() == b"removed"


def test_what_a_command_changes_where_rules_let_its_token_write(daemon: Daemon, site: tuple[Holder, Path]) -> None:
    holder, root = site
    holder.ok("/shell/exec", connection=LOCAL, command=f"cd {root}; {CHANGING}")
    check_undone(daemon, holder, root)
    entries = daemon.client.post("/audit/query", token=holder.id, action="shell.exec", limit=1)["entries"]
    assert len(entries[0]["changes"]) == 3


def test_what_a_job_changes_is_kept_when_its_end_is_seen(daemon: Daemon, site: tuple[Holder, Path]) -> None:
    holder, root = site
    job = holder.ok("/job/start", connection=LOCAL, command=CHANGING, cwd=str(root))["job"]
    holder.ok("/job/wait", job=job, wait=20)
    holder.ok("/job/info", job=job)
    check_undone(daemon, holder, root)


def test_a_streamed_and_a_detached_command(daemon: Daemon, site: tuple[Holder, Path]) -> None:
    holder, root = site
    body = {"connection": LOCAL, "command": f"cd {root}; echo streamed >changed"}
    headers = {"Authorization": f"Bearer {holder.secret}", "Accept": "application/x-ndjson"}
    assert send(holder.url, "/shell/exec", body, headers).status == 200
    holder.ok("/shell/exec", connection=LOCAL, command=f"echo detached >{root}/changed", detachAfter=30)
    made = changes_of(daemon, holder)
    assert [Path(one["path"]).name for one in made] == ["changed", "changed"]
    assert states(undo(daemon, *made)) == ["restored", "restored"]
    assert (root / "changed").read_bytes() == b"before"


def test_a_command_that_changes_nothing_there_leaves_no_change(daemon: Daemon, site: tuple[Holder, Path]) -> None:
    holder, root = site
    holder.ok("/shell/exec", connection=LOCAL, command=f"cat {root}/kept; touch {root}/kept")
    assert changes_of(daemon, holder) == []


def test_too_many_files_are_not_kept_and_the_log_says_so(daemon: Daemon, site: tuple[Holder, Path]) -> None:
    holder, root = site
    for number in range(250):
        (root / f"{number}").touch()
    ran = holder.ok("/shell/exec", connection=LOCAL, command=f"echo after >{root}/changed; echo done")
    assert ran["stdout"] == "done"
    [entry] = daemon.client.post("/audit/query", token=holder.id, action="shell.exec", limit=1)["entries"]
    assert "more than 200 files" in entry["notKept"]


def test_contents_that_one_token_needs_displace_its_own_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "ALL_BYTES", 10)
    kept = snapshots.Snapshots()
    name = snapshots._Name
    kept._remember(name("web1", None, "other"), snapshots._Content("other", b"xxxx"))
    for number in range(4):
        kept._remember(name("web1", None, f"one{number}"), snapshots._Content("one", b"xx"))
    assert kept._content(name("web1", None, "other")) == b"xxxx"
    gone = [kept._content(name("web1", None, f"one{number}")) is None for number in range(4)]
    assert gone == [True, False, False, False]


def test_snapshots_of_one_token_s_jobs_displace_its_own_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_UNDER_WAY", 4)
    kept = snapshots.Snapshots()

    def begin(job: str, holder: str) -> None:
        keeper: Any = SimpleNamespace(changer=SimpleNamespace(holder=holder))
        kept.begin(job, snapshots.Snapshot(keeper, [], "job.start", {}))

    begin("first", "modest")
    for number in range(20):
        begin(f"many {number}", "greedy")
    begin("second", "modest")
    assert [job for job in ("first", "second") if kept.ended(job)] == ["first", "second"]
    assert [number for number in range(20) if kept.ended(f"many {number}")] == [18, 19]


def test_a_content_is_not_another_machine_s_however_that_calls_it() -> None:
    kept = snapshots.Snapshots()
    known = snapshots._Name("web1", "before", "sum")
    kept._remember(known, snapshots._Content("one", b"secret"))
    assert kept._content(known) == b"secret"
    assert kept._content(known._replace(connection="web2")) is None
    assert kept._content(known._replace(digest="changed since")) is None


def test_a_command_s_changes_of_content_and_mode_are_undone_together(daemon: Daemon, site: tuple[Holder, Path]) -> None:
    holder, root = site
    (root / "changed").chmod(0o600)
    holder.ok("/shell/exec", connection=LOCAL, command=f"cd {root}; echo after >changed; chmod 666 changed")
    made = changes_of(daemon, holder)
    # Its rules do not let it change modes, and with this one others would read what only the user could.
    [kept] = holder.ok("/undo/restore", connection=LOCAL, changes=[made[0]["change"]])["results"]
    assert (kept["state"], (root / "changed").read_bytes()) == ("failed", b"after\n")
    assert states(undo(daemon, *made)) == ["restored"]
    assert ((root / "changed").read_bytes(), (root / "changed").stat().st_mode & 0o777) == (b"before", 0o600)
