"""Connections and categories from the command line: adding, naming, showing, changing and removing them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator

import pytest

from connmgr.cli.exits import failure
from connmgr.client import LOCAL_MACHINE, ClientError
from connmgr.client.errors import lacking
from tests.cli.program import CommandLine, finish


@pytest.fixture(autouse=True)
def nothing_left(connmgr: CommandLine) -> Iterator[None]:
    """Remove the connections that a test has added."""
    yield
    client = connmgr.daemon.client
    added = set(client.connection.query()) - {LOCAL_MACHINE}
    for id in added & set(client.connection.query()):
        if id in client.connection.query():
            client.connection.remove([id])
    for category in client.category.info(client.category.query()):
        if len(category.name) == 2 and category.name[1] != "default":
            client.category.remove([category.id], children=True)


def add(connmgr: CommandLine, name: str, *arguments: str) -> str:
    return connmgr("add", "ssh", name, f"host={name.replace(' ', '-')}.example", *arguments).output.strip()


def data(connmgr: CommandLine, name: str) -> dict[str, object]:
    shown = connmgr("info", name, "--json").json["rawData"]
    assert isinstance(shown, dict)
    return shown


def test_a_connection_is_added_shown_and_removed(connmgr: CommandLine) -> None:
    id = add(connmgr, "Web", "port=2222", "agent=yes", "identity.file=~/.ssh/key", "connectTimeout=1.5")
    shown = connmgr("info", "web", "--json").json
    assert (shown["connection"], shown["name"], shown["category"]) == (id, ["web"], ["default"])
    expected = {"host": "Web.example", "port": 2222, "agent": True, "identity": {"file": "~/.ssh/key"}}
    assert {name: shown["rawData"][name] for name in expected} == expected
    text = connmgr("info", id).output
    assert "identity.file" in text
    assert "~/.ssh/key" in text
    assert "default/web" in connmgr("ls", "w*").output
    connmgr("rm", "web", "--yes")
    assert "No connection matches 'w*'" in connmgr("ls", "w*", "--json", code=5).errors


def test_an_equivalent_connection_is_not_stored_twice_and_its_name_is_shown(connmgr: CommandLine) -> None:
    id = add(connmgr, "web")
    again = connmgr("add", "ssh", "Other", "host=web.example")
    assert again.output.strip() == id
    assert again.errors == (
        "Other was not added: default/web is stored with the same data.\nTo rename it: connmgr mv default/web Other\n"
    )
    assert connmgr("add", "ssh", "web", "host=web.example", "--json").json == {"connection": id, "added": False}
    assert connmgr("add", "ssh", "new", "host=new.example", "--json").json["added"] is True


def test_a_missing_category_is_created_and_named(connmgr: CommandLine) -> None:
    done = connmgr("add", "ssh", "web", "host=web.example", "--category", "customers/Acme")
    assert done.errors == "Created the category customers/Acme.\n"
    assert connmgr("info", "web", "--json").json["category"] == ["customers", "acme"]
    assert connmgr("add", "ssh", "db", "host=db.example", "--category", "/CUSTOMERS/acme/").errors == ""


def test_the_local_machine_is_described(connmgr: CommandLine) -> None:
    connmgr("exec", LOCAL_MACHINE, "--", "true")
    kind, *_ = connmgr("ls", "local machine", "--json").json
    assert kind["type"] == "local"
    line = connmgr("ls", "--type", "local").output
    assert line.startswith("default/local machine  local  -  ")
    assert line.rstrip().endswith(" ago")


class TestListing:
    def test_host_user_and_port_stand_beside_the_name(self, connmgr: CommandLine) -> None:
        add(connmgr, "web", "user=deploy", "port=2222")
        add(connmgr, "alias")
        connmgr("add", "ssh", "six", "host=fe80::1", "port=2222")
        connmgr("add", "shellEnvironment", "root", "host=web")
        rows = [line.split() for line in connmgr("ls", "web", "alias", "six", "web/root").output.splitlines()]
        assert {row[0]: row[2] for row in rows} == {
            "default/web": "deploy@web.example:2222",
            "default/alias": "alias.example",
            "default/six": "[fe80::1]:2222",
            "default/web/root": "-",
        }

    def test_a_connection_that_was_never_used_is_not_called_used(self, connmgr: CommandLine) -> None:
        add(connmgr, "web")
        connmgr("edit", "web", "port=2222")
        assert connmgr("ls", "web").output.rstrip().endswith("  never used")
        assert "  never used\n" in connmgr("info", "web").output
        connmgr("exec", "local", "--", "true")
        assert "never" not in connmgr("ls", "local machine").output

    def test_formats(self, connmgr: CommandLine) -> None:
        id = add(connmgr, "web")
        assert connmgr("ls", "web", "--format", "names").output == "default/web\n"
        assert connmgr("ls", "web", "--format", "json").json == connmgr("ls", "web", "--json").json
        heading, line = connmgr("ls", "web", "--format", "table", "-l").output.splitlines()
        assert heading.split("  ")[0] == "NAME"
        assert heading.index("UUID") == line.index(id)
        assert connmgr("ls", "-l", "web").output.split()[-1] == id
        assert "names" in connmgr("ls", "--format", "nmaes", code=2).errors
        code, shown = finish(connmgr.on_terminal("ls", "-l", "web"))
        assert code == 0
        assert shown.split()[:2] == ["NAME", "TYPE"]


def test_ls_shows_a_tree_on_a_terminal(connmgr: CommandLine) -> None:
    connmgr("category", "add", "customers/acme")
    add(connmgr, "web", "--category", "customers/acme")
    code, shown = finish(connmgr.on_terminal("ls"))
    assert code == 0
    assert "└── " in shown
    lines = [line.strip() for line in shown.splitlines()]
    assert any("customers" in line and "acme" not in line for line in lines), shown
    assert any("web" in line and "ssh" in line for line in lines), shown


def test_names_cannot_control_the_terminal(connmgr: CommandLine) -> None:
    connmgr.daemon.client.connection.add("evil\x1b[31m", {"type": "ssh", "host": "evil.example"})
    assert "evil\\x1b[31m" in connmgr("ls").output
    assert "\x1b[31mevil" not in finish(connmgr.on_terminal("ls"))[1]


def test_json_is_printed_without_what_controls_a_terminal(connmgr: CommandLine) -> None:
    odd = "\x9b31m\u202e\x7f\U000e0001 ünï"
    for arguments in (("exec", "local"), ("exec", "--all", "local machine")):
        done = connmgr(*arguments, "--json", "--", f"printf '%s' '{odd}'")
        assert odd in json.loads(done.output)["stdout"]
        assert "\\u009b31m\\u202e\\u007f\\udb40\\udc01 ünï" in done.output


def test_an_error_is_printed_without_what_controls_a_terminal() -> None:
    error = ClientError("It printed: \x1b]0;owned\x07\x9b\u202e\nSecond line.", code="shell_start_failed", status=500)
    assert failure(error).message == "It printed: \\x1b]0;owned\\x07\\x9b\\u202e\nSecond line."


@pytest.mark.parametrize("error", [lacking("activity"), ClientError("No such endpoint.", code="not_found", status=404)])
def test_a_daemon_of_another_version_is_to_be_restarted(error: ClientError) -> None:
    assert failure(error).message.startswith(f"{error.message}\nThe daemon is of another version than this program")


def test_what_helps_after_a_failed_login_is_about_fields_that_the_connection_has() -> None:
    def advice(**details: object) -> str:
        return failure(ClientError("Refused.", "auth_failed", 500, {"name": "web/it", **details})).message

    assert "`connmgr edit web/it identity.file=FILE` names a key." in advice(type="ssh")
    assert advice(type="shellEnvironment", passwordRequired=True) == (
        "Refused.\n`connmgr edit web/it --secret password` stores one."
    )
    assert advice(type="shellEnvironment", passwordRefused=True).endswith("--secret password` stores another.")
    other = advice(type="made.elsewhere")
    assert other == "Refused.\n`connmgr info web/it` shows what is stored, and `connmgr edit web/it` changes it."


class TestNaming:
    def test_whole_segments_in_any_letter_case_will_do(self, connmgr: CommandLine) -> None:
        id = add(connmgr, "production web 1")
        inner = connmgr("add", "shellEnvironment", "root", f"host={id}").output.strip()
        for name in (inner, inner.upper(), "root", "ROOT", "production web 1/root", "default/Production Web 1/root"):
            assert connmgr("info", name, "--json").json["connection"] == inner, name
        assert connmgr("info", "Production Web 1", "--json").json["connection"] == id
        for name in ("roo", "oot", "1/root", "web 1/root", "web 1/ro", "production web 1/ro", "production", inner[:13]):
            assert f"No connection is called {name!r}." in connmgr("info", name, code=5).errors

    def test_the_whole_path_outranks_the_end_of_another(self, connmgr: CommandLine) -> None:
        id = add(connmgr, "web")
        connmgr("add", "shellEnvironment", "web", f"host={add(connmgr, 'outer')}")
        assert connmgr("info", "web", "--json").json["connection"] == id

    def test_local_is_the_local_machine_whatever_else_begins_so(self, connmgr: CommandLine) -> None:
        root = connmgr("add", "shellEnvironment", "root", "host=local", "elevated=no").output.strip()
        connmgr("add", "local", "localhost2", "shell=sh")
        for name, id in {"local": LOCAL_MACHINE, "LOCAL": LOCAL_MACHINE, "local machine/root": root}.items():
            assert connmgr("info", name, "--json").json["connection"] == id, name
        assert connmgr("exec", "local", "--", "echo in").output == "in\n"
        assert connmgr("exec", "--all", "local", "--json", "--", "true").json["connection"] == LOCAL_MACHINE
        connmgr("mv", "local machine", "desk")
        assert connmgr("info", "local", "--json").json["connection"] == LOCAL_MACHINE
        connmgr("mv", "desk", "local machine")

    def test_a_whole_path_called_local_is_that_connection_and_a_last_name_is_ambiguous(
        self, connmgr: CommandLine
    ) -> None:
        web = add(connmgr, "web")
        inner = connmgr("add", "shellEnvironment", "local", f"host={web}").output.strip()
        refusal = connmgr("exec", "local", "--", "true", code=125).errors
        assert "'local' is the name of 2 connections" in refusal
        assert inner in refusal
        assert LOCAL_MACHINE in refusal
        assert connmgr("info", "web/local", "--json").json["connection"] == inner
        connmgr("rm", "web/local", "--yes")
        outer = add(connmgr, "local")
        assert connmgr("info", "local", "--json").json["connection"] == outer

    def test_several_candidates_are_listed(self, connmgr: CommandLine) -> None:
        ids = []
        for host in ("a", "b"):
            add(connmgr, host)
            ids.append(connmgr("add", "shellEnvironment", "web", f"host={host}").output.strip())
        refusal = connmgr("info", "web", code=5).errors
        assert "'web' is the name of 2 connections" in refusal
        assert all(id in refusal for id in ids)
        assert "default/b/web" in refusal

    def test_a_category_tells_equal_names_apart(self, connmgr: CommandLine) -> None:
        ids = {}
        for category in ("production", "staging/inner"):
            connmgr("category", "add", category)
            id = connmgr("add", "ssh", "web", f"host={category.replace('/', '-')}.example", "--category", category)
            ids[category] = id.output.strip()
        assert connmgr("info", "web", code=5).errors.count("/web") == 2
        assert connmgr("info", "production/web", "--json").json["connection"] == ids["production"]
        for name in ("staging/inner/web", "inner/web"):
            assert connmgr("info", name, "--json").json["connection"] == ids["staging/inner"]

    def test_special_characters_stand_for_themselves(self, connmgr: CommandLine) -> None:
        odd = "a*[b]{c,d}?"
        id = connmgr("add", "ssh", odd, "host=odd.example").output.strip()
        connmgr("add", "ssh", "axbc?", "host=even.example")
        assert connmgr("exec", odd, "--dry-run", "--", "true").code == 0
        assert connmgr("info", id, "--json").json["connection"] == id

    def test_undecodable_bytes_name_no_connection(self, connmgr: CommandLine) -> None:
        name = os.fsdecode(b"\xff")
        assert r"No connection is called '\udcff'" in connmgr("info", name, code=5).errors
        assert r"No connection is called '\udcff'" in connmgr("exec", "--all", name, "--", "true", code=125).errors
        assert r"No category is called '\udcff'" in connmgr("category", "rm", name, code=5).errors
        assert r"No connection is called '\udcff'" in connmgr("ls", name, code=5).errors

    def test_an_unknown_name_and_uuid_exit_with_5(self, connmgr: CommandLine) -> None:
        assert "No connection is called 'nowhere'" in connmgr("info", "nowhere", code=5).errors
        connmgr("info", LOCAL_MACHINE.replace("f", "a"), code=5)


class TestFields:
    def test_the_schema_names_fields_kinds_and_meanings(self, connmgr: CommandLine) -> None:
        lines = [line.split(None, 2) for line in connmgr("add", "--schema", "ssh").output.splitlines()]
        rows = {name: (kind, meaning) for name, kind, meaning in lines}
        assert rows["host"][0] == "string"
        assert rows["host"][1].endswith("Required.")
        assert rows["port"][1].endswith("[default: 22]")
        assert rows["identity.passphrase"][0] == "secret"
        assert rows["gateway"][0] == "connection"
        assert rows["hostKeyChecking"][0] == "strict|acceptNew"
        assert connmgr("add", "--schema", "ssh", "--json").json["properties"]["type"] == {"const": "ssh"}
        assert {"local", "ssh", "shellEnvironment"} <= {
            line.split()[0] for line in connmgr("add", "--schema").output.splitlines()
        }

    @pytest.mark.parametrize("field", ["password=hunter2", "identity.passphrase=hunter2"])
    def test_a_secret_in_the_arguments_is_refused_and_not_repeated(self, connmgr: CommandLine, field: str) -> None:
        refusal = connmgr("add", "ssh", "web", "host=web.example", field, code=2).errors
        assert f"--secret {field.partition('=')[0]}" in refusal
        assert "hunter2" not in refusal
        assert connmgr.daemon.client.connection.query("web") == []

    def test_a_secret_comes_from_standard_input(self, connmgr: CommandLine) -> None:
        connmgr("add", "ssh", "web", "host=web.example", "--secret", "password", stdin="two\nlines\n")
        sealed = data(connmgr, "web")["password"]
        assert isinstance(sealed, dict)
        assert connmgr.daemon.client.secret.decrypt(sealed) == "two\nlines"
        assert "(secret)" in connmgr("info", "web").output

    def test_several_secrets_are_a_line_each(self, connmgr: CommandLine) -> None:
        both = ("--secret", "password", "--secret", "identity.passphrase")
        connmgr("add", "ssh", "web", "host=w.example", "identity.file=/k", *both, stdin="one\ntwo\n")
        shown = connmgr("info", "web", "--json").json["rawData"]
        decrypt = connmgr.daemon.client.secret.decrypt
        assert (decrypt(shown["password"]), decrypt(shown["identity"]["passphrase"])) == ("one", "two")
        refusal = connmgr("add", "ssh", "x", "host=x.example", "identity.file=/k", *both, stdin="one\n", code=2).errors
        assert "has 1 lines" in refusal

    def test_a_secret_is_asked_for_on_a_terminal_and_not_shown(self, connmgr: CommandLine) -> None:
        terminal = connmgr.on_terminal("add", "ssh", "web", "host=web.example", "--secret", "password")
        terminal.expect("password: ")
        terminal.sendline("hunter2")
        code, shown = finish(terminal)
        assert code == 0, shown
        assert "hunter2" not in shown
        sealed = data(connmgr, "web")["password"]
        assert isinstance(sealed, dict)
        assert connmgr.daemon.client.secret.decrypt(sealed) == "hunter2"

    @pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x04", 1)])
    def test_a_missing_secret_prevents_adding(self, connmgr: CommandLine, key: str, code: int) -> None:
        terminal = connmgr.on_terminal("add", "ssh", "web", "host=web.example", "--secret", "password")
        terminal.expect("password: ")
        terminal.send(key)
        assert finish(terminal)[0] == code
        assert connmgr.daemon.client.connection.query("web") == []

    def test_a_reference_takes_the_name_of_a_connection(self, connmgr: CommandLine) -> None:
        id = add(connmgr, "bastion")
        add(connmgr, "web", "gateway=bastion")
        assert data(connmgr, "web")["gateway"] == id
        assert "nowhere" in connmgr("add", "ssh", "x", "host=x", "gateway=nowhere", code=5).errors

    def test_a_list_is_given_item_by_item_or_as_json(self, connmgr: CommandLine) -> None:
        connmgr("add", "shellEnvironment", "one", "host=local machine", "commands=cd /etc", "commands=export A=b=c")
        connmgr("add", "shellEnvironment", "two", "host=local machine", 'commands=["cd /", "umask 77"]')
        assert data(connmgr, "one")["commands"] == ["cd /etc", "export A=b=c"]
        assert data(connmgr, "two")["commands"] == ["cd /", "umask 77"]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("ssh", "web", "hots=x"), "no field 'hots'"),
            (("ssh", "web", "host"), "not of the form field=value"),
            (("ssh", "web", "host=x", "port=many"), "'many' is not a value of the kind integer"),
            (("ssh", "web", "host=x", "type=local"), "no field 'type'"),
            (("ssh", "web", "host=x", "--secret", "user"), "user is not a secret"),
            (("ssh", "web", "host=x", "connectTimeout=NaN"), "'NaN' is not a value of the kind number"),
            (("ssh", "web", "host=x", "connectTimeout=1e999"), "'1e999' is not a value of the kind number"),
            (
                ("telnet", "web", "host=x"),
                "No connection type is called 'telnet'; there are chroot, customService, docker, dockerHost, ",
            ),
            (("ssh",), "TYPE and NAME are needed"),
        ],
    )
    def test_a_wrong_field_is_a_wrong_command_line(
        self, connmgr: CommandLine, arguments: tuple[str, ...], said: str
    ) -> None:
        assert said in connmgr("add", *arguments, code=2).errors

    def test_refusals_of_the_daemon_name_each_field_as_the_command_line_does(self, connmgr: CommandLine) -> None:
        refusal = connmgr("add", "ssh", "web", "host=x", "port=99999", "connectTimeout=-1", code=1).errors
        assert re.match("Error: port: .* connectTimeout: ", refusal), refusal
        assert "data." not in refusal

    def test_a_connection_that_cannot_be_opened_is_not_added_when_validated(self, connmgr: CommandLine) -> None:
        refusal = connmgr("add", "local", "odd", "shell=/nonexistent", "--validate", code=1).errors
        assert "not found" in refusal
        assert connmgr.daemon.client.connection.query("odd") == []
        connmgr("add", "local", "even", "shell=sh", "--validate")


class TestChanges:
    def test_named_fields_change_and_others_stay(self, connmgr: CommandLine) -> None:
        connmgr(
            "add", "ssh", "web", "host=web.example", "user=me", "port=2222", "--secret", "password", stdin="hunter2"
        )
        connmgr("edit", "web", "port=2200", "identity.file=/k", "--unset", "user")
        changed = connmgr("info", "web", "--json").json["rawData"]
        assert (changed["host"], changed["port"], changed["identity"]) == ("web.example", 2200, {"file": "/k"})
        assert "user" not in changed
        assert connmgr.daemon.client.secret.decrypt(changed["password"]) == "hunter2"
        connmgr("edit", "web", "--secret", "password", stdin="other")
        sealed = data(connmgr, "web")["password"]
        assert isinstance(sealed, dict)
        assert connmgr.daemon.client.secret.decrypt(sealed) == "other"
        assert "Nothing to change" in connmgr("edit", "web", code=2).errors

    def test_fields_that_others_change_at_the_same_time_stay(self, connmgr: CommandLine) -> None:
        connmgr("add", "ssh", "web", "host=web.example", "port=2222")
        terminal = connmgr.on_terminal("edit", "web", "--secret", "password")
        # It has read the connection, and now waits for a person.
        terminal.expect_exact("password:")
        connmgr("edit", "web", "port=2200")
        terminal.sendline("hunter2")
        assert finish(terminal)[0] == 0
        changed = data(connmgr, "web")
        assert changed["port"] == 2200
        assert connmgr.daemon.client.secret.decrypt(changed["password"]) == "hunter2"

    def test_a_connection_moves_to_another_name_and_category(self, connmgr: CommandLine) -> None:
        id = add(connmgr, "web")
        connmgr("category", "add", "a/b")
        connmgr("mv", "web", "www", "--category", "a/b")
        shown = connmgr("info", id, "--json").json
        assert (shown["name"], shown["category"]) == (["www"], ["a", "b"])
        connmgr("mv", "www", "--category", "default")
        assert connmgr("info", id, "--json").json["category"] == ["default"]
        assert "Nothing to change" in connmgr("mv", "www", code=2).errors

    def test_removing_asks_first(self, connmgr: CommandLine) -> None:
        id = add(connmgr, "web")
        assert "--yes" in connmgr("rm", "web", code=2).errors
        for answer, code in (("\x03", 130), ("\x04", 1), ("n\n", 1), ("y\n", 0)):
            assert connmgr("info", id, "--json").json["connection"] == id
            terminal = connmgr.on_terminal("rm", "web")
            terminal.expect(r"remove  default/web\s+Remove 1 connection\? \[y/N\]: ")
            terminal.send(answer)
            assert finish(terminal)[0] == code, repr(answer)
        connmgr("info", id, code=5)

    def test_the_local_machine_cannot_be_removed(self, connmgr: CommandLine) -> None:
        connmgr("rm", "local machine", "--yes", code=1)


def test_categories_are_added_listed_and_removed(connmgr: CommandLine) -> None:
    id = connmgr("category", "add", "customers/acme").output.strip()
    assert connmgr("category", "add", "/customers/ACME/", "--json").json == {"category": id}
    listed = [line.split("  ")[0] for line in connmgr("category", "ls").output.splitlines()]
    assert listed == ["all connections", "customers", "customers/acme", "default"]
    assert [one["category"] for one in connmgr("category", "ls", "*/acme", "--json").json] == [id]
    add(connmgr, "web", "--category", "customers/acme")
    connmgr("category", "rm", "customers")
    assert connmgr("info", "acme/web", "--json").json["category"] == ["acme"]
    connmgr("category", "rm", "acme", "--contents")
    connmgr("info", "web", code=5)
    connmgr("category", "rm", "default", code=1)
    connmgr("category", "rm", "nowhere", code=5)
    connmgr("category", "add", "/", code=2)


EMPTY = [
    (["exec", "{}", "--", "echo ran"], 125),
    (["exec", "--detach", "{}", "--", "echo ran"], 125),
    (["info", "{}"], 5),
    (["edit", "{}", "shell=/bin/sh"], 5),
    (["rm", "{}", "--yes"], 5),
    (["mv", "{}", "other"], 5),
    (["mv", "local", "--category", "{}"], 5),
    (["category", "rm", "{}"], 5),
    (["disconnect", "{}"], 5),
    (["trust", "{}"], 5),
    (["cp", "/etc/hostname", "{}:copied"], 5),
    (["job", "kill", "{}"], 5),
    (["terminal", "close", "{}"], 5),
    (["token", "revoke", "{}"], 1),
]
"""Commands on what ``{}`` names, and their exit codes if that is empty."""


def test_an_empty_variable_names_no_connection(own_connmgr: CommandLine) -> None:
    connmgr = own_connmgr
    client = connmgr.daemon.client
    connmgr("token", "create", "--for", "x", "--expires", "1h")
    connmgr("exec", "local", "--", "true")
    connmgr("exec", "--detach", "local", "--", "sleep 600")
    client.terminal.open(LOCAL_MACHINE, columns=80, rows=24)
    shells = [(one.status.session, one.status.state) for one in client.shell.list()]
    for words, code in EMPTY:
        for name in ("", " ", "\t"):
            done = connmgr(*(word.replace("{}", name) for word in words), code=code)
            assert "ran" not in done.output.split(), words
    connmgr("--unlock", "", "ls", code=1)
    assert [(one.status.session, one.status.state) for one in client.shell.list()] == shells
    assert [one["state"] for one in client.token.query()] == ["valid"]
    assert [one["state"] for one in client.terminal.query()] == ["running"]
    [job] = client.jobs.query()
    assert job.state == "running"
    client.jobs.get(job.id).kill()
    assert not (connmgr.daemon.home / "copied").exists()


def test_no_connection_gets_the_name_of_another(clean_connmgr: CommandLine) -> None:
    one, two = add(clean_connmgr, "one"), add(clean_connmgr, "two")
    for words in (("mv", "one", "TWO"), ("mv", "one", "two", "--category", "default")):
        assert f"'default/two' is the name of another connection, {two}, and" in clean_connmgr(*words, code=1).errors
    clean_connmgr("category", "add", "fleet")
    three = clean_connmgr("add", "ssh", "one", "host=three.example", "--category", "fleet").output.strip()
    for words in (("mv", "default/one", "--category", "fleet"), ("mv", "--all", "*/{one,two}", "--category", "fleet")):
        assert (
            f"'fleet/one' is the name of another connection, {three}" in clean_connmgr(*words, "--yes", code=1).errors
        )
    # Nor do two that move at once become one name.
    clean_connmgr("category", "add", "both")
    moved = clean_connmgr("mv", "--all", "*/one", "--category", "both", "--yes", code=1).errors
    assert "'both/one' is the name of another connection" in moved
    listed = clean_connmgr("ls", "--format", "names", "one", "two", code=5).errors
    assert "'one' is the name of 2 connections" in listed
    assert clean_connmgr("info", "default/one", "--json").json["connection"] == one
    clean_connmgr("mv", "default/one", "ONE")
    clean_connmgr("mv", "default/one", "four")
    assert clean_connmgr("info", "four", "--json").json["connection"] == one


def test_add_says_what_is_unusual_about_the_name(clean_connmgr: CommandLine) -> None:
    add(clean_connmgr, "one")
    second = clean_connmgr("add", "ssh", "one", "host=other.example")
    assert second.errors.startswith("default/one now is the name of 2 connections, and commands refuse it.")
    rename = second.errors.strip().partition("connmgr mv ")[2].replace("NAME", "other").split()
    clean_connmgr("mv", *rename)
    assert clean_connmgr("info", "other", "--json").json["connection"] == second.output.strip()
    slashed = clean_connmgr("add", "ssh", "a/b", "host=third.example")
    assert slashed.errors == "It is stored as default/a_b, since / separates names.\n"
    clean_connmgr("mv", "a_b", "c")
    moved = clean_connmgr("mv", "c", "fleet/c")
    assert moved.errors == "It is stored as default/fleet_c, since / separates names.\n"
    for words in (("add", "ssh", " ", "host=fourth.example"), ("mv", "one", "")):
        assert "The name of a connection cannot be blank." in clean_connmgr(*words, code=2).errors
    assert "ssh needs host=…; `connmgr add --schema ssh`" in clean_connmgr("add", "ssh", "x", code=2).errors


def test_what_is_given_twice_is_refused_and_neither_value_dropped(clean_connmgr: CommandLine) -> None:
    add(clean_connmgr, "one", "sendEnv=A", "sendEnv=B")
    assert data(clean_connmgr, "one")["sendEnv"] == ["A", "B"]
    clean_connmgr("command", "save", "greet", "--parameter", "name=re:.*", "--", "/bin/echo", "{name}")
    twice: list[tuple[str, tuple[str, ...], int]] = [
        ("port", ("add", "ssh", "two", "host=two.example", "port=1", "port=2"), 2),
        ("port", ("edit", "one", "port=1", "port=2"), 2),
        ("port", ("edit", "one", "port=1", "--unset", "port"), 2),
        ("password", ("edit", "one", "--secret", "password", "--secret", "password"), 2),
        ("password", ("edit", "one", "--secret", "password", "--from", "password", '{"source": "pass"}'), 2),
        ("env", ("add", "ssh", "two", "host=two.example", "--label", "env=a", "--label", "env=b"), 2),
        ("env", ("label", "one", "env=a", "env=b"), 2),
        ("A", ("exec", "--env", "A=1", "--env", "A=2", "local", "--", "true"), 125),
        ("name", ("exec", "--saved", "greet", "local", "--", "name=old", "name=new"), 125),
        ("n", ("command", "save", "x", "--parameter", "n=in:a", "--parameter", "n=in:b", "--", "/bin/ls", "{n}"), 2),
    ]
    for name, words, code in twice:
        assert f"Error: {name} is given twice." in clean_connmgr(*words, code=code).errors, words
    assert "port" not in clean_connmgr("export").output
    clean_connmgr("command", "rm", "greet")
