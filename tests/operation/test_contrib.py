"""What starts the daemon for a user: systemd's unit and launchd's property list."""

from __future__ import annotations

import configparser
import os
import plistlib
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connmgr.settings import options
from tests.daemon import clean_environment

CONTRIB = Path(__file__).parent.parent.parent / "contrib"
UNIT = CONTRIB / "connmgr.service"
PLIST = CONTRIB / "io.github.connmgr.plist"


def _unit() -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    return unit


def _assert_known(arguments: list[str]) -> None:
    known = {f"--{option.name.replace('_', '-')}" for option in options()}
    assert arguments[0] == "serve"
    assert {argument for argument in arguments[1:] if argument.startswith("--")} <= known


def test_both_start_the_daemon_with_options_that_it_has() -> None:
    _assert_known(shlex.split(_unit()["Service"]["ExecStart"])[1:])
    with PLIST.open("rb") as file:
        _assert_known(plistlib.load(file)["ProgramArguments"][1:])


def test_both_give_the_daemon_its_time_to_stop_and_keep_files_and_memory_private() -> None:
    from connmgr.daemon.stop import WATCHDOG_SECONDS

    service = _unit()["Service"]
    assert int(service["TimeoutStopSec"]) > WATCHDOG_SECONDS
    assert (service["UMask"], service["LimitCORE"]) == ("0077", "0")
    with PLIST.open("rb") as file:
        agent = plistlib.load(file)
    assert agent["ExitTimeOut"] > WATCHDOG_SECONDS
    assert agent["Umask"] == 0o077
    assert agent["HardResourceLimits"] == {"Core": 0}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    program = tmp_path / ".local" / "bin" / "connmgr"
    program.parent.mkdir(parents=True)
    program.symlink_to(sys.executable)
    # A runtime directory of its own: nothing is asked of a running systemd.
    environment = {**clean_environment(tmp_path), "PATH": os.environ["PATH"]}
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(UNIT)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr
