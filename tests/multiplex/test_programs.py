"""Programs that call ssh in their own ways, over the hosts of ``connmgr ssh-config``: as themselves, and as root."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer

import paramiko
import pytest

from tests.cli.program import DIRECTORY, CommandLine
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.multiplex.behind import Hosts
from tests.multiplex.test_tools import root as opened_root  # noqa: F401 - a fixture
from tests.plugins.machine import Machine
from tests.ports import reserved_port

pytestmark = pytest.mark.needs("sshd", "ssh", "bash")


def _printed(hosts: Hosts) -> Hosts:
    hosts.config.write_text(hosts.connmgr("ssh-config").output)
    return hosts


@pytest.fixture
def here(clean_connmgr: CommandLine) -> Iterator[Hosts]:
    """The daemon's machine as a host."""
    yield _printed(Hosts(clean_connmgr))
    clean_connmgr.daemon.client.post("/multiplex/close")


@pytest.fixture
def root(opened_root: Hosts) -> Hosts:  # noqa: F811 - the fixture
    """The host ``web+root``, by what ``connmgr ssh-config`` prints."""
    return _printed(opened_root)


def test_vs_code_types_into_bash_and_reaches_its_server_by_socks(here: Hosts) -> None:
    # Remote-SSH runs `ssh -T -D PORT HOST bash`, types a script, reads where its server listens, and goes there.
    with (
        reserved_port() as port,
        socket.create_server(("127.0.0.1", 0)) as service,
        here.running("-T", "-D", str(port), "-o", "ConnectTimeout=15", "local", "bash") as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b'echo "$0 listeningOn==7=="\n')
        process.stdin.flush()
        assert process.stdout.readline() == b"bash listeningOn==7==\n"
        service.settimeout(DEADLINE_SECONDS)
        with socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS) as client:
            client.sendall(b"\x05\x01\x00")
            assert client.recv(2) == b"\x05\x00"
            there = service.getsockname()[1].to_bytes(2, "big")
            client.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + there)
            assert client.recv(2) == b"\x05\x00"
            with service.accept()[0] as accepted:
                accepted.sendall(b"server")
                client.recv(8)
                assert client.recv(6) == b"server"
        process.stdin.write(b"exit 5\n")
        process.stdin.close()
        assert process.wait(DEADLINE_SECONDS) == 5


def test_an_agent_that_calls_ssh_gets_output_errors_and_exit_code(here: Hosts) -> None:
    # As agents on a command line do: no terminal, BatchMode, the command as one word.
    done = here.ssh("-o", "BatchMode=yes", "local", "--", "sh -c 'echo out; echo err >&2; exit 3'", code=3)
    assert (done.stdout, done.stderr) == (b"out\n", b"err\n")


_TRAMP = """
(require 'tramp)
(setq tramp-use-ssh-controlmaster-options nil tramp-verbose 1)
(push (list "-F" (getenv "CONFIG")) (cadr (assq 'tramp-login-args (assoc "ssh" tramp-methods))))
(let ((default-directory "/ssh:root:/root/"))
  (with-temp-buffer
    (insert-file-contents "settings")
    (goto-char (point-max))
    (insert "b = 2\n")
    (write-region nil nil "settings" nil 'silent))
  (princ (format "%S\n" (directory-files "." nil "sett")))
  (princ (shell-command-to-string "id -u; pwd")))
"""
"""Opens a file, adds a line, and runs a command beside it. The host has its last name: TRAMP takes no + in one."""


@pytest.mark.needs("machine", "sudo", "emacs")
def test_emacs_edits_files_and_runs_commands_as_root(root: Hosts, running_machine: Machine, tmp_path: Path) -> None:
    running_machine.write("/root/settings", "a = 1\n", 0o600)
    (tmp_path / "tramp.el").write_text(_TRAMP)
    environment = root.environment | {"CONFIG": str(root.config), "HOME": str(tmp_path)}
    done = root.run("emacs", "--batch", "-Q", "-l", str(tmp_path / "tramp.el"), env=environment)
    assert done.stdout == b'("settings")\n0\n/root\n'
    written = running_machine.path("/root/settings")
    assert (written.read_text(), stat.S_IMODE(written.stat().st_mode)) == ("a = 1\nb = 2\n", 0o600)


