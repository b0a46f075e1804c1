"""One command on an open local shell, beside a bare request to the same daemon and what a script would use instead.

Run it with ``python -m benchmarks.exec``.
"""

from __future__ import annotations

import subprocess

from pexpect import replwrap

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.timing import interleaved, print_timings

BARE = "bare request"


def main() -> None:
    """Measure ``true`` on bash and dash through the daemon, and its rivals."""
    with temporary_daemon() as daemon:
        client = daemon.client
        bash, dash = (local_connection(daemon, shell) for shell in ("bash", "dash"))
        repl = replwrap.bash()
        taken = interleaved(
            {
                BARE: lambda: client.post("/daemon/version"),
                "/shell/exec, bash": lambda: client.post("/shell/exec", connection=bash, command="true"),
                "/shell/exec, dash": lambda: client.post("/shell/exec", connection=dash, command="true"),
                "subprocess.run(['sh', '-c', …])": lambda: subprocess.run(["sh", "-c", "true"], check=True),
                "pexpect.replwrap": lambda: repl.run_command("true"),
            },
            calls=100,
        )
        repl.child.close(force=True)
    print_timings("The command true, local, keep-alive", taken, base=BARE, repeat="python -m benchmarks.exec")


if __name__ == "__main__":
    main()
