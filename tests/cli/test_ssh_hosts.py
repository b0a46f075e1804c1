"""``connmgr ssh-config``: connections as hosts of OpenSSH's own ``ssh``, and the file that is kept current."""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import pexpect
import psutil
import pytest

from connmgr.client import LOCAL_MACHINE
from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine
from tests.conftest import StartDaemon
from tests.deadlines import DEADLINE_SECONDS, eventually
from tests.rights.wire import create

pytestmark = pytest.mark.needs("bash", "ssh")


class _Hosts:
    """The hosts of a command line's daemon, by ``config``, the file of ``ssh -F``."""

    def __init__(self, connmgr: CommandLine, config: Path) -> None:
        self.connmgr, self.config = connmgr, config

    def printed(self, *words: str) -> str:
        """Print hosts into the file."""
        text = self.connmgr("ssh-config", *words).output
        self.config.write_text(text)
        return text

    def ssh(self, *words: str, code: int = 0, program: str = "ssh", stdin: bytes = b"") -> tuple[str, str]:
        """Run ``ssh`` to its end, and return its output and its errors."""
        done = subprocess.run(
            [program, "-F", str(self.config), *words],
            env=self.connmgr.environment,
            cwd=self.connmgr.daemon.home,
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=False,
            start_new_session=True,
        )
        assert done.returncode == code, (words, done)
        return done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def hosts(own_connmgr: CommandLine, tmp_path: Path) -> _Hosts:
    return _Hosts(own_connmgr, tmp_path / "config")


@pytest.fixture
def person(own_connmgr: CommandLine) -> _Hosts:
    """The hosts of a person with a ``~/.ssh/config``."""
    directory = own_connmgr.daemon.home / ".ssh"
    directory.mkdir(mode=0o700)
    return _Hosts(own_connmgr, directory / "config")


def _names(text: str) -> list[str]:
    return re.findall("^Host (.*)$", text, re.MULTILINE)


def test_ssh_runs_commands_on_the_printed_hosts(hosts: _Hosts) -> None:
    assert _names(hosts.printed()) == ["local"]
    assert hosts.ssh("local", "echo out; echo err >&2; exit 7", code=7) == ("out\n", "err\n")
    assert hosts.ssh("local", "cat", stdin=b"in")[0] == "in"


def test_hosts_are_called_by_last_names_or_whole_paths(hosts: _Hosts) -> None:
    connmgr = hosts.connmgr
    for name in ("web1", "web2"):
        connmgr("add", "ssh", name, f"host={name}.example", "user=deploy")
    connmgr("add", "shellEnvironment", "root", "host=web1", "elevated=yes")
    assert _names(hosts.printed()) == ["local", "web1", "root web1+root", "web2"]
    connmgr("add", "shellEnvironment", "root", "host=web2", "elevated=yes")
    assert _names(hosts.printed()) == ["local", "web1", "web1+root", "web2", "web2+root", "root"]
    # A name of several is refused, since ssh would look for a machine of that name.
    _, errors = hosts.ssh("root", "true", code=255)
    assert errors.splitlines()[0] == (
        "connmgr: root is the name of several connections; call one by its path: web1+root, web2+root."
    )
    assert _names(hosts.printed("web*")) == ["web1", "web2"]
    assert _names(hosts.printed("web1/*", "web2")) == ["web1+root", "web2", "root"]
    connmgr("add", "ssh", "a b", "host=h")
    done = connmgr("ssh-config")
    assert "a b" not in done.output
    assert done.errors.startswith("Left out, because ssh does not accept the name or the user, or because a token")
    assert done.errors.endswith(": a b\n")
    assert "No connection is called 'web'" in connmgr("ssh-config", "web", code=5).errors


def test_another_user_or_port_is_refused_and_the_own_one_is_not(hosts: _Hosts, start_sshd: StartSshd) -> None:
    server = start_sshd()
    hosts.connmgr.add_ssh("web", server)
    hosts.printed()
    user, port = server.user, str(server.port)
    for words in (["web"], ["-p", port, "web"], ["-l", user, "web"], [f"{user}@web"], ["-o", f"Port={port}", "web"]):
        assert hosts.ssh(*words, "id -un")[0] == f"{user}\n"
    for words in (["-p", "22", "web"], ["-o", "Port=22", "web"], ["ssh://web:22"]):
        output, errors = hosts.ssh(*words, "echo ran", code=255)
        told = f"connmgr: web is a stored connection to port {port}, not to 22: leave the port out."
        assert (output, errors.splitlines()[0]) == ("", told)
    others = (["-o", "User=nobody", "web"], ["-S", "none", "web"], ["-o", "HostName=192.0.2.1", "web"])
    for words in (["-l", "nobody", "web"], ["nobody@web"], *others):
        output, errors = hosts.ssh(*words, "echo ran", code=255)
        assert output == ""
        assert errors.startswith(f"connmgr: web is a stored connection that logs in as {user}: leave the user out")


