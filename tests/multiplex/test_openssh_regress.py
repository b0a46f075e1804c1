"""OpenSSH's own regression tests of multiplexing and of sessions, against the daemon in place of a master.

These are ``regress/multiplex.sh``, and the scripts that test what a session carries. They come from Debian's source
package and are run as they are, but for the ports that multiplex.sh names. What surrounds them in OpenSSH's tree is
replaced: the functions and variables that they use, a netcat, and an ssh that takes the daemon's control socket where
multiplex.sh starts a master. docs/API.md lists what is left out.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.components import openssh_source
from tests.multiplex.behind import Hosts
from tests.plugins.oneself import ssh_server
from tests.plugins.sshd import Sshd
from tests.ports import reserved_port

# OpenSSH's script has pauses of its own, and its source is fetched first.
pytestmark = [pytest.mark.needs("sshd", "ssh", "bash", "openssh-source"), pytest.mark.timeout(300)]

LEFT_OUT = {f"test connection multiplexing: status {status} (-Oproxy)" for status in (0, 1, 4, 5, 44)}
"""The parts of the script that fail: the daemon does not speak SSH at a control socket."""

PORTS = ("P=3301", "$((${PORT} + 1))", "$((${PORT} + 2))")
"""Where multiplex.sh names the ports that it listens on. Another program may have them: reserved ones replace them."""

HARNESS = r"""
make_tmpdir() { SSH_REGRESS_TMP=$OBJ; }
config_defined() { return 1; }
maybe_add_scp_path_to_sshd() { :; }
start_sshd() { :; }
trace() { part=$*; }
verbose() { part=$*; echo "begin $*" >>"$OBJ/parts"; }
fail() { echo "$part" >>"$OBJ/failed"; echo "$part: $*" >&2; }
fatal() { fail "$@"; exit 1; }
# The script waits by time, for its netcat and for nothing else: a forward listens before ssh has its answer.
md5() { md5sum; }
sleep() {
    [ -z "${netcat_pid-}" ] || until [ -e "$OBJ/listens.$netcat_pid" ]; do command sleep 0.02; done
}
"""

SLEEP = """#!/bin/sh
# The seconds for which the script's commands sleep on the remote host are tenths here: only their order matters.
exec /bin/sleep "0.$1"
"""

SSH = r"""#!/bin/sh
# Where a master is to be started, the daemon is one already.
for word; do
    case $word in -MS*) exec ln -sf "$SOCKET" "${word#-MS}" ;; esac
done
exec ssh "$@"
"""

NETCAT = r"""
import os, socket, sys, threading
words = sys.argv[1:]
is_unix, listens = any("U" in w for w in words if w[0] == "-"), any("l" in w for w in words if w[0] == "-")
places = [w for w in words if w[0] != "-"]
at = places[0] if is_unix else (places[0], int(places[1]))
s = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
s.settimeout(20)
if listens:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(at)
    s.listen()
    open(f"{os.environ['OBJ']}/listens.{os.getpid()}", "w").close()
    s, _ = s.accept()
else:
    s.connect(at)
def send():
    while data := os.read(0, 65536):
        s.sendall(data)
    if listens:
        s.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := s.recv(65536):
    os.write(1, data)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """An SSH server whose users find another sleep."""
    directory = tmp_path_factory.mktemp("programs")
    (directory / "sleep").write_text(SLEEP)
    (directory / "sleep").chmod(0o755)
    home = tmp_path_factory.mktemp("far")
    variables = f"LANG=C.UTF-8 HOME={home} PATH={directory}:{os.defpath}"
    with ssh_server(home, AllowTcpForwarding="yes", SetEnv=variables) as server:
        yield server


SESSIONS = (
    "broken-pipe",
    "exit-status",
    "exit-status-signal",
    "stderr-after-eof",
    "stderr-data",
    "transfer",
    "yes-head",
)
"""The scripts about sessions. Others test the server, or what ssh is told, or begin by another way to connect."""


