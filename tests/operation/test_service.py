"""``connmgr service``: a systemd unit or a launchd property list that starts the daemon for a user."""

from __future__ import annotations

import configparser
import json
import os
import plistlib
import selectors
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import DIRECTORY
from tests.daemon import READY, Daemon, clean_environment

PROGRAM = str(DIRECTORY / "connmgr")
ON_MACOS = "import sys; sys.platform = 'darwin'; sys.argv[0] = 'connmgr'; from connmgr.cli.root import main; main()"
HOSTILE = 'a b%h$HOME"\\x'
"""Characters that systemd would expand or split."""

SYSTEMCTL = """\
#!/bin/sh
echo "$*" >>"$HOME/calls"
case $* in
    *show-environment) [ ! -e "$HOME/absent" ] || { echo 'Failed to connect to bus' >&2; exit 1; } ;;
    *is-*) [ -e "$HOME/active" ] ;;
    *restart*)
        [ ! -e "$HOME/failing" ] || { echo 'Job for connmgr.service failed.' >&2; exit 1; }
        touch "$HOME/active"
        ;;
    *disable*) rm "$HOME/active" ;;
esac
"""
LAUNCHCTL = """\
#!/bin/sh
echo "$*" >>"$HOME/calls"
case $* in
    print*io.github.connmgr) [ -e "$HOME/active" ] ;;
    bootstrap*) touch "$HOME/active" ;;
    bootout*) rm "$HOME/active" ;;
esac
"""


class User:
    """A user whose ``systemctl`` and ``launchctl`` record their calls."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.unit = home / "config" / "systemd" / "user" / "connmgr.service"
        self.agent = home / "Library" / "LaunchAgents" / "io.github.connmgr.plist"
        self.man_page = home / ".local" / "share" / "man" / "man1" / "connmgr.1"
        programs = home / "bin"
        programs.mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("launchctl", LAUNCHCTL)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o700)
        environment = clean_environment(home)
        self.environment = environment | {"PATH": f"{programs}:{environment['PATH']}"}

    def service(self, *words: str, code: int = 0, macos: bool = False, **environment: str) -> str:
        """Run ``connmgr service`` and return its output, or stderr if it fails."""
        argv = [sys.executable, "-c", ON_MACOS] if macos else [PROGRAM]
        done = subprocess.run(
            [*argv, "service", *words],
            env=self.environment | environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code == 1 else done.stdout

    def calls(self) -> list[str]:
        """Return the programs' calls since the last time, without queries of the state."""
        path = self.home / "calls"
        lines = path.read_text().splitlines()
        path.unlink()
        return [line for line in lines if "is-" not in line and "show-" not in line and not line.startswith("print")]


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def _unit(text: str) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    return unit["Service"]


