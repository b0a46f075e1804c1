"""A cluster of one pod for kubectl: a real HTTP, WebSocket and SPDY server that runs programs in a directory.

It answers discovery, lists and describes its pods, and carries ``exec`` as the client asks for it: by WebSocket, where
each message begins with the number of a channel, or by SPDY, which kubectl before 1.31 speaks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.containers.pod_process import Messages, OnTerminal, Piped
from tests.containers.spdy import SpdyMessages

PROTOCOL, SPDY_PROTOCOL = "v5.channel.k8s.io", "v4.channel.k8s.io"
_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": "v1",
    "resources": [
        {"name": "pods", "singularName": "pod", "namespaced": True, "kind": "Pod", "verbs": ["get", "list"]},
        {"name": "pods/exec", "singularName": "", "namespaced": True, "kind": "PodExecOptions", "verbs": ["create"]},
    ],
}
_DISCOVERY = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": _RESOURCES,
}


def pod(namespace: str, name: str, *containers: str, running: bool = True) -> dict[str, Any]:
    """Return a pod as the API describes it."""
    state = {"running": {}} if running else {"terminated": {"exitCode": 0}}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"containers": [{"name": one, "image": "box"} for one in containers]},
        "status": {
            "phase": "Running" if running else "Succeeded",
            "containerStatuses": [{"name": one, "state": state} for one in containers],
        },
    }


CONTEXT = "arn:aws:eks:eu-west-1:000000000000:cluster/test of ours"
"""A context name, as long and odd as those of cloud providers."""


class Cluster:
    """A running server in a separate process; ``entering`` is the argv prefix that enters every container."""

    def __init__(self, pods: Sequence[Mapping[str, Any]], entering: Sequence[str]) -> None:
        argv = [sys.executable, "-m", __name__, json.dumps({"pods": pods, "entering": entering})]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, cwd=Path(__file__).parents[2])
        assert self._process.stdout
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the cluster did not start"

    def configuration(self) -> str:
        """Return a kubectl configuration for this server, with the contexts :data:`CONTEXT` and "test"."""
        context = {"cluster": "test", "user": "test", "namespace": "shop"}
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": CONTEXT,
                "clusters": [{"name": "test", "cluster": {"server": self.url}}],
                "users": [{"name": "test", "user": {}}],
                "contexts": [{"name": name, "context": context} for name in (CONTEXT, "test")],
            }
        )

    def close(self) -> None:
        """Stop the server by closing its input."""
        self._process.communicate(timeout=20)


def serve(pods: Sequence[Mapping[str, Any]], entering: Sequence[str]) -> None:
    """Print a line with the address, and serve until standard input ends."""

    class Handler(_Handler):
        served = Served(pods, entering)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()
    # Threads of programs that still run must not delay the end.
    os._exit(0)


class Served(NamedTuple):
    """The state of a server."""

    pods: Sequence[Mapping[str, Any]]
    entering: Sequence[str]


class _Handler(BaseHTTPRequestHandler):
    served: Served
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        *_, last = words = url.path.strip("/").split("/")
        if url.path in _DISCOVERY:
            self._answer(200, _DISCOVERY[url.path])
        elif words[-1:] == ["pods"]:
            namespace = words[3] if len(words) > 3 else None
            some = [one for one in self.served.pods if namespace in (None, one["metadata"]["namespace"])]
            self._answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": some})
        elif last == "exec":
            query = parse_qs(url.query, keep_blank_values=True)
            refusal = self._refusal(words, query)
            self._refuse(400, "BadRequest", refusal) if refusal else self._exec(query)
        else:
            self._describe(words[3] if len(words) > 3 else "", last)

    def do_POST(self) -> None:
        # After a refused WebSocket, kubectl tries SPDY and reports that answer.
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        refusal = self._refusal(url.path.split("/"), query)
        self._refuse(400, "BadRequest", refusal) if refusal else self._exec_by_spdy(query)

    def _refusal(self, words: Sequence[str], query: Mapping[str, list[str]]) -> str | None:
        """Return the reason to refuse a request to run a program, or None."""
        namespace, name, [container] = words[-4], words[-2], query["container"]
        for one in self.served.pods:
            containers = [own["name"] for own in one["spec"]["containers"]]
            place = one["metadata"]["namespace"], one["metadata"]["name"]
            if place == (namespace, name) and container in containers:
                return None
        return f"container {container} is not valid for pod {name}"

    def _describe(self, namespace: str, name: str) -> None:
        for one in self.served.pods:
            if (one["metadata"]["namespace"], one["metadata"]["name"]) == (namespace, name):
                self._answer(200, one)
                return
        self._refuse(404, "NotFound", f'pods "{name}" not found')

    def _refuse(self, code: int, reason: str, message: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
        self._answer(code, {**status, "reason": reason, "message": message})

    def _answer(self, code: int, body: Mapping[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _exec(self, query: Mapping[str, list[str]]) -> None:
        key = self.headers["Sec-WebSocket-Key"] + _MAGIC
        accepted = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest()).decode()
        self._upgrade("websocket", {"Sec-WebSocket-Accept": accepted, "Sec-WebSocket-Protocol": PROTOCOL})
        self._run(query, Messages(self.rfile.read1, self.connection.sendall))  # type: ignore[attr-defined]

    def _exec_by_spdy(self, query: Mapping[str, list[str]]) -> None:
        self._upgrade("SPDY/3.1", {"X-Stream-Protocol-Version": SPDY_PROTOCOL})
        # One for the status, and one for the size of a terminal.
        streams = 1 + sum(query.get(name) == ["true"] for name in ("stdin", "stdout", "stderr", "tty"))
        self._run(query, SpdyMessages(self.rfile.read1, self.connection.sendall, streams))  # type: ignore[attr-defined]

    def _upgrade(self, protocol: str, headers: Mapping[str, str]) -> None:
        self.send_response(101)
        for name, value in {"Upgrade": protocol, "Connection": "Upgrade", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True

    def _run(self, query: Mapping[str, list[str]], messages: Messages | SpdyMessages) -> None:
        run = OnTerminal if query.get("tty") == ["true"] else Piped
        run([*self.served.entering, *query["command"]], messages).live()


if __name__ == "__main__":
    serve(**json.loads(sys.argv[1]))
