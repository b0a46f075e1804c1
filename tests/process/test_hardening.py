"""A hardened process leaves no core dump."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the dumpable flag is Linux's")
def test_core_dumps_are_off_and_children_are_as_usual() -> None:
    script = """
import ctypes, resource, subprocess, sys
from connmgr.processes import harden
_, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
harden()
print(resource.getrlimit(resource.RLIMIT_CORE) == (0, hard), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
print(subprocess.run([sys.executable, "-c", "import ctypes; print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"],
                     capture_output=True, text=True).stdout.strip())
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.split() == ["True", "0", "1"]
