"""One command on an open local shell, beside a bare request to the same daemon and alternatives for scripts.

Run it with ``python -m benchmarks.exec``.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pexpect
from pexpect import replwrap

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.timing import interleaved, print_timings
from connmgr.client import Client, ClientError

BARE = "bare request"
REPEAT = "python -m benchmarks.exec"
LEAVINGS = 10


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
        freed = {"its time is over": [], "its client leaves": []}
        for _ in range(LEAVINGS):
            freed["its time is over"].append(_freed_by_timeout(client, bash))
            freed["its client leaves"].append(_freed_by_leaving(client, bash))
    print_timings("The command true, local, keep-alive", taken, base=BARE, repeat=REPEAT)
    title = "Until the shell of a command that runs for hours has answered the next one, after"
    print_timings(title, freed, base="its time is over", repeat=REPEAT)


def _freed_by_timeout(client: Client, connection: str) -> float:
    began = time.monotonic()
    with contextlib.suppress(ClientError):
        client.shell.exec(connection, "sleep 10000", timeout=0.3)
    client.shell.exec(connection, "true")
    return time.monotonic() - began - 0.3


def _freed_by_leaving(client: Client, connection: str) -> float:
    address, body = urlsplit(client.base_url), json.dumps({"connection": connection, "command": "sleep 10000"})
    leaving = http.client.HTTPConnection(str(address.hostname), address.port or 80)
    headers = {"Authorization": f"Bearer {client.session_token}", "Content-Type": "application/json"}
    leaving.request("POST", "/shell/exec", body, headers)
    while not any((one.command_seconds or 0.0) > 0.3 for one in client.shell.list(connection)):
        time.sleep(0.02)
    began = time.monotonic()
    leaving.close()
    client.shell.exec(connection, "true")
    return time.monotonic() - began


@contextlib.contextmanager
def _repl(delay: float | None) -> Iterator[replwrap.REPLWrapper]:
    """pexpect's wrapper as in ``replwrap.bash``, but without the user's rc files; its default delay is 0.05 s."""
    child = pexpect.spawn("bash", ["--norc", "--noprofile"], env={"PS1": "$"}, echo=False, encoding="utf-8")
    child.delaybeforesend = delay
    yield replwrap.REPLWrapper(child, r"\$", "PS1='{0}' PS2='{1}' PROMPT_COMMAND=''")
    child.close(force=True)


if __name__ == "__main__":
    main()
