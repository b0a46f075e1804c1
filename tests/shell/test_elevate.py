"""``elevate``: requests that run as another user by sudo, over the connection that they name, and who may send them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import ClientError
from tests.api.wire import ROOT_CATEGORY, add
from tests.daemon import Daemon
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.machine_fixtures import home_of_the_daemon, places, running_machine  # noqa: F401 - fixtures
from tests.plugins.places import Places, ssh_fields
from tests.rights.wire import create

pytestmark = pytest.mark.needs("machine", "sshd", "sudo")

ROOT = {"user": "root"}


@pytest.fixture
def user(running_machine: Machine) -> Inhabitant:  # noqa: F811
    """A user who becomes anybody by sudo, with a password."""
    made = running_machine.add_user()
    running_machine.allow(f"{made.name} ALL=(ALL) ALL")
    return made


@pytest.fixture
def web(clean_daemon: Daemon, user: Inhabitant, places: Places) -> Iterator[str]:  # noqa: F811
    """A connection to ``user``, in the category ``prod``."""
    prod = clean_daemon.client.category.add("prod", ROOT_CATEGORY)
    yield add(clean_daemon.client, "web", prod, type="ssh", **ssh_fields(places.sshd, user.name))
    # The daemon is cleaned of categories, but not of what is stored for the root of all.
    clean_daemon.client.post("/secret/sudo", category=ROOT_CATEGORY, password=None)


def run(daemon: Daemon, connection: str, command: str, **more: Any) -> Any:
    return daemon.client.post("/shell/exec", connection=connection, command=command, start=True, **more)


def test_without_a_password_the_error_names_host_and_user(clean_daemon: Daemon, web: str, user: Inhabitant) -> None:
    with pytest.raises(ClientError) as error:
        run(clean_daemon, web, "id -un", elevate=ROOT)
    assert (error.value.code, error.value.details.get("passwordRequired")) == ("auth_failed", True)
    assert error.value.message.startswith(f"web: sudo wants the password of {user.name} to run as root")
    assert run(clean_daemon, web, "id -un")["stdout"] == user.name


@pytest.mark.parametrize("of", ["connection", "category", "a category above"])
def test_the_nearest_stored_password_opens_a_shell_of_its_own(
    clean_daemon: Daemon, web: str, user: Inhabitant, of: str
) -> None:
    client = clean_daemon.client
    [prod] = client.category.query("prod")
    place = {"connection": {"connection": web}, "category": {"category": prod}}.get(of, {"category": ROOT_CATEGORY})
    if of != "a category above":
        client.post("/secret/sudo", category=ROOT_CATEGORY, password="wrong")
    assert client.post("/secret/sudo", **place, password=user.password) == place
    assert client.post("/secret/sudo", connection=web) == place
    assert run(clean_daemon, web, "cd /etc; id -un; pwd", elevate=ROOT)["stdout"] == "root\n/etc"
    assert run(clean_daemon, web, "pwd", elevate=ROOT)["stdout"] == "/etc"
    assert run(clean_daemon, web, "pwd", elevate=ROOT, session="other")["stdout"] == user.home
    assert run(clean_daemon, web, "id -un; pwd")["stdout"] == f"{user.name}\n{user.home}"
    client.post("/secret/sudo", **place, password=None)
    with pytest.raises(ClientError, match=r"refused|wants the password"):
        run(clean_daemon, web, "true", elevate=ROOT)


def test_another_user_than_root(clean_daemon: Daemon, web: str, user: Inhabitant, running_machine: Machine) -> None:  # noqa: F811
    other = running_machine.add_user()
    clean_daemon.client.post("/secret/sudo", connection=web, password=user.password)
    assert run(clean_daemon, web, "id -un", elevate={"user": other.name})["stdout"] == other.name
    assert run(clean_daemon, web, "id -un", elevate={})["stdout"] == "root"


def test_a_given_password_is_in_no_answer_log_trail_or_vault(clean_daemon: Daemon, web: str, user: Inhabitant) -> None:
    with pytest.raises(ClientError, match="refused the password"):
        run(clean_daemon, web, "id -un", elevate={"user": "root", "password": "wrong one"})
    assert run(clean_daemon, web, "id -un", elevate={**ROOT, "password": user.password})["stdout"] == "root"
    # It is kept while the shell is there, and given again it changes nothing.
    run(clean_daemon, web, "cd /etc", elevate=ROOT)
    assert run(clean_daemon, web, "pwd", elevate={**ROOT, "password": user.password})["stdout"] == "/etc"
    shown = json.dumps(clean_daemon.client.post("/audit/query", limit=100))
    assert "web/root" in shown
    of_web = clean_daemon.client.post("/audit/query", limit=100, connection=web, action="shell.exec")["entries"]
    assert {one["connectionName"] for one in of_web} == {"web/root"}
    infos = clean_daemon.client.post("/connection/info", connections=[f"{web}+owner+root"])["infos"]
    assert infos[0]["name"] == ["web", "root"]
    assert "password" not in infos[0]["rawData"]
    for text in (shown, json.dumps(infos)):
        assert user.password not in text


def far_jobs(machine: Machine, home: str) -> list[str]:
    return [path.name for path in machine.path(home).glob("**/connmgr/jobs/*")]


def test_files_jobs_and_broadcasts(clean_daemon: Daemon, web: str, user: Inhabitant, running_machine: Machine) -> None:  # noqa: F811
    client = clean_daemon.client
    client.post("/secret/sudo", connection=web, password=user.password)
    running_machine.write("/root/only", "roots", 0o600)
    with pytest.raises(ClientError):
        client.post("/fs/stat", connection=web, path="/root/only")
    client.post("/shell/start", connection=web, elevate=ROOT)
    assert client.post("/fs/stat", connection=web, path="/root/only", elevate=ROOT)["owner"] == "root"
    elevated = client.post("/connection/elevate", connection=web)["connection"]
    client.fs.upload(elevated, b"more", "/root/more")
    assert running_machine.path("/root/more").read_text() == "more"
    lines = list(client.shell.broadcast("id -un", [web], elevate=ROOT))
    assert [(one.connection, one.name, one.result.stdout) for one in lines] == [(web, ("web", "root"), "root")]
    by_filter = list(client.shell.broadcast("id -un", connection="web", elevate=ROOT))
    assert [(one.connection, one.result.stdout) for one in by_filter] == [(web, "root")]
    terminal = client.terminal.open(web, command="id -un; exec sleep 1000", elevate=ROOT)
    assert client.terminal.output(terminal, wait=20).data.startswith(b"root")
    client.terminal.close(terminal)
    job = client.post("/job/start", connection=web, command="id -un; cat", stdin="x", key="k", elevate=ROOT)["job"]
    plain = client.post("/shell/start", connection=web) and client.post(
        "/job/start", connection=web, command="id -un", key="k"
    )
    assert plain["job"] != job, "one start has found the other's job"
    again = client.post("/job/start", connection=web, command="id -un; cat", stdin="x", key="k", elevate=ROOT)
    assert again["job"] == job
    found = client.jobs.get(job)
    assert found.wait().exit_code == 0
    assert found.output().stdout == b"root\nx"
    assert found.info().connection == elevated
    assert {one.id for one in client.jobs.query("web")} == {job, plain["job"]}
    # Root's files of the job go with the connection, as those of other jobs do.
    assert far_jobs(running_machine, "/root"), "nothing of the job is there"
    client.post("/connection/remove", connections=[web])
    assert far_jobs(running_machine, "/root") == []


def test_new_data_of_the_connection_ends_the_elevated_shell(clean_daemon: Daemon, web: str, user: Inhabitant) -> None:
    client = clean_daemon.client
    client.post("/secret/sudo", connection=web, password=user.password)
    run(clean_daemon, web, "cd /etc", elevate=ROOT)
    [info] = client.connection.info([web])
    data = {**client.post("/connection/info", connections=[web])["infos"][0]["rawData"], "connectTimeout": 17}
    client.connection.update(info.id, data=data)
    assert [one.status.connection for one in client.shell.list()] == []
    assert run(clean_daemon, web, "pwd", elevate=ROOT)["stdout"] == user.home


def test_a_removed_connection_takes_its_password_along(clean_daemon: Daemon, user: Inhabitant, tmp_path: Path) -> None:
    client = clean_daemon.client
    category = client.category.add("gone", ROOT_CATEGORY)
    client.post("/secret/sudo", category=category, password=user.password)
    client.category.remove([category])
    with pytest.raises(ClientError, match="category"):
        client.post("/secret/sudo", category=category)


class TestRights:
    """Elevation needs a scope of its own, and sight of what a stored elevated connection would be."""

    @pytest.fixture(autouse=True)
    def password(self, clean_daemon: Daemon, web: str, user: Inhabitant) -> None:
        clean_daemon.client.post("/secret/sudo", connection=web, password=user.password)

    def test_a_token_for_everything_else_does_not_become_root(self, clean_daemon: Daemon, web: str) -> None:
        scopes = clean_daemon.client.post("/token/info")["scopes"]
        assert scopes == ["*"]
        holder = create(clean_daemon, "shell.any", "shell.argv", "job", "fs.read", "fs.write", "terminal", "tunnel",
                        "connection.read", "connection.write", "secret.decrypt")  # fmt: skip
        assert holder.ok("/shell/exec", connection=web, command="id -u", start=True)["exitCode"] == 0
        run(clean_daemon, web, "true", elevate=ROOT)
        for elevated in (f"{web}+owner+root", f"{web}+{holder.id}+root"):
            assert holder.refused("/shell/exec", connection=elevated, command="id", start=True) == "scope_denied"
            assert holder.refused("/fs/stat", connection=elevated, path="/root") == "scope_denied"
            assert holder.refused("/connection/info", connections=[elevated]) == "scope_denied"
        for path, more in (
            ("/shell/start", {}),
            ("/shell/exec", {"command": "id", "start": True}),
            ("/job/start", {"command": "id"}),
            ("/fs/list", {"path": "/root"}),
        ):
            assert holder.refused(path, connection=web, elevate=ROOT, **more) == "scope_denied", path
        assert holder.refused("/connection/elevate", connection=web) == "scope_denied"
        assert holder.refused("/shell/broadcast", connections=[web], command="id", elevate=ROOT) == "scope_denied"
        assert [one["connection"] for one in holder.ok("/shell/list")["shells"]] == [web]

    def test_elevation_needs_visibility_of_the_elevated_connection(self, clean_daemon: Daemon, web: str) -> None:
        near = create(clean_daemon, "shell.any", "elevate", connections=["web"])
        body = {"connection": web, "command": "id -un", "start": True, "elevate": ROOT}
        assert near.refused("/shell/exec", **body) == "unknown_connection"
        only_root = create(clean_daemon, "shell.any", "elevate", "token.create", connections=["web", "web/root"])
        assert only_root.ok("/shell/exec", **body)["stdout"] == "root"
        assert only_root.refused("/shell/exec", **{**body, "elevate": {"user": "daemon"}}) == "unknown_connection"
        below = only_root.create("shell.any", connections=["web", "web/root"])
        assert below.refused("/shell/exec", **body) == "scope_denied"

    def test_rules_for_a_connection_do_not_hold_for_its_root(self, clean_daemon: Daemon, web: str) -> None:
        rules = [{"effect": "allow", "argv": ["/usr/bin/id"], "connections": ["web"]}]
        holder = create(clean_daemon, "shell.argv", "elevate", rules=rules)
        body = {"connection": web, "argv": ["/usr/bin/id"], "start": True}
        assert holder.ok("/shell/exec", **body)["exitCode"] == 0
        assert holder.refused("/shell/exec", **body, elevate=ROOT) == "policy_denied"
        path = {"path": "/shell/exec", "request": {**body, "elevate": ROOT}}
        assert holder.ok("/token/check", **path)["effect"] == "deny"

    def test_nobody_uses_the_shell_that_anothers_password_opened(
        self, clean_daemon: Daemon, web: str, user: Inhabitant
    ) -> None:
        client = clean_daemon.client
        client.post("/secret/sudo", connection=web, password=None)
        given = {"user": "root", "password": user.password}
        run(clean_daemon, web, "cd /etc", elevate=given)
        holder = create(clean_daemon, "shell.any", "elevate", "fs.read")
        body = {"connection": web, "command": "pwd", "start": True}
        assert holder.refused("/shell/exec", **body, elevate=ROOT) == "auth_failed"
        elevated = f"{web}+owner+root"
        assert holder.refused("/shell/exec", **{**body, "connection": elevated}) == "unknown_connection"
        assert holder.ok("/shell/exec", **body, elevate=given)["stdout"] == user.home
        other = create(clean_daemon, "shell.any", "elevate")
        assert other.refused("/shell/exec", **body, elevate=ROOT) == "auth_failed"

    def test_auditors_and_approvers_see_elevation(self, clean_daemon: Daemon, web: str) -> None:
        run(clean_daemon, web, "true", elevate=ROOT)
        for filters, count in ((["*"], 1), (["web/root"], 1), (["web"], 0)):
            reader = create(clean_daemon, "audit.read", "approval.decide", connections=filters)
            entries = reader.ok("/audit/query", limit=100, action="shell.exec")["entries"]
            found = [one for one in entries if one.get("connection") == f"{web}+owner+root"]
            assert len(found) == count, filters
        rules = [{"effect": "ask", "argv": ["/usr/bin/id", "-un"], "connections": ["web/root"]}]
        asking = create(clean_daemon, "shell.argv", "elevate", rules=rules)
        body = {"connection": web, "argv": ["/usr/bin/id", "-un"], "start": True, "elevate": ROOT}
        assert asking.refused("/shell/exec", **body) == "approval_required"
        decider = create(clean_daemon, "approval.decide", connections=["web/root"])
        [waiting] = decider.ok("/approval/query")["approvals"]
        assert waiting["asked"]["names"] == ["web/root"]
        decider.ok("/approval/decide", approval=waiting["approval"], decision="once")
        assert asking.refused("/shell/exec", **{**body, "elevate": {"user": "daemon"}}) == "policy_denied"
        assert asking.ok("/shell/exec", **body)["stdout"] == "root"

    def test_leading_a_password_elsewhere_needs_the_right_to_open_secrets(self, clean_daemon: Daemon, web: str) -> None:
        [prod] = clean_daemon.client.category.query("prod")
        clean_daemon.client.post("/secret/sudo", category=prod, password="of prod")
        data = {"type": "ssh", "host": "evil.example", "user": "x"}
        for scopes, code in ((("connection.write",), "scope_denied"), (("connection.write", "secret.decrypt"), "")):
            holder = create(clean_daemon, *scopes)
            assert holder.send("/connection/update", connection=web, data=data).status == (403 if code else 200)
            added = holder.send("/connection/add", name=uuid.uuid4().hex, data=data, category=prod, validate=False)
            assert added.status == (403 if code else 200)
            moved = holder.ok("/connection/add", name="evil", data={**data, "user": "y"}, validate=False)["connection"]
            assert holder.send("/connection/update", connection=moved, category=prod).status == (403 if code else 200)
