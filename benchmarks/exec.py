"""One command on an open local shell, beside a bare request to the same daemon and alternatives for scripts.

Run it with ``python -m benchmarks.exec``.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pexpect
from pexpect import replwrap

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.timing import interleaved, print_timings

BARE = "bare request"


def main() -> None:
    """Measure ``true`` on bash and dash through the daemon, and the alternatives."""
    with temporary_daemon() as daemon, _repl(0.05) as repl, _repl(None) as eager_repl:
        client = daemon.client
        bash, dash = (local_connection(daemon, shell) for shell in ("bash", "dash"))
        taken = interleaved(
            {
                BARE: lambda: client.post("/daemon/version"),
                "/shell/exec, bash": lambda: client.post("/shell/exec", connection=bash, command="true"),
                "/shell/exec, dash": lambda: client.post("/shell/exec", connection=dash, command="true"),
                "subprocess.run(['sh', '-c', …])": lambda: subprocess.run(["sh", "-c", "true"], check=True),
                "pexpect.replwrap": lambda: repl.run_command("true"),
                "pexpect.replwrap, without its delay": lambda: eager_repl.run_command("true"),
            },
            calls=100,
        )
    print_timings("The command true, local, keep-alive", taken, base=BARE, repeat="python -m benchmarks.exec")


@contextlib.contextmanager
def _repl(delay: float | None) -> Iterator[replwrap.REPLWrapper]:
    """pexpect's wrapper as in ``replwrap.bash``, but without the user's rc files; its default delay is 0.05 s."""
    child = pexpect.spawn("bash", ["--norc", "--noprofile"], env={"PS1": "$"}, echo=False, encoding="utf-8")
    child.delaybeforesend = delay
    yield replwrap.REPLWrapper(child, r"\$", "PS1='{0}' PS2='{1}' PROMPT_COMMAND=''")
    child.close(force=True)


if __name__ == "__main__":
    main()
