"""``connmgr export`` and ``connmgr apply``: an export applies without changes, and changes are shown first."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from connmgr.cli.declarative.document import _content
from connmgr.cli.exits import Failure
from connmgr.vault import connections
from tests.cli.program import CommandLine, finish
from tests.conftest import StartDaemon
from tests.vault.people import add_connection, opened

SECRET = "canary battery"

TEAM = """
connmgr: 1
categories: [spare/empty]
connections:
- name: web/root
  category: team
  type: shellEnvironment
  data: {host: web, elevated: true, password: {secret: kept}}
- name: Web
  category: team
  type: ssh
  data:
    host: web.example
    gateway: Team/Hop
- name: Hop
  category: Team
  type: ssh
  data: {host: hop.example, identity: {file: ~/.ssh/hop, passphrase: {secret: kept}}, hostKeyChecking: strict}
"""


@pytest.fixture
def peopled(clean_connmgr: CommandLine) -> CommandLine:
    """A vault with similar connections and with secrets."""
    connmgr = clean_connmgr
    for category in ("a/b", "a", "empty"):
        connmgr("category", "add", category)
    connmgr("add", "ssh", "hop", "host=hop.example", "--secret", "password", stdin=SECRET)
    connmgr("add", "ssh", "c", "host=c.example", "gateway=hop", "--category", "a/b")
    connmgr("add", "ssh", "twin", "host=one.example", "port=2222", "--category", "a")
    connmgr("add", "ssh", "twin", "host=two.example", "--category", "a")
    connmgr("add", "ssh", "b", "host=b.example", "--category", "a")
    connmgr("add", "shellEnvironment", "c", "host=a/b", "elevated=true", "--category", "a")
    connmgr("add", "ssh", "key", "host=key.example", "--secret", "identity.key", stdin="not a key")
    return connmgr


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "vault.yaml").write_text(text)
    return str(tmp_path / "vault.yaml")


def outcomes(connmgr: CommandLine, *arguments: str, **options: Any) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in connmgr("apply", *arguments, "--json", **options).json}


def data(connmgr: CommandLine, name: str) -> Any:
    return connmgr("info", name, "--json").json["rawData"]


@pytest.mark.parametrize("json", [(), ("--json",)], ids=["yaml", "json"])
def test_applying_an_export_changes_nothing(peopled: CommandLine, json: tuple[str, ...]) -> None:
    exported = peopled("export", *json).output
    assert SECRET not in exported
    assert "encryptedToken" not in exported
    before = peopled("ls", "--json").json
    done = peopled("apply", "-f", "-", "--yes", "--prune", stdin=exported)
    assert done.output == "8 connections: 8 unchanged\n"
    assert peopled("ls", "--json").json == before
    assert peopled("export", *json).output == exported


def test_an_export_with_blank_names_of_an_older_version_applies(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    daemon.stop()
    with opened(daemon.data_dir) as vault, monkeypatch.context() as older:
        older.setattr(connections, "check_name", lambda _: None)
        for name in ("", " "):
            add_connection(vault, name, {"host": f"old{len(name)}.example"})
    connmgr = CommandLine(start_daemon(home=daemon.home))
    exported = connmgr("export").output
    done = connmgr("apply", "-f", "-", "--yes", "--prune", stdin=exported)
    assert done.output == "3 connections: 3 unchanged\n"
    connmgr("apply", "-f", "-", "--yes", stdin=exported.replace("old0.example", "new.example"))
    assert connmgr("export").output == exported.replace("old0.example", "new.example")


def test_an_export_makes_the_same_vault_elsewhere_but_for_secrets(peopled: CommandLine, connmgr: CommandLine) -> None:
    exported = peopled("export").output
    done = connmgr("apply", "-f", "-", "--yes", stdin=exported).output
    assert "connmgr edit default/hop --secret password" in done
    ours, theirs = (yaml.safe_load(one("export").output) for one in (peopled, connmgr))
    for one in (*ours["connections"], *theirs["connections"]):
        one.pop("uuid", None)
        for secret in ("password", "identity"):
            one.get("data", {}).pop(secret, None)
    assert sorted(map(repr, theirs["connections"])) == sorted(map(repr, ours["connections"]))
    assert theirs["categories"] == ours["categories"]
    # Connections of equal names have other uuids there, and are found by their data.
    assert connmgr("apply", "-f", "-", "--yes", "--prune", stdin=exported).output.endswith("8 unchanged\n")


def test_a_plan_is_shown_then_done_and_says_what_changes(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    file = write(tmp_path, TEAM)
    planned = clean_connmgr("apply", "-f", file)
    assert [line.split()[:2] for line in planned.output.splitlines()] == [
        ["new", "spare/empty"],
        ["new", "team/hop"],
        ["new", "team/web"],
        ["new", "team/web/root"],
    ]
    assert "--yes" in planned.errors
    assert clean_connmgr("ls", "--type", "ssh", "--json").json == []
    done = clean_connmgr("apply", "-f", file, "--yes").output
    assert done.endswith("3 connections: 3 added\n")
    clean_connmgr("edit", "team/web/root", "--secret", "password", stdin=SECRET)
    stored = data(clean_connmgr, "team/web/root")
    changed = TEAM.replace("web.example", "www.example").replace("elevated: true", "elevated: true, user: www")
    file = write(
        tmp_path,
        changed.replace("name: Hop\n  category: Team", "name: Hop\n  category: hops").replace("Team/Hop", "hop"),
    )
    planned = clean_connmgr("apply", "-f", file).output
    for line in ("changes  team/web       host", "changes  team/web/root  user", "changes  hops/hop       category"):
        assert line in planned
    assert clean_connmgr("apply", "-f", file, "--yes").output.endswith("3 connections: 3 changed\n")
    assert data(clean_connmgr, "team/web")["host"] == "www.example"
    assert data(clean_connmgr, "team/web/root") == {**stored, "user": "www"}
    assert outcomes(clean_connmgr, "-f", file) == dict.fromkeys(
        ["hops/hop", "team/web", "team/web/root"], "there already"
    )


def test_a_secret_that_the_file_omits_stays_and_null_removes_it(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    clean_connmgr("add", "ssh", "web", "host=web.example", "--secret", "password", stdin=SECRET)
    clean_connmgr("add", "ssh", "key", "host=key.example", "--secret", "identity.key", stdin="not a key")
    before = {name: data(clean_connmgr, name) for name in ("web", "key")}
    text = """
