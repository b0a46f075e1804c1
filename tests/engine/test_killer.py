"""A killer that is too slow for its deadline finishes what it has begun."""

from __future__ import annotations

import subprocess
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from connmgr.engine.kill import kill_tree
from connmgr_local.transport import LocalTransport
from tests.components import program

# The second search comes when the tree is stopped and not yet killed; it then takes longer than the killer has.
SLOW_GREP = """#!/bin/sh
case " $* " in
  *CONNMGR_COMMAND=*)
    if [ -e "{searched}" ]; then sleep 4; fi
    touch "{searched}" ;;
esac
exec {grep} "$@"
"""


@pytest.mark.needs("linux")
def test_what_is_stopped_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "grep"
    slow.write_text(SLOW_GREP.format(searched=tmp_path / "searched", grep=program("grep")))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    argv = ["/bin/sh", "-c", "sleep 1000 & echo; wait"]
    with (
        closing(LocalTransport()) as transport,
        subprocess.Popen(argv, stdout=subprocess.PIPE, env={"PATH": "/usr/bin:/bin", "CONNMGR_BOOT": "word"}) as root,
    ):
        assert root.stdout
        root.stdout.readline()
        command = psutil.Process(root.pid).children()
        try:
            assert not kill_tree(transport, root.pid, "word", "0.0", 2)
            assert psutil.wait_procs(command, timeout=30)[1] == [], "the command was left as it was stopped"
        finally:
            for process in command:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            root.kill()