def _command(text: str) -> list[str]:
    """Return the argv that systemd executes."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(_unit(text)["ExecStart"])]


def _agent(text: str) -> dict[str, Any]:
    agent: dict[str, Any] = plistlib.loads(text.encode())
    return agent


def test_install_writes_enables_and_starts_and_uninstall_reverts_that(user: User) -> None:
    assert str(user.unit) in user.service("install", "--threads", "8")
    assert _command(user.unit.read_text()) == [PROGRAM, "serve", "--threads", "8"]
    started = ["--user daemon-reload", "--user enable connmgr.service", "--user restart connmgr.service"]
    assert user.calls() == started
    assert user.man_page.read_text().startswith(".TH CONNMGR 1")
    shown = json.loads(user.service("status", "--json"))
    assert shown == {"manager": "systemd", "file": str(user.unit), "enabled": True, "active": True}
    user.calls()
    user.service("install")
    assert _command(user.unit.read_text()) == [PROGRAM, "serve"], "the second one does not replace the first"
    assert user.calls() == started
    user.service("uninstall")
    assert user.calls() == ["--user disable --now connmgr.service", "--user daemon-reload"]
    assert not user.unit.exists()
    assert not user.man_page.is_symlink()
    assert "No service is installed" in user.service("uninstall")
    assert "service install" in user.service("status", code=3)


def test_a_dry_run_prints_the_unit_and_changes_nothing(user: User) -> None:
    text = user.service("install", "--dry-run")
    assert _command(text) == [PROGRAM, "serve"]
    assert not (user.home / "calls").exists()
    assert not user.unit.exists()


def test_options_and_environment_become_options_with_absolute_paths(user: User) -> None:
    given = ("--data-dir", HOSTILE, "--no-auth", "--allowed-hosts", "a, b", "--config", "mine.toml")
    (user.home / "mine.toml").write_text("threads = 8\n")
    expected = [
        *(
            PROGRAM,
            "serve",
            "--config",
            f"{user.home}/mine.toml",
            "--port",
            "0",
            "--data-dir",
            f"{user.home}/{HOSTILE}",
        ),
        *("--no-auth", "--allowed-hosts", "a,b", "--idle-timeout", "5.0"),
    ]
    environment = {"CONNMGR_PORT": "0", "CONNMGR_IDLE_TIMEOUT": "5"}
    assert _command(user.service("install", "--dry-run", *given, **environment)) == expected
    on_macos = _agent(user.service("install", "--dry-run", *given, macos=True, **environment))
    assert on_macos["ProgramArguments"] == expected


def test_a_bad_setting_and_a_secret_are_refused(user: User) -> None:
    assert "--threads" in user.service("install", "--threads", "many", code=1)
    refused = user.service("install", code=1, CONNMGR_DATABASE_URL="postgresql://me:hunter2@host/vault")
    assert "config.toml" in refused
    assert "hunter2" not in refused
    assert not user.unit.exists()


def test_the_service_has_the_terminal_s_directories_and_optionally_its_agent(user: User) -> None:
    plain = _unit(user.service("install", "--dry-run", SSH_AUTH_SOCK="/run/agent"))
    assert "SSH_AUTH_SOCK" not in str(dict(plain))
    text = user.service("install", "--dry-run", "--ssh-agent", SSH_AUTH_SOCK="/run/my agent")
    assert 'Environment="SSH_AUTH_SOCK=/run/my agent"\n' in text
    assert f"Environment=XDG_DATA_HOME={user.home}/data\n" in text
    assert "SSH_AUTH_SOCK" in user.service("install", "--ssh-agent", code=1)


def test_without_systemd_it_says_what_to_do_instead(user: User) -> None:
    (user.home / "absent").touch()
    for words in (("install",), ("uninstall",), ("status",)):
        refused = user.service(*words, code=1)
        assert "Failed to connect to bus" in refused
        assert "connmgr serve" in refused
    (user.home / "bin" / "systemctl").unlink()
    assert "connmgr serve" in user.service("install", code=1, PATH=str(user.home / "bin"))
    assert not user.unit.exists()


def test_a_daemon_that_does_not_start_is_reported(user: User) -> None:
    (user.home / "failing").touch()
    assert "Job for connmgr.service failed." in user.service("install", code=1)


def test_nothing_is_installed_beside_a_daemon_started_by_hand(user: User) -> None:
    daemon = Daemon(user.home)
    try:
        refused = user.service("install", code=1)
        assert daemon.url in refused
        assert "connmgr stop" in refused
        assert not user.unit.exists()
    finally:
        daemon.stop()


def test_a_unit_written_by_somebody_else_stays(user: User) -> None:
    user.unit.parent.mkdir(parents=True)
    user.unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert "move it away" in user.service("install", code=1)
    assert "/bin/true" in user.unit.read_text()


def test_an_existing_man_page_stays(user: User) -> None:
    user.man_page.parent.mkdir(parents=True)
    user.man_page.write_text("another")
    user.service("install")
    user.service("uninstall")
    assert user.man_page.read_text() == "another"


def test_the_command_of_the_unit_starts_a_daemon_from_any_directory(user: User) -> None:
    command = _command(user.service("install", "--dry-run", "--port", "0", "--data-dir", HOSTILE))
    process = subprocess.Popen(
        command, env=user.environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(60), "nothing within a minute"
        assert process.stdout.readline().decode().startswith(READY)
    finally:
        process.terminate()
        process.stdout.close()
        assert process.wait(20) == 0
    assert (user.home / HOSTILE / "vault.db").exists()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(user: User) -> None:
    user.unit.parent.mkdir(parents=True)
    environment = {"SSH_AUTH_SOCK": HOSTILE}
    user.unit.write_text(user.service("install", "--dry-run", "--ssh-agent", "--data-dir", HOSTILE, **environment))
    # A separate runtime directory, so that no running systemd is asked.
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(user.unit)]
    path = {"PATH": os.environ["PATH"]}
    done = subprocess.run(command, env=user.environment | path, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if user.unit.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_unit_and_property_list_set_the_time_to_stop_and_keep_files_and_memory_private(user: User) -> None:
    from connmgr.daemon.process import WATCHDOG_SECONDS

    service = _unit(user.service("install", "--dry-run"))
    assert int(service["TimeoutStopSec"]) > WATCHDOG_SECONDS
    assert service["KillMode"] == "process", "jobs on this machine end with the daemon"
    assert (service["UMask"], service["LimitCORE"]) == ("0077", "0")
    agent = _agent(user.service("install", "--dry-run", macos=True))
    assert agent["ExitTimeOut"] > WATCHDOG_SECONDS
    assert agent["AbandonProcessGroup"], "jobs on this machine end with the daemon"
    assert agent["Umask"] == 0o077
    assert agent["HardResourceLimits"] == {"Core": 0}


def test_on_macos_the_service_is_a_launchd_agent(user: User) -> None:
    user.service("install", "--ssh-agent", "--data-dir", HOSTILE, macos=True, SSH_AUTH_SOCK="/agent")
    agent = _agent(user.agent.read_text())
    assert agent["ProgramArguments"][-3:] == ["serve", "--data-dir", f"{user.home}/{HOSTILE}"]
    assert Path(agent["ProgramArguments"][0]).is_absolute()
    assert agent["EnvironmentVariables"]["SSH_AUTH_SOCK"] == "/agent"
    domain = f"gui/{os.getuid()}"
    assert user.calls() == [f"enable {domain}/io.github.connmgr", f"bootstrap {domain} {user.agent}"]
    assert json.loads(user.service("status", "--json", macos=True))["active"] is True
    user.service("install", macos=True)
    assert f"bootout {domain}/io.github.connmgr" in user.calls(), "the agent that runs is not replaced"
    user.service("uninstall", macos=True)
    assert user.calls() == [f"bootout {domain}/io.github.connmgr"]
    assert not user.agent.exists()


@pytest.fixture
def notified(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A socket like systemd's notification socket, and its address."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0connmgr-test-{os.getpid()}")
        systemd.settimeout(20)
        yield f"@connmgr-test-{os.getpid()}", systemd


@pytest.mark.needs("linux")
def test_the_daemon_notifies_systemd_and_its_shells_cannot(
    start_daemon: Any, notified: tuple[str, socket.socket]
) -> None:
    address, systemd = notified
    daemon = start_daemon(environment={"NOTIFY_SOCKET": address})
    assert systemd.recv(100) == b"READY=1"
    from connmgr.client import LOCAL_MACHINE

    daemon.client.shell.start(LOCAL_MACHINE)
    assert daemon.client.shell.exec(LOCAL_MACHINE, "echo ${NOTIFY_SOCKET-unset}").stdout == "unset"


def test_the_daemon_starts_without_systemd_s_socket(start_daemon: Any) -> None:
    daemon = start_daemon(environment={"NOTIFY_SOCKET": "/nowhere"})
    assert "Cannot tell systemd" in daemon.stderr()
    assert daemon.client.daemon.version().build
