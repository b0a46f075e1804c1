"""The tests run the same in whatever environment their caller has, and as far as the caller's rights go.

Only the daemon of `make run` obeys the environment.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from connmgr.settings import options
from scripts.clean import KEPT, LOOPBACK, cleaned
from tests.spawner import PROGRAM

ROOT = Path(__file__).parent.parent
NOWHERE = "/nonexistent"
SETTINGS = {
    **{f"CONNMGR_{option.name.upper()}": NOWHERE for option in options()},
    **dict.fromkeys(("CONNMGR_CONFIG", "CONNMGR_TOKEN", "CONNMGR_SESSION", "CONNMGR_APPROVER_TOKEN_FILE"), NOWHERE),
    "CONNMGR_HOST": "192.0.2.1",
    "CONNMGR_PORT": "1",
}
PROGRAMS = {
    **dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"), NOWHERE),
    **dict.fromkeys(("XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP", "SSH_AUTH_SOCK", "SSH_ASKPASS"), NOWHERE),
    "SSH_ASKPASS_REQUIRE": "force",
    "SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22",
    "SSH_TTY": NOWHERE,
    "SHELL": "/bin/false",
    "EDITOR": "/bin/false",
    "PAGER": "/bin/false",
    "USER": "nobody",
    "LOGNAME": "nobody",
    "HTTP_PROXY": "http://127.0.0.1:1",
    "http_proxy": "http://127.0.0.1:1",
    "TAR_OPTIONS": "--nonexistent",
    "ANSIBLE_CONFIG": NOWHERE,
    "ANSIBLE_STDOUT_CALLBACK": "none",
    "RSYNC_RSH": "/bin/false",
    "GIT_DIR": NOWHERE,
    "DOCKER_HOST": "tcp://192.0.2.1",
    "KUBECONFIG": NOWHERE,
    "PGHOST": "192.0.2.1",
    "POSIXLY_CORRECT": "1",
    "COLUMNS": "20",
    "LINES": "3",
    "FORCE_COLOR": "1",
    "TZ": "Pacific/Kiritimati",
    "CDPATH": "/",
    "PYTHON": NOWHERE,
    "PIP_TARGET": NOWHERE,
    "PIP_REQUIRE_VIRTUALENV": "0",
    "NODE_OPTIONS": "--nonexistent",
    "MAKEFLAGS": "n",
}
INTERPRETER = {
    "PYTHONHOME": NOWHERE,
    "PYTHONOPTIMIZE": "2",
    "PYTHONWARNINGS": "error",
    "PYTHONSTARTUP": NOWHERE,
    "PYTHONIOENCODING": "ascii",
    "PYTHONUTF8": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONCOERCECLOCALE": "0",
    "LANG": "de_DE.ISO-8859-1",
    "LC_ALL": "C",
    "LC_MESSAGES": "de_DE",
    "LANGUAGE": "de",
}
"""What an interpreter reads at its start, so that only `make test` can spare it."""

SENSITIVE = (
    "tests/test_caller.py::test_nothing_of_the_caller_s_is_left",
    "tests/process/test_daemon_file.py",
    "tests/client/test_client.py::TestSessions",
    "tests/client/test_client.py::test_the_default_places_equal_those_of_platformdirs",
    "tests/test_install.py",
    "tests/test_readme.py",
)
"""Tests that ask for addresses, directories, names and texts of the environment."""

CLEANED = SENSITIVE[:2]
"""Those of them that fail first where the tests have not cleaned their environment themselves."""


def outcome(argv: list[str], environment: dict[str, str]) -> str:
    """Run tests in the environment, with SIGHUP ignored, and return the counts of the summary."""
    done = subprocess.run(
        ["nohup", *argv],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        umask=0o077,
    )
    summary = re.findall(r"^=* ?(\d+ [a-z]+(?:, \d+ [a-z]+)*) in [\d.]+s", done.stdout, re.MULTILINE)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-10_000:]
    assert len(summary) == 1, done.stdout
    return summary[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.needs("linux", "bash", "sshd")
def test_make_test_in_a_hostile_environment(tmp_path: Path) -> None:
    shadow = tmp_path / "json.py"
    shadow.write_text("raise SystemExit('the caller`s module was imported')")
    bash = tmp_path / "bash_env"
    bash.write_text("exit 3\n")
    hostile = {**SETTINGS, **PROGRAMS, **INTERPRETER, "PYTHONPATH": str(tmp_path), "BASH_ENV": str(bash)}
    del hostile["MAKEFLAGS"]  # make itself obeys it
    words = ["-q", "-p", "no:cacheprovider", "-n", "2", *SENSITIVE]
    target = ["make", "--old-file=.venv/installed-test", "test", f"BIN={PROGRAM.parent}"]
    passed = outcome([*target, f"PYTEST_ARGS={' '.join(words)}"], hostile)
    assert re.fullmatch(r"\d+ passed", passed)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.needs("linux", "bash", "sshd")
def test_pytest_alone_in_a_hostile_environment() -> None:
    words = ["-q", "-p", "no:cacheprovider", "-n", "0", *CLEANED]
    passed = outcome([sys.executable, "-m", "pytest", *words], {**SETTINGS, **PROGRAMS})
    assert re.fullmatch(r"\d+ passed", passed)


def test_nothing_of_the_caller_s_is_left() -> None:
    named = {name for name in os.environ if name.upper() not in KEPT and not name.startswith("PYTEST_")}
    assert named == {"LANG"}
    assert os.environ["HOME"] != NOWHERE
    assert Path("/proc/self/status").read_text().count("Umask:\t0022") == 1
    started = subprocess.run(
        ["cat", "/proc/self/status"], capture_output=True, text=True, timeout=20, check=True
    ).stdout
    ignored = int(started.partition("SigIgn:")[2].split()[0], 16)
    assert [number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if ignored >> (number - 1) & 1] == []


def test_clean_keeps_some_variables_and_sets_others() -> None:
    environment = cleaned({**SETTINGS, **PROGRAMS, **INTERPRETER, "PATH": "/bin", "PIP_INDEX_URL": "x", "CI": "true"})
    assert environment.pop("LANG") == "C.UTF-8"
    assert environment.pop("NO_PROXY") == environment.pop("no_proxy") == LOOPBACK
    assert {environment.pop("USER"), environment.pop("LOGNAME")} != {"nobody"} or os.getuid() == 65534
    assert environment.pop("HOME")
    proxies = {"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    assert environment == {"PATH": "/bin", "PIP_INDEX_URL": "x", "CI": "true", **proxies}


def test_the_daemon_of_make_run_obeys_its_user() -> None:
    words = ["make", "--dry-run", "--old-file=.venv/installed-run", "run"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "exec .venv/bin/connmgr serve \n"


def programs(directory: Path, scripts: Mapping[str, str]) -> str:
    """Return a PATH on which shell scripts stand for programs, before those of the system."""
    directory.mkdir()
    for name, script in scripts.items():
        (directory / name).write_text(f"#!/bin/sh\n{script}\n")
        (directory / name).chmod(0o755)
    return f"{directory}{os.pathsep}{os.environ['PATH']}"


def test_a_system_that_allows_no_namespace_runs_the_command_and_says_so(tmp_path: Path) -> None:
    path = programs(tmp_path / "bin", {"unshare": "exit 1"})
    environment = {"PATH": path, "HOME": str(tmp_path)}
    words = [ROOT / "scripts" / "isolated", "echo", "ran"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout == "ran\n"
    assert done.stderr == "This system allows no namespace with a /tmp of its own: going on without one.\n"


@pytest.mark.needs("machine")
@pytest.mark.parametrize("killed", [False, True], ids=["it ends", "it is killed"])
def test_nothing_that_an_isolated_command_started_outlives_it(killed: bool) -> None:
    # A daemon's job: of a session of its own, and nobody's child. As long as it runs, its output does not end.
    words = [ROOT / "scripts" / "isolated", "sh", "-c", "(setsid sleep 100 &); echo begun; read line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        assert command.stdout.readline() == b"begun\n"
        if killed:
            command.kill()
        rest, _ = command.communicate(timeout=20)
    assert rest == b""


@pytest.mark.needs("machine")
def test_users_that_an_isolated_command_creates_are_known_to_it_alone() -> None:
    name = f"cm{os.getpid()}alone"
    words = [ROOT / "scripts" / "isolated", "sh", "-c", f"useradd {name} && getent passwd {name}"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    assert done.stdout.startswith(f"{name}:"), done.stderr
    with pytest.raises(KeyError):
        pwd.getpwnam(name)


@pytest.mark.parametrize("has_venv", [True, False], ids=["a component is missing", "venv is missing"])
def test_setup_goes_on_without_what_only_some_tests_need(tmp_path: Path, has_venv: bool) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "scripts", tree / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    answers = (
        f"*ensurepip*) exit {int(not has_venv)};; *components.py) echo 'ksh93u+m|ksh';; *venv*) echo tried; exit 9;;"
    )
    python = f'case "$*" in {answers} esac'
    path = programs(tmp_path / "bin", {"apt-get": "exit 1", "sudo": "exit 1", "id": "echo 1000", "python3": python})
    done = subprocess.run(
        ["scripts/setup", "test", "python3"],
        cwd=tree,
        env={"PATH": path},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    venv = "" if has_venv else " 'python3-venv'"
    assert f"    sudo sh scripts/install-packages{venv} 'ksh93u+m|ksh'\n" in done.stderr
    # Without venv nothing can be installed; otherwise the installation is tried, and fails here.
    assert ("Going on" in done.stderr) is ("tried" in done.stderr) is has_venv


def test_many_skipped_tests_are_counted_by_their_files() -> None:
    from tests.conftest import NAMED_SKIPS, _listed

    few = [f"tests/a.py::test_{number}" for number in range(NAMED_SKIPS)]
    many = [*few, "tests/b.py::test_x[a::b]"]
    assert _listed(few, whole=False) == sorted(few)
    assert _listed(many, whole=False) == [f"{NAMED_SKIPS:4} in tests/a.py", "   1 in tests/b.py"]
    assert _listed(many, whole=True) == sorted(many)
