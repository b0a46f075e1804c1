"""The cost of the audit log for a command: the daemon with the whole log, and without one part of it.

Run it with ``python -m benchmarks.audit``. A daemon without a part is the same program with one function replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.timing import interleaved, print_timings
from tests.daemon import Daemon

START = "import sys; from connmgr.__main__ import main; sys.argv[0] = 'connmgr'; main()"
AS_IT_IS = "as it is"
LOG, CHAIN = "from connmgr.audit.log import AuditLog", "from connmgr.audit.log import Chain"
WITHOUT = {
    "without the chain": f"{CHAIN}; Chain.hash = lambda self, line: '0' * 64",
    "without names": "from connmgr.audit.entry import SubjectNames; SubjectNames.of = lambda self, entry: {}",
    "without anchors": f"{LOG}; AuditLog._anchor_regularly = lambda self: None",
    "without a log": f"{LOG}; AuditLog.record = lambda self, *_: None",
}


def main() -> None:
    """Measure ``true`` in a local shell with and without each part of the log, and with all of it required."""
    with ExitStack() as stack:
        daemons = {AS_IT_IS: stack.enter_context(temporary_daemon())}
        for name, patch in WITHOUT.items():
            daemons[name] = stack.enter_context(temporary_daemon(program=(sys.executable, "-c", f"{patch}; {START}")))
        daemons["audit = required"] = stack.enter_context(temporary_daemon("--audit", "required"))
        taken = interleaved({name: _true(daemon) for name, daemon in daemons.items()}, calls=500, rounds=6)
    print_timings("The command true, local", taken, base=AS_IT_IS, repeat="python -m benchmarks.audit")


def _true(daemon: Daemon) -> Callable[[], object]:
    connection = local_connection(daemon, "dash")
    return lambda: daemon.client.post("/shell/exec", connection=connection, command="true")


if __name__ == "__main__":
    main()
