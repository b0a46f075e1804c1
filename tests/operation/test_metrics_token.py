"""The static token of ``metrics-token-file``: only for /metrics, across restarts, and from a safe file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.wire import send
from tests.conftest import StartDaemon
from tests.daemon import Daemon, DaemonExitedError
from tests.unsafe_files import fifo, linked, open_to_others

TOKEN = "3f0c9a51d77be2846b1290cfe4a8d563"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


def _status(daemon: Daemon, token: str, path: str = "/metrics", method: str = "GET") -> int:
    body = None if method == "GET" else {}
    return send(daemon.url, path, body, {"Authorization": f"Bearer {token}"}, method=method).status


def test_the_token_works_for_metrics_and_after_a_restart(start_daemon: StartDaemon, file: Path) -> None:
    daemon = start_daemon("--metrics-token-file", str(file))
    assert _status(daemon, TOKEN) == 200
    daemon.stop()
    again = start_daemon("--metrics-token-file", str(file), home=daemon.home)
    assert _status(again, TOKEN) == 200
    assert TOKEN not in again.stderr()


def test_the_token_works_for_nothing_else_and_other_tokens_for_nothing(start_daemon: StartDaemon, file: Path) -> None:
    daemon = start_daemon("--metrics-token-file", str(file))
    for path in ("/daemon/status", "/connection/query", "/shell/exec", "/vault/status", "/daemon/stop"):
        assert (path, _status(daemon, TOKEN, path, "POST")) == (path, 403)
    for wrong in (TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), "é" * 32):
        assert (wrong, _status(daemon, wrong)) == (wrong, 403)
    assert send(daemon.url, "/metrics", headers={"Authorization": f"Basic {TOKEN}"}, method="GET").status == 401
    assert send(daemon.url, "/metrics", method="GET").status == 401


def test_without_the_setting_the_token_is_invalid(daemon: Daemon) -> None:
    assert _status(daemon, TOKEN) == 403


def test_a_new_token_applies_at_once_and_an_unsafe_file_never(start_daemon: StartDaemon, file: Path) -> None:
    daemon = start_daemon("--metrics-token-file", str(file))
    file.write_text(TOKEN[::-1])
    assert (_status(daemon, TOKEN), _status(daemon, TOKEN[::-1])) == (403, 200)
    file.chmod(0o640)
    assert _status(daemon, TOKEN[::-1]) == 403
    assert f"chmod 600 {file}" in daemon.stderr()
    file.unlink()
    assert _status(daemon, TOKEN[::-1]) == 403


def _missing(path: Path) -> None:
    path.unlink()


def _short(path: Path) -> None:
    path.write_text("guessed")


def _two_words(path: Path) -> None:
    path.write_text(f"{TOKEN} {TOKEN}")


@pytest.mark.parametrize("spoil", [_missing, open_to_others, linked, fifo, _short, _two_words])
def test_an_unsafe_or_malformed_file_is_refused(tmp_path: Path, file: Path, spoil: Callable[[Path], None]) -> None:
    spoil(file)
    with pytest.raises(DaemonExitedError) as refused:
        Daemon(tmp_path / "home", "--metrics-token-file", str(file))
    assert refused.value.returncode == 1
    assert str(file) in refused.value.stderr
    assert TOKEN not in refused.value.stderr
    assert not (tmp_path / "home" / "data" / "connmgr" / "vault.db").exists()
