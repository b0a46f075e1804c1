"""The log: one line a request with caller, endpoint, duration and outcome, and no secrets."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.api.wire import LOCAL, send, talk
from tests.conftest import StartDaemon
from tests.daemon import Daemon

LINE = re.compile(
    r"^\S+ \S+ INFO connmgr\.request: (?P<method>\S+) (?P<path>\S+) (?P<status>\d+) [\d.]+ ms (?P<rest>.*)$"
)
INJECTION = 'x"\n2025-01-01 00:00:00,000 INFO connmgr.request: POST /forged 200 1.0 ms \x1b[31m\u2028'


def _lines(daemon: Daemon) -> list[dict[str, str]]:
    found = [match.groupdict() for line in daemon.stderr().splitlines() if (match := LINE.match(line))]
    for line in found:
        line.update(re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line["rest"]))
    return found


def _shake_hands(daemon: Daemon, name: str) -> dict[str, str]:
    auth = {"type": "local", "authFileContent": daemon.auth_file.read_text()}
    answer = send(daemon.url, "/handshake", {"auth": auth, "client": {"type": "api", "name": name}})
    return {"Authorization": f"Bearer {answer.json['sessionToken']}"}


def test_a_request_is_one_line_with_all_fields(own_daemon: Daemon) -> None:
    token = _shake_hands(own_daemon, "my script")
    answer = send(own_daemon.url, "/shell/exec", {"connection": LOCAL, "command": "true"}, token)
    own_daemon.stop()
    handshake, execution = _lines(own_daemon)
    assert (handshake["path"], handshake["client"]) == ("/handshake", '"my script"')
    assert execution["method"] == "POST"
    assert execution["path"] == "/shell/exec"
    assert (execution["status"], execution["code"]) == ("400", "no_shell")
    assert execution["connection"] == LOCAL
    assert execution["client"] == '"my script"'
    assert re.fullmatch("[0-9a-f]{8}", execution["session"])
    assert execution["id"] == answer.headers["X-Request-Id"]


def test_a_request_refused_by_the_server_is_one_line_too(own_daemon: Daemon) -> None:
    large = send(own_daemon.url, "/handshake", b" " * 100_000)
    headers = send(own_daemon.url, "/handshake", {}, {"X-Long": "x" * 40_000})
    broken = talk(own_daemon.url, b"nonsense\r\n\r\n").decode()
    own_daemon.stop()
    ids = [large.headers["X-Request-Id"], headers.headers["X-Request-Id"]]
    ids += re.findall("X-Request-Id: (.*)\r", broken)
    assert [
        (line["id"], line["method"], line["path"], line["status"], line["code"]) for line in _lines(own_daemon)
    ] == [
        (ids[0], "POST", "/handshake", "413", "body_too_large"),
        (ids[1], "-", "-", "431", "headers_too_large"),
        (ids[2], "-", "-", "400", "invalid_request"),
    ]


def test_requests_of_a_session_have_its_own_id(own_daemon: Daemon) -> None:
    tokens = [_shake_hands(own_daemon, "same name") for _ in range(2)]
    for token in [*tokens, tokens[0]]:
        send(own_daemon.url, "/daemon/version", {}, token)
    own_daemon.stop()
    first, second, third = (line["session"] for line in _lines(own_daemon) if line["path"] == "/daemon/version")
    assert first == third
    assert first != second


def test_json_lines_have_the_same_fields(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--log-format", "json")
    daemon.client.post("/connection/info", connections=[LOCAL])
    daemon.stop()
    entries: list[dict[str, Any]] = [json.loads(line) for line in daemon.stderr().splitlines()]
    assert all({"time", "level", "logger"} <= set(entry) for entry in entries)
    (request,) = [entry for entry in entries if entry.get("path") == "/connection/info"]
    assert (request["method"], request["status"], request["level"]) == ("POST", 200, "info")
    assert request["ms"] > 0
    assert "code" not in request
    assert [entry["message"] for entry in entries if entry["logger"] == "connmgr.daemon"] == ["Stopping."]


def test_a_client_cannot_forge_lines(start_daemon: StartDaemon) -> None:
    for style in ("text", "json"):
        daemon = start_daemon("--log-format", style)
        token = _shake_hands(daemon, INJECTION)
        send(daemon.url, "/shell/start", {"connection": INJECTION}, token)
        send(daemon.url, "/nowhere%0A2025%20forged%1b[31m", {}, token)
        daemon.stop()
        log = daemon.stderr()
        lines = log.split("\n")[:-1]
        assert log.isascii(), style
        assert "\x1b" not in log, style
        assert len(lines) == 4, f"handshake, two requests and the end, in {style}: {log}"
        assert not [line for line in lines if line.startswith("2025-01-01")], style


def test_nothing_secret_is_logged_at_any_level(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--log-level", "debug")
    token = _shake_hands(daemon, "secretive")
    send(daemon.url, "/shell/start", {"connection": LOCAL}, token)
    command = {"connection": LOCAL, "command": "printf canary-command", "stdin": "canary-stdin"}
    assert send(daemon.url, "/shell/exec", command, token).json["stdout"] == "canary-command"
    send(daemon.url, "/secret/encrypt", {"value": "canary-secret"}, token)
    send(daemon.url, "/vault/unlock", {"user": "nobody", "passphrase": "canary-passphrase"}, token)
    send(daemon.url, "/daemon/version?token=canary-query", {}, token)
    credential = daemon.auth_file.read_text().strip()
    daemon.stop()
    log = daemon.stderr()
    assert "canary" not in log
    assert token["Authorization"].removeprefix("Bearer ") not in log
    assert credential not in log