@pytest.mark.needs("machine", "sudo", "sshfs")
def test_sshfs_mounts_files_of_root(root: Hosts, running_machine: Machine, tmp_path: Path) -> None:
    running_machine.write("/root/settings", "a = 1\n", 0o600)
    there = tmp_path / "there"
    there.mkdir()
    # In the foreground, so that it ends with the test, and unmounts.
    argv = ["sshfs", "-f", "-F", str(root.config), "web+root:/root", str(there)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=root.environment) as process:
        try:
            eventually(lambda: there.is_mount() or process.poll() is not None, "sshfs does not mount")
            with (there / "settings").open("a") as file:
                file.write("b = 2\n")
            (there / "new").write_bytes(os.urandom(300_000))
            (there / "new").rename(there / "renamed")
            assert {"settings", "renamed"} <= {path.name for path in there.iterdir()}
        finally:
            process.terminate()
    assert not there.is_mount()
    written = running_machine.path("/root/settings")
    assert (written.read_text(), written.stat().st_uid) == ("a = 1\nb = 2\n", 0)
    assert running_machine.path("/root/renamed").stat().st_size == 300_000


class _Stream(socket.socket):
    """A socket as paramiko's SFTP wants its channel."""

    def get_name(self) -> str:
        return "ssh -s"


@pytest.mark.needs("machine", "sudo")
def test_a_library_edits_files_of_root_by_sftp(root: Hosts, running_machine: Machine) -> None:
    # As sshfs does, a client library speaks SFTP with `ssh -s HOST sftp`.
    running_machine.write("/root/settings", "a = 1\n", 0o600)
    pair, its = socket.socketpair()
    ours = _Stream(fileno=pair.detach())
    argv = ["ssh", "-F", str(root.config), "-s", "web+root", "sftp"]
    with subprocess.Popen(argv, stdin=its, stdout=its, env=root.environment) as process, closing(ours):
        its.close()
        sftp = paramiko.SFTPClient(ours)  # type: ignore[arg-type] # any socket will do
        with sftp.open("/root/settings", "r+") as file:
            assert file.read() == b"a = 1\n"
            file.write(b"b = 2\n")
        with sftp.open("/root/new", "wx") as file:
            file.write(os.urandom(300_000))
        sftp.chmod("/root/new", 0o640)
        sftp.posix_rename("/root/new", "/root/renamed")
        assert sftp.stat("/root/renamed").st_size == 300_000
        assert {"renamed", "settings"} <= set(sftp.listdir("/root"))
        with pytest.raises(FileNotFoundError):
            sftp.stat("/root/missing")
        ours.close()
        assert process.wait(DEADLINE_SECONDS) == 0
    written = running_machine.path("/root/settings")
    assert (written.read_text(), written.stat().st_uid) == ("a = 1\nb = 2\n", 0)
    assert stat.S_IMODE(running_machine.path("/root/renamed").stat().st_mode) == 0o640


@pytest.mark.needs("machine", "sudo", "git")
def test_git_pushes_into_a_repository_of_root(root: Hosts, running_machine: Machine, tmp_path: Path) -> None:
    root.ssh("web+root", "git init -q --bare /root/site.git && chmod 700 /root/site.git")
    who = {f"GIT_{who}_{what}": "a@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = (
        root.environment
        | who
        | {
            "GIT_SSH_COMMAND": f"ssh -F {root.config}",
            "GIT_CONFIG_GLOBAL": os.devnull,
        }
    )

    def git(*words: str) -> bytes:
        return root.run("git", "-C", str(tmp_path), *words, env=environment).stdout

    git("init", "-q", "-b", "main", "site")
    (tmp_path / "site" / "page").write_text("hello\n")
    git("-C", "site", "add", "page")
    git("-C", "site", "commit", "-qm", "first")
    git("-C", "site", "push", "-q", "web+root:/root/site.git", "main")
    git("clone", "-q", "-b", "main", "web+root:/root/site.git", "again")
    assert (tmp_path / "again" / "page").read_text() == "hello\n"
    assert running_machine.path("/root/site.git/HEAD").stat().st_uid == 0


