"""The choice of connections by GLOBs, categories, types or an earlier run, and suggestions for wrong names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import LOCAL_MACHINE, ROOT_CATEGORY
from tests.cli.program import CommandLine, finish

pytestmark = pytest.mark.needs("bash")

FLEET = {
    "fleet/eu/web1": "bash",
    "fleet/eu/web2": "/bin/bash",
    "fleet/us/web3": "sh",
    "fleet/us/db": "/bin/sh",
    "default/spare": "/usr/bin/bash",
}
"""Shells of this machine by name; they differ, since equal connections would be one."""


@pytest.fixture(scope="module")
def connmgr(connmgr: CommandLine) -> CommandLine:
    """A command line with a daemon that has the fleet, and a shell inside one of its machines."""
    connection, category = connmgr.daemon.client.connection, connmgr.daemon.client.category
    ids = {}
    for name, shell in FLEET.items():
        *path, last = name.split("/")
        place = ROOT_CATEGORY
        for segment in path:
            place = category.add(segment, place)
        ids[name] = connection.add(last, {"type": "local", "shell": shell}, category=place)
        if last == "db":
            inside = {"type": "shellEnvironment", "host": ids[name], "commands": ["umask 77"]}
            connection.add("safe", inside, category=place)
    return connmgr


def names(connmgr: CommandLine, *arguments: str, command: str = "true", code: int = 0) -> list[str]:
    """Return the sorted names of the connections on which ``exec --all`` ran a command."""
    done = connmgr("exec", "--all", "--json", *arguments, "--", command, code=code)
    return sorted(json.loads(line)["name"] for line in done.output.splitlines())


@pytest.mark.parametrize(
    ("globs", "expected"),
    [
        (["web1"], ["fleet/eu/web1"]),
        (["web*"], ["fleet/eu/web1", "fleet/eu/web2", "fleet/us/web3"]),
        (["fleet/eu/*"], ["fleet/eu/web1", "fleet/eu/web2"]),
        (["fleet/us/*"], ["fleet/us/db", "fleet/us/web3"]),
        (["fleet/us/**"], ["fleet/us/db", "fleet/us/db/safe", "fleet/us/web3"]),
        (["FLEET/*/web[12]"], ["fleet/eu/web1", "fleet/eu/web2"]),
        (["{spare,fleet/us/web?}"], ["default/spare", "fleet/us/web3"]),
        (["db/*"], ["fleet/us/db/safe"]),
        (["web1", "fleet/us/web3", "web1"], ["fleet/eu/web1", "fleet/us/web3"]),
        ([LOCAL_MACHINE.upper()], ["default/local machine"]),
        (["web*", "--category", "fleet/us"], ["fleet/us/web3"]),
        (["--category", "fleet/eu"], ["fleet/eu/web1", "fleet/eu/web2"]),
        (["--type", "shellEnv*"], ["fleet/us/db/safe"]),
        (["fleet/**", "--limit", "2"], ["fleet/eu/web1", "fleet/eu/web2"]),
    ],
)
def test_exec_and_ls_choose_the_same(connmgr: CommandLine, globs: list[str], expected: list[str]) -> None:
    assert names(connmgr, *globs) == expected
    assert sorted(f"{'/'.join([*one['category'], *one['name']])}" for one in connmgr("ls", *globs, "--json").json) == (
        expected
    )


def test_the_summary_tells_what_the_limit_left_out(connmgr: CommandLine) -> None:
    done = connmgr("exec", "--all", "--brief", "web*", "--limit", "1", "--", "echo here")
    assert done.output.startswith("web1  ok ")
    assert done.errors.startswith("1 of 3 connections in ")


class TestTheCommand:
    """With --all the command begins after ``--``, so that no connection is taken for its first word."""

    def test_without_the_dashes_nothing_runs(self, connmgr: CommandLine, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        for arguments in (("web1", "web2", "touch", str(mark)), ("web1", f"touch {mark}"), ("web*",), ()):
            done = connmgr("exec", "--all", *arguments, code=125)
            assert "write -- between the connections and the command" in done.errors
            assert f"`connmgr exec --all {arguments[0] if arguments else 'GLOB...'}".replace("web*", "'web*'") in (
                done.errors
            )
        assert not mark.exists()

    def test_several_connections_need_all(self, connmgr: CommandLine) -> None:
        done = connmgr("exec", "web1", "web2", "--", "true", code=125)
        assert "connmgr exec --all web1 web2 -- …" in done.errors
        assert connmgr("exec", "web1", "echo", "one").output == "one\n"
        assert connmgr("exec", "web1", "--", "echo", "--", "-n", "--all").output == "-- -n --all\n"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--all", "--", "true"], "Say on which connections"),
            (["--all", "--limit", "3", "--", "true"], "Say on which connections"),
            (["--all", "web1", "--"], "Missing argument 'COMMAND...'"),
            (["web1"], "Missing argument 'COMMAND...'"),
            ([], "Missing argument 'CONNECTION'"),
            (["--", "true"], "Missing argument 'CONNECTION'"),
            (["web1", "--limit", "1", "--category", "x", "--", "true"], "Only with --all: --category, --limit"),
            (["web1", "--timeot", "1", "--", "true"], "--timeout"),
        ],
    )
    def test_what_is_missing_is_told(self, connmgr: CommandLine, arguments: list[str], said: str) -> None:
        assert said in connmgr("exec", *arguments, code=125).errors


class TestWhatFailed:
    def test_ls_shows_and_exec_repeats_it(self, connmgr: CommandLine, tmp_path: Path) -> None:
        log = tmp_path / "log"
        done = connmgr("exec", "--all", "web*", "--json", "--", "case $0 in *bash) ;; *) exit 3;; esac", code=1)
        log.write_text(done.output)
        assert connmgr("ls", "--format", "names", "--failed", str(log)).output == "fleet/us/web3\n"
        assert names(connmgr, "--failed", str(log)) == ["fleet/us/web3"]
        assert names(connmgr, "**", "--failed", str(log)) == ["fleet/us/web3"]
        assert names(connmgr, "web1", "--failed", str(log)) == []
        piped = connmgr("ls", "--format", "names", "--failed", "-", stdin=done.output)
        assert piped.output == "fleet/us/web3\n"

    def test_a_connection_that_was_removed_is_reported(self, connmgr: CommandLine, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_text(json.dumps({"connection": LOCAL_MACHINE.replace("f", "a"), "exitCode": 1}) + "\n")
        done = connmgr("exec", "--all", "--failed", str(log), "--", "true")
        assert "1 connection of the earlier run no longer match" in done.errors


class TestWhatIsNear:
    @pytest.mark.parametrize(
        ("name", "meant"),
        [
            ("wbe1", "web1"),
            ("WEB12", "web1, web2, web3"),
            ("saef", "db/safe"),
            ("fleet/eu/wbe2", "fleet/eu/web2"),
        ],
    )
    def test_a_name(self, connmgr: CommandLine, name: str, meant: str) -> None:
        for arguments, code in (
            (("info", name), 5),
            (("exec", name, "--", "true"), 125),
            (("cp", f"{name}:file", "-"), 5),
            (("exec", "--all", name, "--", "true"), 125),
            (("ls", name), 5),
        ):
            _, _, said = connmgr(*arguments, code=code).errors.partition("Did you mean ")
            assert set(meant.split(", ")) <= set(said.partition("?")[0].split(", ")), arguments

    def test_a_pattern(self, connmgr: CommandLine) -> None:
        done = connmgr("exec", "--all", "fleat/eu/*", "web*", "--", "true", code=125)
        assert "No connection matches 'fleat/eu/*'. Did you mean fleet/eu/*" in done.errors
        assert done.output == ""
        narrowed = connmgr("ls", "web*", "--category", "default", code=5).errors
        assert "No connection in category 'default' matches 'web*'." in narrowed

    def test_filters_alone_may_list_nothing_and_run_nothing(self, connmgr: CommandLine) -> None:
        assert connmgr("ls", "--type", "ssh", "--json").json == []
        assert connmgr("ls", "--type", "ssh").output == ""
        done = connmgr("exec", "--all", "--category", "fleat/eu", "--", "true", code=125)
        assert "No connection that runs commands matches --category fleat/eu. Did you mean fleet/eu" in done.errors

    def test_a_category_and_a_command_and_an_option(self, connmgr: CommandLine) -> None:
        assert "fleet/eu, " in connmgr("mv", "spare", "--category", "fleet/ue", code=5).errors
        assert "connmgr has no command 'exce'. Did you mean exec?" in connmgr("exce", code=2).errors
        # The nearest name would be resume.
        assert "schedule has no command 'remove'. Did you mean rm?" in connmgr("schedule", "remove", "x", code=2).errors
        assert "connmgr vault has no command 'unlok'. Did you mean unlock" in connmgr("vault", "unlok", code=2).errors
        assert "--category" in connmgr("ls", "--categry", "x", code=2).errors

    def test_an_unknown_name_without_similar_ones_gets_no_suggestion(self, connmgr: CommandLine) -> None:
        assert connmgr("info", "xyzzy", code=5).errors == (
            "Error: No connection is called 'xyzzy'. `connmgr ls` lists them.\n"
        )

    def test_a_condition_in_place_of_a_name_is_told_where_it_goes(self, connmgr: CommandLine) -> None:
        errors = connmgr("exec", "--all", "env=prod", "--", "true", code=125).errors
        assert "A condition on labels and facts goes into `where`: `--where env=prod`." in errors


class TestChangesOfMany:
    """Each shows what it means before it changes anything, and takes the selectors of ``exec --all``."""

    @pytest.fixture
    def fleet(self, clean_connmgr: CommandLine) -> CommandLine:
        for name in ("web1", "web2", "db"):
            clean_connmgr("add", "ssh", name, f"host={name}.example")
        clean_connmgr("add", "shellEnvironment", "root", "host=web1")
        clean_connmgr("add", "ssh", "behind", "host=behind.example", "gateway=web1")
        return clean_connmgr

    def hosts(self, connmgr: CommandLine) -> dict[str, Any]:
        return {"/".join(one["name"]): one["rawData"].get("port") for one in connmgr("ls", "--json").json}

    def test_rm_shows_what_goes_along(self, fleet: CommandLine) -> None:
        before = self.hosts(fleet)
        assert "Give --yes" in fleet("rm", "web*", code=2).errors
        assert sorted(fleet("rm", "web*", "--dry-run").output.splitlines()) == [
            "remove  default/behind     runs over default/web1",
            "remove  default/web1",
            "remove  default/web1/root  runs over default/web1",
            "remove  default/web2",
        ]
        terminal = fleet.on_terminal("rm", "web*", "db")
        terminal.expect_exact("Remove 5 connections?")
        terminal.sendline("n")
        assert finish(terminal)[0] == 1
        assert self.hosts(fleet) == before
        fleet("rm", "web*", "--yes")
        assert self.hosts(fleet).keys() == {"local machine", "db"}
        assert "No connection is called 'd'. Did you mean db?" in fleet("rm", "d", "--yes", code=5).errors
        assert "Say on which connections" in fleet("rm", "--yes", code=2).errors
        fleet("rm", "--type", "ssh", "--yes")
        assert self.hosts(fleet).keys() == {"local machine"}

    def test_edit_changes_all_or_none(self, fleet: CommandLine) -> None:
        assert "Give --yes" in fleet("edit", "--all", "web?", "port=2200", code=2).errors
        shown = fleet("edit", "--all", "web?", "db", "port=2200", "--dry-run").output
        assert shown == "".join(f"change  default/{name:<4}  port\n" for name in ("db", "web1", "web2"))
        assert self.hosts(fleet)["db"] == 22
        assert "has no field 'host2'" in fleet("edit", "--all", "web?", "host2=x", "--yes", code=2).errors
        assert fleet("edit", "--all", "web1", "local", "port=2200", "--yes", code=2).errors
        assert self.hosts(fleet)["web1"] == 22
        fleet("edit", "--all", "web?", "port=2200", "--yes")
        assert {name for name, port in self.hosts(fleet).items() if port == 2200} == {"web1", "web2"}
        assert "is a pattern" in fleet("edit", "web?", "port=1", code=5).errors
        fleet("edit", "--all", "web?", "--secret", "password", "--yes", stdin="one for all")
        sealed = [one["rawData"]["password"] for one in fleet("info", "web?", "--json").json]
        assert [fleet.daemon.client.secret.decrypt(one) for one in sealed] == ["one for all"] * 2

    def test_mv_moves_all(self, fleet: CommandLine) -> None:
        fleet("category", "add", "eu")
        assert fleet("mv", "--all", "web?", "--category", "eu", "--dry-run").output == (
            "default/web1  eu/web1\ndefault/web2  eu/web2\n"
        )
        assert "Give --yes" in fleet("mv", "--all", "web?", "--category", "eu", code=2).errors
        fleet("mv", "--all", "web?", "--from-category", "default", "--category", "eu", "--yes")
        assert "eu/web1\neu/web2\n" in fleet("ls", "--format", "names", "web?").output
        assert "are in eu already" in fleet("mv", "--all", "web?", "--category", "eu", "--yes").errors
        assert "Only with --all" in fleet("mv", "web1", "--type", "ssh", "--category", "eu", code=2).errors

    def test_info_shows_all(self, fleet: CommandLine) -> None:
        assert [one["name"] for one in fleet("info", "web?", "db", "--json").json] == [["db"], ["web1"], ["web2"]]
        assert fleet("info", "web1", "--json").json["name"] == ["web1"]
        assert fleet("info", "--category", "default", "--limit", "2").output.count("uuid") == 2


def test_ls_says_that_filters_match_nothing(connmgr: CommandLine) -> None:
    done = connmgr("ls", "--type", "shh", "--category", "fleet")
    assert (done.output, done.errors) == ("", "connmgr: no connection matches --category fleet and --type shh\n")
