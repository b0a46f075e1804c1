"""The killer finishes even after its deadline, and finds processes with any name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from connmgr.engine.kill import kill_tree
from connmgr_local.transport import LocalTransport
from tests.components import program

pytestmark = pytest.mark.needs("linux")

# The search for processes that left the tree comes when the tree is stopped; it then takes longer than the killer has.
SLOW_GREP = """#!/bin/sh
case " $* " in *CONNMGR_COMMAND=*) sleep 4;; esac
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
