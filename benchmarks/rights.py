"""The cost of 50 rules: requests of a token beside the owner's.

Run it with ``python -m benchmarks.rights``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.daemon import local_connection, temporary_daemon
from benchmarks.timing import interleaved, print_timings
from connmgr.client import Client
from tests.daemon import Daemon

OTHERS = [
    {
        "effect": "allow",
        "argv": [f"/usr/bin/program{number}", "-u", {"re": r"[\w@.-]+"}, "--no-pager"],
        "mayRunOthers": True,
    }
    for number in range(47)
]
RULES = [
    *OTHERS,
    {"effect": "deny", "argv": ["/usr/bin/true", "--version"]},
    {"effect": "allow", "argv": ["/usr/bin/true"]},
    {"effect": "deny", "text": "rm -rf"},
]
REPEAT = "python -m benchmarks.rights"


def main() -> None:
    """Measure requests of the owner and of a token in turns."""
    with temporary_daemon() as daemon, ExitStack() as stack:
        connection = local_connection(daemon, "dash")
        holder = stack.enter_context(Client(daemon.url, daemon.auth_file, _token(daemon)))
        clients = {"the owner": daemon.client, "a token with 50 rules": holder}
        requests: dict[str, tuple[str, dict[str, Any]]] = {
            "/daemon/version": ("/daemon/version", {}),
            "/connection/info": ("/connection/info", {"connections": [connection]}),
            "/shell/exec, an argv": ("/shell/exec", {"connection": connection, "argv": ["/usr/bin/true"]}),
        }
        for title, (path, fields) in requests.items():
            calls = {name: _call(client, path, fields) for name, client in clients.items()}
            taken = interleaved(calls, calls=300, rounds=8)
            print_timings(title, taken, base="the owner", repeat=REPEAT)


def _token(daemon: Daemon) -> str:
    scopes = ["connection.read", "shell.argv"]
    made = daemon.client.token.create("benchmark", 3600, scopes, rules=RULES, connections=["[a-z]*", "web/**"])
    return str(made["token"])


def _call(client: Client, path: str, fields: dict[str, Any]) -> Callable[[], object]:
    return lambda: client.post(path, **fields)


if __name__ == "__main__":
    main()