def test_ssh_says_the_reason_where_it_shows_no_errors_of_its_proxy_command(hosts: _Hosts) -> None:
    """With ControlPersist, Ansible's default, standard error of a ProxyCommand is /dev/null."""
    hosts.printed()
    own = ["-o", f"ControlPath={hosts.config}.own", "-o", "ControlMaster=auto"]
    for persist, said in (("no", "connmgr: "), ("60s", "Received disconnect from UNKNOWN port 65535:7: connmgr: ")):
        output, errors = hosts.ssh(*own, "-o", f"ControlPersist={persist}", "local", "echo ran", code=255)
        assert output == ""
        assert errors.count("local is a stored connection") == 1
        assert errors.startswith(f"{said}local is a stored connection"), errors
        assert "(-S, ControlPath), which Emacs and Ansible give by themselves" in errors


def test_another_client_gets_the_reason_as_a_disconnection(hosts: _Hosts) -> None:
    proxy = re.search(r"^    ProxyCommand (.*) %n %p$", hosts.printed(), re.MULTILINE)
    assert proxy is not None
    done = subprocess.run(
        [*shlex.split(proxy[1]), "local", "22"],
        env=hosts.connmgr.environment,
        input=b"SSH-2.0-Another_1.0\r\n",
        capture_output=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    line = b"connmgr: local is reached by OpenSSH's ssh, at the daemon's control socket, and Another_1.0 is another "
    line += b"client: have it run `ssh local`."
    assert (done.returncode, done.stderr) == (1, line + b"\n")
    version, _, packet = done.stdout.partition(b"\r\n")
    assert version == b"SSH-2.0-connmgr"
    # RFC 4253: the packet's length, its padding, SSH_MSG_DISCONNECT, SSH_DISCONNECT_SERVICE_NOT_AVAILABLE, and a text.
    size, padding, kind, reason, text = struct.unpack(">IBBII", packet[:14])
    assert (size, kind, reason, packet[14 : 14 + text]) == (len(packet) - 4, 1, 7, line)
    assert len(packet) % 8 == 0
    assert padding >= 4


def test_the_user_of_before_is_refused_after_a_change(hosts: _Hosts) -> None:
    hosts.connmgr("add", "ssh", "web", "host=web.example", "user=deploy")
    before = hosts.printed()
    hosts.connmgr("edit", "web", "user=root")
    assert hosts.printed() != before
    hosts.config.write_text(before)
    _, errors = hosts.ssh("web", "true", code=255)
    assert errors.startswith("connmgr: web is a stored connection that logs in as root")


def test_a_user_that_a_connection_does_not_say_cannot_be_named(hosts: _Hosts) -> None:
    hosts.connmgr("add", "docker", "box", "host=local", "containerName=box")
    text = hosts.printed("box")
    assert "    User as-stored\n" in text
    _, errors = hosts.ssh("root@box", "true", code=255)
    assert errors.startswith("connmgr: box is a stored connection that does not say whom it logs in as")


def test_without_a_daemon_one_line_says_so(hosts: _Hosts) -> None:
    hosts.printed()
    hosts.connmgr("stop")
    output, errors = hosts.ssh("local", "echo ran", code=255)
    assert output == ""
    assert errors.splitlines()[0] == (
        "connmgr: local is reached by connmgr's daemon, and none runs: `connmgr serve` starts one, `connmgr service "
        "install` has the system start it."
    )


def test_a_socket_that_was_closed_is_opened_for_the_next_try(hosts: _Hosts) -> None:
    hosts.printed()
    hosts.connmgr.daemon.client.post("/multiplex/close")
    _, errors = hosts.ssh("local", "true", code=255)
    assert (
        errors.splitlines()[0] == "connmgr: the socket of local was not open, and is open now: run the command again."
    )
    assert hosts.ssh("local", "echo here")[0] == "here\n"
    hosts.connmgr("add", "ssh", "web", "host=web.example")
    hosts.printed()
    hosts.connmgr("rm", "--yes", "web")
    assert "no connection is called web any more" in hosts.ssh("web", "true", code=255)[1]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_socket_whose_file_is_gone_is_opened_for_the_next_try(hosts: _Hosts, is_replaced: bool) -> None:
    hosts.printed()
    [socket] = hosts.connmgr.daemon.client.multiplex.query()
    Path(socket.path).unlink()
    if is_replaced:
        Path(socket.path).touch()
    _, errors = hosts.ssh("local", "true", code=255)
    assert "connmgr: the socket of local was not open, and is open now: run the command again." in errors.splitlines()
    assert hosts.ssh("local", "echo here")[0] == "here\n"


def test_a_pattern_that_matches_nothing_is_told(hosts: _Hosts) -> None:
    refused = hosts.connmgr("ssh-config", "nosuch*", "fleet/*", code=1)
    assert refused.output == ""
    assert "No connection with a shell matches 'nosuch*' or 'fleet/*'." in refused.errors


def test_hosts_of_a_token_have_its_rights_and_end_with_it(hosts: _Hosts, tmp_path: Path) -> None:
    connmgr, token = hosts.connmgr, tmp_path / "token"
    connmgr("add", "ssh", "web", "host=web.example")
    limits = ["--scope", "shell.any", "--only", "local*", "--expires", "1h"]
    token.write_text(connmgr("token", "create", "--for", "agent", *limits).output)
    hosts.config.write_text(connmgr("--token-file", str(token), "ssh-config").output)
    assert _names(hosts.config.read_text()) == ["local"]
    assert f"connmgr --token-file {token} ssh-config" in hosts.config.read_text()
    assert hosts.ssh("local", "uname")[0] == "Linux\n"
    _, errors = hosts.ssh("-N", "-L", "8080:127.0.0.1:80", "local", code=255)
    assert "The token lacks the scope tunnel" in errors
    assert "connmgr: If ssh says above that a forwarding request failed, only that is the reason." in errors
    refused = connmgr("--token-file", str(token), "ssh-config", "--write", "--yes", code=1)
    assert "owner's rights" in refused.errors
    [made] = connmgr("token", "ls", "--json").json
    connmgr("token", "revoke", made["id"])
    output, errors = hosts.ssh("local", "uname", code=255)
    assert output == ""
    assert errors.startswith("connmgr: ")
    assert "token" in errors.splitlines()[0]


def test_a_token_names_no_host_of_the_owner(hosts: _Hosts) -> None:
    daemon = hosts.connmgr.daemon
    daemon.client.connection.add("web", {"type": "ssh", "host": "web.example", "user": "deploy"})
    writer = create(daemon, "connection.write", "connection.read", "shell.any")
    data = {"type": "ssh", "host": "elsewhere.example", "user": "deploy"}
    made = writer.ok("/connection/add", name="github.com", data=data, validate=False)["connection"]
    writer.ok("/connection/add", name="web", data={**data, "user": "other"}, validate=False)
    assert _names(hosts.printed()) == ["local", "web"]
    told = hosts.connmgr("ssh-config").errors
    assert "a token has made or changed the connection" in told
    assert "github.com" in told
    daemon.client.connection.update(made, data={**data, "user": "owner"})
    assert _names(hosts.printed()) == ["github.com", "local", "web"]


def test_a_token_in_a_variable_alone_is_not_enough(hosts: _Hosts) -> None:
    text = hosts.connmgr("token", "create", "--for", "agent", "--scope", "shell.any", "--expires", "1h").output.strip()
    refused = hosts.connmgr("ssh-config", code=1, environment={"CONNMGR_TOKEN": text})
    assert "give --token-file" in refused.errors


def test_a_line_in_the_person_s_file_includes_the_hosts_and_goes_without_a_trace(person: _Hosts) -> None:
    before = b"# mine\nHost x\n  HostName x.example\n"
    person.config.write_bytes(before)
    person.config.chmod(0o644)
    refused = person.connmgr("ssh-config", "--write", code=2)
    assert "Cannot ask for confirmation: standard input is not a terminal. Give --yes." in refused.errors
    assert person.config.read_bytes() == before
    kept = person.connmgr.daemon.home / "config" / "connmgr" / "ssh_config"
    assert not kept.exists()
    person.connmgr("ssh-config", "--write", "--yes")
    assert person.config.read_bytes() == f'Include "{kept}"\n'.encode() + before
    assert stat.S_IMODE(person.config.stat().st_mode) == 0o644
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert person.config.with_name("config.before-connmgr").read_bytes() == before
    assert person.ssh("local", "echo here")[0] == "here\n"
    # Nothing is left to ask.
    person.connmgr("ssh-config", "--write", "loc*")
    assert person.config.read_bytes().count(b"Include") == 1
    person.connmgr("ssh-config", "--remove")
    assert person.config.read_bytes() == before
    assert sorted(path.name for path in person.config.parent.iterdir()) == ["config"]
    assert not kept.exists()
    assert list((person.connmgr.daemon.auth_file.parent / "ssh").iterdir()) == []
    assert person.connmgr("ssh-config", "--remove").output == "No hosts are kept.\n"


def test_hosts_of_the_person_that_lead_elsewhere_from_now_on_are_named(person: _Hosts) -> None:
    person.config.write_text('Host=local "other"\n  HostName x.example\nMatch host y\n  User y\nHost *\n  User me\n')
    told = person.connmgr("ssh-config", "--write", "--yes").errors
    assert f"Of {person.config} these hosts are connections of connmgr from now on: local\n" in told
    person.config.write_text("Host other\n  HostName x.example\n")
    assert "from now on" not in person.connmgr("ssh-config", "--write", "--yes").errors


def test_a_file_that_was_not_there_goes_again(person: _Hosts) -> None:
    person.connmgr("ssh-config", "--write", "--yes")
    assert stat.S_IMODE(person.config.stat().st_mode) == 0o600
    person.connmgr("ssh-config", "--remove")
    assert list(person.config.parent.iterdir()) == []


def test_a_file_that_was_empty_stays(person: _Hosts) -> None:
    person.config.touch(mode=0o644)
    person.connmgr("ssh-config", "--write", "--yes")
    person.connmgr("ssh-config", "--remove")
    assert [path.name for path in person.config.parent.iterdir()] == ["config"]
    assert person.config.read_bytes() == b""
    assert stat.S_IMODE(person.config.stat().st_mode) == 0o644


def test_links_in_a_circle_are_told(person: _Hosts) -> None:
    person.config.symlink_to(person.config.name)
    for option in (("--write", "--yes"), ("--remove",)):
        refused = person.connmgr("ssh-config", *option, code=1)
        assert refused.errors == f"Error: {person.config} cannot be read: Too many levels of symbolic links\n"


def test_a_link_and_later_changes_of_the_person_stay(person: _Hosts, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles"
    real.write_text("Host x\n")
    person.config.symlink_to(real)
    person.connmgr("ssh-config", "--write", "--yes")
    assert person.config.is_symlink()
    with real.open("a") as file:
        file.write("Host y\n")
    done = person.connmgr("ssh-config", "--remove")
    assert real.read_text() == "Host x\nHost y\n"
    assert "its copy from before is" in done.errors
    assert (tmp_path / "dotfiles.before-connmgr").read_text() == "Host x\n"


def test_on_a_terminal_it_asks(person: _Hosts) -> None:
    person.config.write_text("Host x\n")
    for answer, changes in (("n", False), ("y", True)):
        terminal = person.connmgr.on_terminal("ssh-config", "--write")
        terminal.expect_exact("A copy is kept beside it. [y/N]: ")
        terminal.sendline(answer)
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert (terminal.exitstatus, "Include" in person.config.read_text()) == (0 if changes else 1, changes)


def test_the_kept_hosts_follow_the_connections(person: _Hosts) -> None:
    connmgr = person.connmgr
    connmgr("add", "ssh", "web1", "host=web1.example", "--category", "fleet")
    connmgr("ssh-config", "--write", "--yes", "fleet/**")
    kept = connmgr.daemon.home / "config" / "connmgr" / "ssh_config"

    def names() -> list[str]:
        return _names(kept.read_text())

    assert names() == ["web1"]
    connmgr("add", "ssh", "web2", "host=web2.example", "--category", "fleet")
    connmgr("add", "ssh", "other", "host=other.example")
    eventually(lambda: names() == ["web1", "web2"], "the file does not follow")
    connmgr("mv", "web1", "www")
    eventually(lambda: names() == ["web2", "www"], "the file does not follow")
    connmgr("rm", "--yes", "web2")
    eventually(lambda: names() == ["www"], "the file does not follow")
    # A file in its place that is not the daemon's stays as it is.
    kept.write_text("Host mine\n")
    connmgr("add", "ssh", "web3", "host=web3.example", "--category", "fleet")
    refused = connmgr("ssh-config", "--write", code=1)
    assert "is not a file of the daemon with the vault in" in refused.errors
    assert kept.read_text() == "Host mine\n"


def test_a_restarted_daemon_opens_the_kept_sockets_again(start_daemon: StartDaemon) -> None:
    first = start_daemon()
    connmgr = CommandLine(first)
    del connmgr.environment["CONNMGR_PORT"]
    connmgr("ssh-config", "--write", "--yes")
    config = first.home / ".ssh" / "config"
    assert _Hosts(connmgr, config).ssh("local", "echo here")[0] == "here\n"
    first.stop()
    second = CommandLine(start_daemon(home=first.home))
    del second.environment["CONNMGR_PORT"]
    eventually(lambda: bool(second.daemon.client.post("/multiplex/query")["sockets"]), "the file does not follow")
    assert _Hosts(second, config).ssh("local", "echo again")[0] == "again\n"


def test_the_daemon_logs_in_past_its_own_hosts(person: _Hosts, start_sshd: StartSshd) -> None:
    server = start_sshd()
    person.config.write_text(
        f"Host web\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
        f"  IdentityFile {server.client_key}\n  StrictHostKeyChecking accept-new\n"
    )
    person.connmgr("import-ssh-config", "--apply")
    person.connmgr("ssh-config", "--write", "--yes")
    assert person.ssh("web", "id -un")[0] == f"{server.user}\n"
    assert person.ssh("-p", str(server.port), "web", "true") == ("", "")
    assert [one["name"] for one in person.connmgr("import-ssh-config", "--json").json] == ["web"]


def test_unlocking_the_vault_unlocks_its_hosts(person: _Hosts, start_sshd: StartSshd) -> None:
    connmgr, server = person.connmgr, start_sshd()
    connmgr("vault", "user", "add", "me", stdin="correct horse\n")
    connmgr("vault", "unlock", "me", stdin="correct horse\n")
    key = server.client_key.read_text()
    public = " ".join(server.host_keys[0].with_suffix(".pub").read_text().split()[:2])
    data = [f"port={server.port}", f"user={server.user}", f"hostKey={public}"]
    connmgr("add", "ssh", "web", "host=127.0.0.1", *data, "--secret", "identity.key", stdin=key)
    connmgr("ssh-config", "--write", "--yes")
    assert person.ssh("web", "echo here")[0] == "here\n"
    connmgr("vault", "lock")
    connmgr("disconnect", "--yes", "web")
    output, errors = person.ssh("web", "echo here", code=255)
    assert (output, errors[:9]) == ("", "connmgr: ")
    connmgr("vault", "unlock", "me", stdin="correct horse\n")
    assert person.ssh("web", "echo here")[0] == "here\n"


def test_thousands_of_hosts_cost_ssh_little(hosts: _Hosts) -> None:
    daemon, number = hosts.connmgr.daemon, 5000
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * number:
        number = 400
    data = {"type": "ssh", "host": "web.example", "user": "deploy"}
    daemon.client.connection.apply(
        add=[{"name": f"web{one}", "data": {**data, "port": 1000 + one}} for one in range(number)]
    )
    process = psutil.Process(daemon.pid)
    daemon.client.post("/multiplex/query")
    threads, memory = process.num_threads(), process.memory_info().rss
    daemon.client.post("/multiplex/open")
    eventually(process.num_threads, "sockets hold threads", holds=lambda seen: seen <= threads + 2)
    assert process.memory_info().rss - memory < 40_000_000
    assert len(_names(hosts.printed())) == number + 1
    eventually(process.num_threads, "a listing holds threads", holds=lambda seen: seen <= threads + 2)
    assert hosts.ssh("local", "echo here")[0] == "here\n"


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_rsync_copies_to_a_host_by_its_name(hosts: _Hosts, tmp_path: Path) -> None:
    hosts.printed()
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "file").write_text("content")
    argv = ["rsync", "-a", "-e", f"ssh -F {hosts.config}", f"{tmp_path}/from/", f"local:{tmp_path}/to"]
    subprocess.run(argv, env=hosts.connmgr.environment, timeout=DEADLINE_SECONDS, check=True)
    assert (tmp_path / "to" / "file").read_text() == "content"


def test_the_local_machine_is_called_local(hosts: _Hosts) -> None:
    [one] = hosts.connmgr.daemon.client.post("/multiplex/config", program=["connmgr"])["hosts"]
    assert (one["connection"], one["names"], one["port"]) == (LOCAL_MACHINE, ["local"], 22)
    assert one["user"] == os.environ.get("USER", one["user"])