@pytest.mark.skipif(shutil.which("ansible-playbook", path=DIRECTORY) is None, reason="needs ansible-core")
@pytest.mark.needs("machine", "sudo")
@pytest.mark.slow
def test_ansible_s_own_ssh_plugin_is_root(root: Hosts, running_machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text("web+root ansible_python_interpreter=/usr/bin/python3\n")
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        "    - copy: {dest: /root/motd, content: hello, mode: '0600'}\n"
        "    - command: id -u\n      register: who\n"
        "    - assert: {that: who.stdout == '0'}\n"
    )
    settings = {
        # Without it Ansible gives ssh a ControlPath of its own.
        "ANSIBLE_SSH_ARGS": "",
        "ANSIBLE_SSH_COMMON_ARGS": f"-F {root.config}",
        "ANSIBLE_HOST_KEY_CHECKING": "yes",
        "ANSIBLE_HOME": str(tmp_path / "ansible"),
    }
    argv = [str(DIRECTORY / "ansible-playbook"), "-i", str(tmp_path / "inventory"), str(tmp_path / "play.yml")]
    done = root.run(*argv, env=root.environment | settings, cwd=tmp_path)
    assert b"ok=3    changed=2" in done.stdout, done.stdout
    written = running_machine.path("/root/motd")
    assert (written.read_text(), written.stat().st_uid) == ("hello", 0)


PROGRAMS = [
    ("lftp", "-c", "open sftp://web+root; cat /root/settings"),
    ("pdsh", "-N", "-R", "ssh", "-w", "web+root", "cat /root/settings"),
    ("clush", "-N", "-w", "web+root", "cat /root/settings"),
    # It takes no + in the name of a host.
    ("parallel", "-S", "root", "--plain", "cat", ":::", "/root/settings"),
]


@pytest.mark.needs("machine", "sudo")
@pytest.mark.parametrize(
    "argv", [pytest.param(argv, id=argv[0], marks=pytest.mark.needs(argv[0])) for argv in PROGRAMS]
)
def test_programs_that_find_ssh_by_its_name_read_files_of_root(
    root: Hosts, running_machine: Machine, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    # None of them has an option for a configuration that it shares with the others.
    running_machine.write("/root/settings", "a = 1\n", 0o600)
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {root.config} "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    environment = root.environment | {"PATH": f"{tmp_path}:{root.environment['PATH']}", "HOME": str(tmp_path)}
    assert root.run(*argv, env=environment).stdout == b"a = 1\n"


class _Engine(BaseHTTPRequestHandler):
    """Answers what Docker's client asks first."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(b"[]" if "/containers/json" in self.path else b"OK")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "a client"

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.mark.skipif(shutil.which("docker") is None, reason="needs docker: Docker's client is not installed")
def test_docker_reaches_the_engine_of_a_host(here: Hosts, tmp_path: Path) -> None:
    # Its client calls `ssh … -- HOST docker system dial-stdio`, and has no option for a configuration.
    real = shutil.which("ssh")
    sets = f'-o SetEnv=DOCKER_HOST="unix://{tmp_path}/engine"'
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {here.config} {sets} "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    with ThreadingUnixStreamServer(str(tmp_path / "engine"), _Engine) as engine:
        thread = threading.Thread(target=engine.serve_forever)
        thread.start()
        try:
            environment = {**here.environment, "PATH": f"{tmp_path}:{here.environment['PATH']}"}
            done = here.run("docker", "-H", "ssh://local", "ps", "-q", env=environment)
        finally:
            engine.shutdown()
            thread.join(DEADLINE_SECONDS)
    assert (done.stdout, done.stderr) == (b"", b"")