class _Regress:
    """OpenSSH's scripts, run in ``scratch`` with their functions and variables."""

    def __init__(self, hosts: Hosts, server: Sshd, scratch: Path) -> None:
        source = openssh_source()
        assert source is not None, "the component is there"
        self._hosts, self._scratch, self._source = hosts, scratch, source
        for name, text in {"ssh": SSH, "netcat": NETCAT}.items():
            (scratch / name).write_text(text)
            (scratch / name).chmod(0o755)
        (scratch / "data").write_bytes(os.urandom(1_000_000))
        self._variables = {
            "OBJ": scratch,
            "DATA": scratch / "data",
            "COPY": scratch / "copy",
            "SSH": scratch / "ssh",
            "SFTP": shutil.which("sftp"),
            "SCP": shutil.which("scp"),
            "NC": f"{sys.executable} -I -S {scratch}/netcat",
            "PORT": server.port,
            "TEST_REGRESS_LOGFILE": scratch / "log",
            "TEST_SSH_LOGFILE": scratch / "log",
            "proxycmd": "",
        }

    def run(
        self, script: str, config: Mapping[str, object], *configs: str, instead: Mapping[str, str] | None = None
    ) -> tuple[list[str], set[str], str]:
        """Run a script with ``config`` in files called ``configs``; return its parts, those that failed, and stderr.

        The keys of ``instead`` are texts of the script, each replaced by its value.
        """
        text = (self._source / f"{script}.sh").read_text()
        for old, new in (instead or {}).items():
            assert old in text, f"{script}.sh has no {old}"
            text = text.replace(old, new)
        (self._scratch / "script").write_text(text)
        for name in configs:
            lines = "".join(f"    {keyword} {value}\n" for keyword, value in config.items())
            (self._scratch / name).write_text(f"Host *\n{lines}")
        setting = "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in self._variables.items())
        end = f"echo finished >>{self._scratch}/parts\n"
        (self._scratch / "run").write_text(f"{setting}{HARNESS}. {self._scratch}/script\n{end}")
        for name in ("failed", "parts"):
            (self._scratch / name).touch()
        done = self._hosts.run(
            "sh",
            str(self._scratch / "run"),
            env=self._hosts.environment | {"SOCKET": self._hosts.paths["web"], "OBJ": str(self._scratch)},
            cwd=self._scratch,
            code=None,
            timeout=240,
        )
        begun = (self._scratch / "parts").read_text().splitlines()
        assert begun[-1:] == ["finished"], done.stderr.decode()
        return begun, set((self._scratch / "failed").read_text().splitlines()), done.stderr.decode()


@pytest.mark.parametrize("script", SESSIONS)
def test_scripts_of_sessions(hosts: Hosts, server: Sshd, tmp_path: Path, script: str) -> None:
    config = {"ControlPath": hosts.paths["web"], "ControlMaster": "no", "ProxyCommand": "false"}
    _, failed, errors = _Regress(hosts, server, tmp_path).run(
        script, config, "ssh_proxy", "ssh_config", "ssh_config_config"
    )
    assert not failed, errors


def test_multiplex_sh(hosts: Hosts, server: Sshd, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text(server.known_hosts("localhost-with-alias"))
    with ExitStack() as reserved:
        ports = [str(reserved.enter_context(reserved_port())) for _ in PORTS]
        begun, failed, errors = _Regress(hosts, server, tmp_path).run(
            "multiplex",
            {
                "HostName": "127.0.0.1",
                "HostKeyAlias": "localhost-with-alias",
                "Port": server.port,
                "User": server.user,
                "IdentityFile": server.client_key,
                "UserKnownHostsFile": tmp_path / "known_hosts",
                "BatchMode": "yes",
            },
            "ssh_config",
            instead=dict(zip(PORTS, (f"P={ports[0]}", *ports[1:]), strict=True)),
        )
    assert len(begun) > 15
    exits = {
        f"exit status {status} {early}over multiplexed connection (-Oproxy)"
        for status in (0, 1, 4, 5, 44)
        for early in ("", "with early close ")
    }
    assert failed - exits - LEFT_OUT == set(), errors
    assert failed >= LEFT_OUT, "what is left out is not: take it from the list"