connmgr: 1
connections:
- {name: web, type: ssh, data: {host: web.example, user: ci}}
- {name: key, type: ssh, data: {host: key.example, user: ci}}
"""
    file = write(tmp_path, text)
    assert clean_connmgr("apply", "-f", file, "--yes").output.endswith("2 connections: 2 changed\n")
    for name in ("web", "key"):
        assert data(clean_connmgr, name) == {**before[name], "user": "ci"}
    assert outcomes(clean_connmgr, "-f", file) == {"default/key": "there already", "default/web": "there already"}
    file = write(tmp_path, text.replace("user: ci}}", "user: ci, password: null, identity: null}}"))
    assert clean_connmgr("apply", "-f", file, "--yes").output.endswith("2 connections: 2 changed\n")
    assert data(clean_connmgr, "web").keys().isdisjoint({"password", "identity"})
    assert data(clean_connmgr, "key").keys().isdisjoint({"password", "identity"})


def test_only_prune_removes_and_nothing_that_is_run_over(peopled: CommandLine, tmp_path: Path) -> None:
    exported = yaml.safe_load(peopled("export").output)
    exported["connections"] = [one for one in exported["connections"] if one["name"] not in ("twin", "hop")]
    file = write(tmp_path, yaml.safe_dump(exported))
    assert set(outcomes(peopled, "-f", file, "--yes").values()) == {"there already"}
    refused = peopled("apply", "-f", file, "--prune", "--yes", code=1).errors
    assert refused.startswith("Error: a/b/c ")
    assert "runs over default/hop, which is not in the file" in refused
    for one in exported["connections"]:
        one.get("data", {}).pop("gateway", None)
    file = write(tmp_path, yaml.safe_dump(exported))
    planned = peopled("apply", "-f", file, "--prune").output
    assert planned.count("goes ") == 3
    done = outcomes(peopled, "-f", file, "--prune", "--yes")
    assert [name for name, outcome in done.items() if outcome == "removed"] == ["a/twin", "default/hop"]
    assert {"/".join(one["name"]) for one in peopled("ls", "--json").json} == {"local machine", "b", "b/c", "c", "key"}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("password: {secret: kept}", f"password: {SECRET}", "the secret password must not stand in the file"),
        ("passphrase: {secret: kept}", "passphrase: 12", "the secret identity.passphrase must not"),
        ("type: ssh\n  data:\n", "type: telnet\n  data:\n", "no type is called 'telnet'"),
        ("host: web,", "host: nowhere,", "team/web/root: host: no connection is called 'nowhere'"),
        ("host: web,", "host: hop,", "its name says that it runs over web, but its data does not"),
        ("name: Web", "name: Web\n  tags: {}", "connections[1] (Web): tags is unknown"),
        ("name: Web", "name: Hop", "team/hop stands in the file more than once"),
        ("host: web.example", "host: web.example\n    prot: 22", "team/web: data.prot: Unknown field."),
        ("host: web.example", "host: web.example\n    port: '22'", "team/web: data.port: Not a valid integer."),
        ("category: team", "category: [team]", "category is not of the kind"),
        ("connmgr: 1", "connmgr: 2", "must have `connmgr: 1`"),
        ("connmgr: 1", "connmgr: [", "is not valid YAML"),
    ],
)
def test_a_file_at_fault_is_refused_whole_and_says_where(
    connmgr: CommandLine, tmp_path: Path, before: str, after: str, message: str
) -> None:
    stored = connmgr("ls", "--json").json
    assert before in TEAM
    refused = connmgr("apply", "-f", write(tmp_path, TEAM.replace(before, after, 1)), "--yes", code=1)
    assert message in refused.errors
    assert SECRET not in refused.errors
    assert connmgr("ls", "--json").json == stored


def test_on_a_terminal_it_asks(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    file = write(tmp_path, TEAM)
    for answer, code, expected in (("n", 1, set()), ("y", 0, {"hop", "web", "web/root"})):
        terminal = clean_connmgr.on_terminal("apply", "-f", file)
        terminal.expect_exact("Apply this?")
        terminal.sendline(answer)
        assert finish(terminal)[0] == code
        found = clean_connmgr("ls", "--json").json
        assert {"/".join(one["name"]) for one in found if one["type"] != "local"} == expected


def test_a_change_of_somebody_else_meanwhile_stays(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    clean_connmgr("apply", "-f", write(tmp_path, TEAM), "--yes")
    file = write(tmp_path, TEAM.replace("hop.example", "hop2.example").replace("web.example", "web2.example"))
    terminal = clean_connmgr.on_terminal("apply", "-f", file)
    terminal.expect_exact("Apply this?")
    clean_connmgr("edit", "hop", "port=2200")
    terminal.sendline("y")
    code, shown = finish(terminal)
    assert code == 1, shown
    assert "hop was changed at " in shown, shown
    assert "That change stays, and nothing was stored; the same command once more compares anew" in shown, shown
    assert (data(clean_connmgr, "hop")["host"], data(clean_connmgr, "hop")["port"]) == ("hop.example", 2200)
    assert data(clean_connmgr, "web")["host"] == "web.example"
    clean_connmgr("apply", "-f", file, "--yes")
    assert [data(clean_connmgr, name)["host"] for name in ("hop", "web")] == ["hop2.example", "web2.example"]


@pytest.mark.parametrize(
    "text", ["connmgr: 2001-99-99", "a: !!int x", "[" * 5000, '{"a":' * 100_000, "a: !!timestamp x"]
)
def test_a_file_with_a_value_that_no_document_has_is_one_error(text: str) -> None:
    file = BytesIO(text.encode())
    file.name = "file.yml"
    with pytest.raises(Failure, match=r"file\.yml"):
        _content(file)
