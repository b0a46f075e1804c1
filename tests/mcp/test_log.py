"""The server's log on standard error."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging
from connmgr.mcp.stdio import log_to_stderr

log_to_stderr()
logging.getLogger("a").info("not shown")
logging.getLogger("a").warning("Invalid header: %s", "evil\\x1b[2J\\n" + 1000 * "x")
try:
    {}["secret"]
except KeyError:
    logging.getLogger("b").exception("failed")
"""


def test_a_record_is_one_line_without_traceback_and_control_characters() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    first, second = done.stderr.splitlines()
    assert first.startswith("WARNING a: Invalid header: evil\\x1b[2J ")
    assert len(first) < 600
    assert second == "ERROR b: failed: KeyError: 'secret'"
