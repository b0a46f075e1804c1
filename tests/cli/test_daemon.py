"""Finding the daemon, its state and its end, and the commands' messages without a daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from connmgr.client import LOCAL_MACHINE
from tests.cli.program import CommandLine, run
from tests.conftest import StartDaemon
from tests.daemon import Daemon, clean_environment
from tests.deadlines import DEADLINE_SECONDS

NEED_A_DAEMON = [
    ("status",),
    ("stop",),
    ("ls",),
    ("info", "x"),
    ("add", "ssh", "x", "host=x"),
    ("edit", "x", "host=y"),
    ("rm", "x", "--yes"),
    ("mv", "x", "y"),
    ("category", "ls"),
    ("shell", "x"),
    ("cp", "x:y", "z"),
    ("encrypt",),
    ("vault", "status"),
    ("vault", "lock"),
]


@pytest.mark.parametrize("arguments", NEED_A_DAEMON, ids=lambda arguments: arguments[0])
def test_without_a_daemon_commands_exit_with_3_and_say_what_to_do(arguments: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**clean_environment(tmp_path), "CONNMGR_PORT": "1"}
    done = run(*arguments, environment=environment)
    assert done.code == 3, done.errors
    assert "connmgr serve" in done.errors
    assert len(done.errors.splitlines()) == 2
    assert done.output == ""


def test_status_describes_the_daemon(clean_connmgr: CommandLine) -> None:
    clean_connmgr("exec", "local", "--", "true")
    shown = clean_connmgr("status", "--json").json
    assert (shown["url"], shown["pid"]) == (clean_connmgr.daemon.url, clean_connmgr.daemon.pid)
    assert [one["connection"] for one in shown["sessions"]] == [LOCAL_MACHINE]
    text = clean_connmgr("status").output
    assert clean_connmgr.daemon.url in text
    assert "1 connection, without users" in text
    assert text.splitlines()[-1].strip().startswith("local machine  idle")


def test_status_shows_the_names_of_shells(clean_connmgr: CommandLine) -> None:
    clean_connmgr("exec", "local", "--", "true")
    clean_connmgr("exec", "local", "--session", "build", "--", "true")
    shown = [line.split("  ")[1] for line in clean_connmgr("status").output.splitlines()[-2:]]
    assert shown == ["local machine", "local machine [build]"]


def test_stop_waits_for_the_end(own_connmgr: CommandLine) -> None:
    assert own_connmgr("stop").output == "The daemon has stopped.\n"
    assert own_connmgr.daemon.process.wait(DEADLINE_SECONDS) == 0
    own_connmgr("status", code=3)


def test_the_daemon_is_found_where_the_configuration_has_it(start_daemon: StartDaemon, tmp_path: Path) -> None:
    daemon = start_daemon("--auth-file", str(tmp_path / "credential"))
    config = daemon.home / "config" / "connmgr" / "config.toml"
    config.parent.mkdir()
    config.write_text(f'port = {daemon.url.rpartition(":")[2]}\nauth-file = "{tmp_path}/credential"\n')
    connmgr = CommandLine(daemon)
    del connmgr.environment["CONNMGR_PORT"]
    assert connmgr("status", "--json").json["url"] == daemon.url
    assert "CONNMGR_PORT" in connmgr("status", code=1, environment={"CONNMGR_PORT": "many"}).errors


@pytest.mark.parametrize("port", ["many", "65536", "-1", "1.0"])
def test_a_bad_port_is_told_of_with_its_variable(connmgr: CommandLine, port: str) -> None:
    refusal = connmgr("ls", code=1, environment={"CONNMGR_PORT": port}).errors
    assert refusal == f"Error: Bad value of environment variable CONNMGR_PORT: {port!r} (not a port).\n"
    connmgr("exec", "local", "--", "true", code=125, environment={"CONNMGR_PORT": port})


@pytest.mark.parametrize("url", ["nonsense", "https://h", "http://:1", "http://h:many", "http://a b", "http://[::1"])
def test_a_malformed_daemon_url_is_a_usage_error(connmgr: CommandLine, url: str) -> None:
    assert (
        f"Not the URL of a daemon, such as http://127.0.0.1:21721: {url}" in connmgr("--url", url, "ls", code=2).errors
    )


def test_a_host_that_cannot_be_one_is_not_reached(connmgr: CommandLine) -> None:
    assert "No daemon answers at http://a..b:1: " in connmgr("--url", "http://a..b:1", "ls", code=3).errors


def test_a_credential_that_is_not_text_is_refused(connmgr: CommandLine, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"\xff\n")
    connmgr("--api-key-file", str(key), "ls", code=4)
    connmgr("ls", code=4, environment={"CONNMGR_AUTH_FILE": str(key)})


def test_a_url_and_an_api_key_will_do(clean_daemon: Daemon, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(CommandLine(clean_daemon)("api-key").output)
    environment = {**clean_environment(tmp_path / "stranger"), "CONNMGR_PORT": "1"}
    connmgr = CommandLine(clean_daemon)
    connmgr.environment = environment
    named = ("--url", clean_daemon.url, "--api-key-file", str(key))
    assert connmgr(*named, "exec", "local", "--", "echo in").output == "in\n"
    key.write_text("wrong")
    connmgr(*named, "ls", code=4)


def test_the_program_explains_itself(connmgr: CommandLine) -> None:
    shown = connmgr("--help").output
    assert "exec " in shown
    assert "import-ssh-config " in shown
    assert connmgr("exec", "-h").output.startswith("Usage: connmgr exec [OPTIONS] CONNECTION COMMAND...")
    assert "connmgr has no command 'nonsense'." in connmgr("nonsense", code=2).errors
