"""``/daemon/status`` and ``/metrics``."""

from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from connmgr import __version__
from tests.api.wire import LOCAL, ROOT_CATEGORY, send, talk
from tests.daemon import Daemon
from tests.deadlines import eventually


def _status(daemon: Daemon) -> dict[str, Any]:
    answer = daemon.client.post("/daemon/status")
    assert isinstance(answer, dict)
    return answer


def _token(daemon: Daemon) -> dict[str, str]:
    auth = {"type": "local", "authFileContent": daemon.auth_file.read_text()}
    answer = send(daemon.url, "/handshake", {"auth": auth, "client": {"type": "api", "name": "scraper"}})
    return {"Authorization": f"Bearer {answer.json['sessionToken']}"}


def _metrics(daemon: Daemon) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = send(daemon.url, "/metrics", headers=_token(daemon), method="GET")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.body.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def test_status_of_an_idle_daemon(own_daemon: Daemon) -> None:
    status = _status(own_daemon)
    assert status["version"] == __version__
    assert status["pid"] == own_daemon.pid
    assert status["uptime"] > 0
    assert status["slots"] == {"inUse": 0, "count": 64}
    assert status["sessions"] == []
    assert status["blobs"] == {"count": 0, "bytes": 0}
    assert (status["clients"], status["auditLost"]) == (1, 0)
    assert status["environment"] == {"path": own_daemon.environment["PATH"]}


def test_status_tells_what_happened_in_the_last_hour(own_daemon: Daemon) -> None:
    own_daemon.client.post("/shell/start", connection=LOCAL)
    for command in ("true", "exit 3"):
        own_daemon.client.post("/shell/exec", connection=LOCAL, command=command)
    activity = _status(own_daemon)["activity"]
    assert {name: len(numbers) for name, numbers in activity.items() if name != "since"} == {
        "commands": 60,
        "linksUp": 60,
        "linksLost": 60,
    }
    # A minute may have ended meanwhile.
    assert sum(activity["commands"][-2:]) == sum(activity["commands"]) == 2
    assert sum(activity["linksUp"]) == 1
    since = datetime.fromisoformat(activity["since"].replace("Z", "+00:00"))
    assert since.second == 0
    assert 59 * 60 <= (datetime.now(timezone.utc) - since).total_seconds() <= 61 * 60


def test_status_shows_a_busy_shell_and_the_commands_that_wait_for_it(own_daemon: Daemon) -> None:
    own_daemon.client.post("/shell/start", connection=LOCAL)
    (idle,) = _status(own_daemon)["sessions"]
    assert (idle["connection"], idle["state"], idle["waiting"]) == (LOCAL, "idle", 0)
    release = own_daemon.home / "release"
    command = f"while ! [ -e {release} ]; do sleep 0.05; done"
    tokens = [_token(own_daemon) for _ in range(2)]
    runs = [
        threading.Thread(
            target=send, args=(own_daemon.url, "/shell/exec", {"connection": LOCAL, "command": command}, token)
        )
        for token in tokens
    ]
    for run in runs:
        run.start()
    try:
        status = eventually(
            lambda: _status(own_daemon),
            "the second command does not wait for the first",
            holds=lambda status: status["slots"]["inUse"] == 2 and status["sessions"][0]["waiting"],
        )
        (busy,) = status["sessions"]
        assert (busy["state"], busy["idle"], busy["waiting"]) == ("busy", 0.0, 1)
        assert _metrics(own_daemon)["connmgr_slots_in_use", frozenset()] == 2
    finally:
        release.touch()
        for run in runs:
            run.join(30)
    assert _status(own_daemon)["slots"]["inUse"] == 0


def test_the_client_reads_the_same(own_daemon: Daemon) -> None:
    own_daemon.client.post("/shell/start", connection=LOCAL)
    status = own_daemon.client.daemon.status()
    assert (status.version, status.pid, status.slots.count, status.slots.in_use) == (__version__, own_daemon.pid, 64, 0)
    (shell,) = status.sessions
    assert (shell.connection, shell.state, shell.waiting) == (LOCAL, "idle", 0)


def test_metrics_need_a_token(daemon: Daemon) -> None:
    assert send(daemon.url, "/metrics", method="GET").status == 401
    assert send(daemon.url, "/metrics", {}, _token(daemon)).status == 405


def test_metrics_count_requests_commands_shells_and_blobs(own_daemon: Daemon) -> None:
    client = own_daemon.client
    client.post("/shell/start", connection=LOCAL)
    for _ in range(3):
        client.post("/shell/exec", connection=LOCAL, command="true")
    client.fs.blob(b"12345")
    send(own_daemon.url, "/nowhere/at/all", {})
    send(own_daemon.url, "/handshake", b" " * 100_000)
    talk(own_daemon.url, b"nonsense\r\n\r\n")
    measured = _metrics(own_daemon)

    def requests(path: str, status: str) -> float:
        return measured["connmgr_requests_total", frozenset({("path", path), ("status", status)})]

    assert requests("/shell/exec", "200") == 3
    assert (requests("/handshake", "413"), requests("", "400")) == (1, 1)
    assert requests("", "404") == 1, "a path that does not exist is no label: there would be no end of them"
    assert measured["connmgr_exec_seconds_count", frozenset()] == 3
    assert measured["connmgr_exec_seconds_bucket", frozenset({("le", "+Inf")})] == 3
    assert measured["connmgr_request_seconds_count", frozenset({("path", "/shell/exec")})] == 3
    assert 0 < measured["connmgr_exec_seconds_sum", frozenset()] < 300
    assert measured["connmgr_open_shells", frozenset()] == 1
    assert (measured["connmgr_blobs", frozenset()], measured["connmgr_blob_bytes", frozenset()]) == (1, 5)
    assert measured["connmgr_uptime_seconds", frozenset()] > 0
    assert measured["connmgr_audit_lost_total", frozenset()] == 0
    changes = measured["connmgr_vault_changes_total", frozenset()]
    client.post("/category/add", name="another", parent=ROOT_CATEGORY)
    assert _metrics(own_daemon)["connmgr_vault_changes_total", frozenset()] >= changes + 1
    assert measured["connmgr_build_info", frozenset({("version", __version__)})] == 1
