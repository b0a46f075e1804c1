"""Programs that know nothing of tunnels, through them: psql, and curl with SOCKS."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from tests.deadlines import DEADLINE_SECONDS
from tests.tunnels.services import Tunnels
from tests.vault.conftest import postgres as postgres
from tests.vault.postgres import Postgres


@pytest.mark.needs("postgres")
def test_a_database_answers_through_a_tunnel(tunnels: Tunnels, far: str, postgres: Postgres) -> None:
    import psycopg

    dsn = urlsplit(postgres.dsn(postgres.create()).replace("postgresql+psycopg", "postgresql"))
    id, port = tunnels.open("customService", far, "db", remotePort=dsn.port, address="127.0.0.1")
    moved = dsn._replace(netloc=dsn.netloc.rpartition(":")[0] + f":{port}").geturl()
    with psycopg.connect(moved, connect_timeout=20) as connected:
        rows = connected.execute("SELECT repeat('x', 1000), n FROM generate_series(1, 5000) AS n").fetchall()
    assert [number for _, number in rows] == list(range(1, 5001))
    psql = [
        "psql",
        "--no-psqlrc",
        "--tuples-only",
        "--no-align",
        "--command",
        "SELECT sum(n) FROM generate_series(1, 5000) AS n",
    ]
    told = subprocess.run([*psql, moved], capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
    assert told.stdout == "12502500\n"
    assert tunnels.until(id, lambda told: not told["streams"])["bytesIn"] > 5_000_000
    tunnels.remove(id)


class _Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        page = f"{self.headers['Host']} {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[int]:
    """The port of a web server that keeps connections alive."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.needs("curl")
@pytest.mark.parametrize("scheme", ["socks5h", "socks4a", "socks5"])
def test_curl_reaches_pages_by_socks(tunnels: Tunnels, far: str, web: int, scheme: str) -> None:
    id, port = tunnels.open("sshDynamicTunnel", far)
    urls = [f"http://localhost:{web}/{number}" for number in range(20)]
    argv = ["curl", "-sS", "--fail", "--proxy", f"{scheme}://127.0.0.1:{port}", *urls]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(f"localhost:{web} /{number}" for number in range(20))
    tunnels.remove(id)


def test_many_requests_at_once_as_a_browser_sends_them(tunnels: Tunnels, far: str, web: int) -> None:
    id, port = tunnels.open("customService", far, remotePort=web, address="127.0.0.1")
    script = (
        "import http.client, sys, concurrent.futures as f\n"
        "def page(n):\n"
        "    c = http.client.HTTPConnection('127.0.0.1', int(sys.argv[1]), timeout=30)\n"
        "    for m in range(20):\n"
        "        c.request('GET', f'/{n}/{m}'); assert c.getresponse().read().decode().endswith(f' /{n}/{m}')\n"
        "    c.close(); return 20\n"
        "with f.ThreadPoolExecutor(12) as pool: print(sum(pool.map(page, range(12))))\n"
    )
    argv = [sys.executable, "-c", script, str(port)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=False)
    assert (done.stdout, done.stderr) == ("240\n", "")
    tunnels.remove(id)
