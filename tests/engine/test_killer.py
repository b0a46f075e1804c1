"""The killer finishes even after its deadline, and finds processes with any name; HUP reaches all of a stream."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from connmgr.engine.kill import hang_up, kill_tree
from connmgr_local.transport import LocalTransport
from tests.components import program

pytestmark = pytest.mark.needs("linux")

# The search for processes that left the tree comes when the tree is stopped; it then takes longer than the killer has.
SLOW_GREP = """#!/bin/sh
case " $* " in *CONNMGR_COMMAND=*) sleep 4;; esac
exec {grep} "$@"
"""

# All processes have been listed for it when the one that carries the mark ends; the next one is not in the list.
LATE_GREP = """#!/bin/sh
case $1 in -hsoaz) kill -KILL "$(cat {carrier})";; esac
exec {grep} "$@"
"""


@contextmanager
def supervised(sleep: str) -> Iterator[tuple[int, list[psutil.Process]]]:
    """Start a supervisor with the command ``sleep 1000``, and yield its process id and the command."""
    argv = ["/bin/sh", "-c", '"$0" 1000 & "$0" 0; echo; wait', sleep]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin", "CONNMGR_BOOT": "word"}) as root:
        assert root.stdout
        root.stdout.readline()
        command = psutil.Process(root.pid).children()
        try:
            yield root.pid, command
        finally:
            for process in command:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            root.kill()


def test_stopped_processes_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "grep"
    slow.write_text(SLOW_GREP.format(grep=program("grep")))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with closing(LocalTransport()) as transport, supervised("sleep") as (root, command):
        assert not kill_tree(transport, root, "word", "0.0", 2)
        assert psutil.wait_procs(command, timeout=30)[1] == [], "the command was left as it was stopped"


@pytest.mark.parametrize("name", [") Z 1", "a\nb (*) ", "\udcff*"])
def test_no_name_hides_a_process(tmp_path: Path, name: str) -> None:
    sleep = tmp_path / name
    sleep.symlink_to(str(program("sleep")))
    with closing(LocalTransport()) as transport, supervised(str(sleep)) as (root, command):
        assert kill_tree(transport, root, "word", "0.0", 30)
        assert psutil.wait_procs(command, timeout=30)[1] == [], "the command still runs"


@pytest.mark.needs("bash")
def test_a_login_shell_is_hung_up_although_the_program_that_carries_its_mark_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carrier, late = tmp_path / "carrier", tmp_path / "grep"
    late.write_text(LATE_GREP.format(carrier=carrier, grep=program("grep")))
    late.chmod(0o755)
    line = f"""export CONNMGR_STREAM=0123.$$; trap 'exit 7' HUP
        while :; do sleep 1000 & echo $! >{carrier}; echo; wait $!; done"""
    with subprocess.Popen(["bash", "-c", line], stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout
        shell.stdout.readline()
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        try:
            with closing(LocalTransport()) as transport:
                assert hang_up(transport, "0123", 30)
            assert shell.wait(30) == 7
        finally:
            shell.kill()
            subprocess.run(["kill", "-KILL", carrier.read_text().strip()], check=False, capture_output=True)
