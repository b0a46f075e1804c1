"""The options of a host in ~/.ssh/config."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from connmgr.errors import HostKeyChanged, HostKeyUnknown, TransportUnsupported
from connmgr.plugin import ClientEnvironment
from connmgr_ssh import Ssh
from connmgr_ssh import config as ssh_config
from connmgr_ssh.config import ConfigFiles, CurrentFiles, JumpHost, resolve
from tests.plugins.ssh.conftest import Connect, StartSshd
from tests.plugins.ssh.test_authentication import admit, whoami
from tests.plugins.sshd import Sshd, keygen

PATTERNS = ["*", "web?", "a,b", "|1|x", "@revoked", "#x", "!x", "[localhost]:2222"]


@pytest.fixture
def config(home: Path) -> Path:
    """The user's configuration, empty."""
    path = home / ".ssh" / "config"
    path.touch(mode=0o600)
    return path


def test_without_any_configuration(home: Path) -> None:
    destination = resolve("machine")
    assert (destination.host, destination.port, destination.user) == ("machine", 22, getpass.getuser())
    assert destination.identity_files is None
    assert not destination.jumps
    assert home / ".ssh" / "known_hosts" in destination.known_hosts


def test_an_alias_is_resolved(config: Path, home: Path) -> None:
    config.write_text(
        """
        # a comment
        User = everyone
        Host other
            HostName other.example.com
        Host "alias" al?*
            HostName %h.example.com
            Port=2222
            IdentityFile ~/.ssh/%r-%n
            IdentityFile "/keys/with blank"   # two are tried
            HostKeyAlias farm
            IdentitiesOnly yes
        """
    )
    destination = resolve("alias")
    assert (destination.host, destination.port, destination.user) == ("alias.example.com", 2222, "everyone")
    assert destination.identity_files == (str(home / ".ssh" / "everyone-alias"), "/keys/with blank")
    assert destination.host_key_alias == "farm"
    assert destination.identities_only
    assert resolve("other").host == "other.example.com"


def test_the_first_value_counts_and_identity_files_add_up(config: Path) -> None:
    config.write_text("Host a\n Port 1\n IdentityFile /1\nHost *\n Port 2\n IdentityFile /2\n IdentityFile /1\n")
    assert resolve("a").port == 1
    assert resolve("a").identity_files == ("/1", "/2")
    assert resolve("b").port == 2


def test_given_fields_outrank_the_configuration(config: Path) -> None:
    config.write_text("Host a\n Port 1\n User x\n")
    assert (resolve("a", 5, "y").port, resolve("a", 5, "y").user) == (5, "y")


@pytest.mark.parametrize(
    ("line", "fits"),
    [
        ("Host a", True),
        ("Host A", True),
        ("Host b a", True),
        ("Host *", True),
        ("Host * !a", False),
        ("Host !b", False),
        ("Host ab?", False),
        ("Match all", True),
        ("Match host a.example.com", True),
        ("Match host a", False),
        ("Match originalhost a", True),
        ("Match originalhost b,a", True),
        ("Match !originalhost b", True),
        ("Match !originalhost a", False),
        ("Match originalhost a user me", True),
        ("Match originalhost a user you", False),
        ("Match localuser !*", False),
        ("Match final", False),
        ("Match !final", True),
        ("Match final host a.example.com", False),
        ("Match canonical", False),
        ("Match originalhost a unheardof x", False),
        ('Match exec "true"', False),
        ('Match !exec "false"', False),
    ],
)
def test_blocks(config: Path, line: str, fits: bool) -> None:
    config.write_text(f"Host a\n HostName a.example.com\n User me\n{line}\n Port 99\nHost *\n Port 1\n")
    assert resolve("a").port == (99 if fits else 1)


def test_a_block_for_the_final_reading_fills_what_is_left(config: Path) -> None:
    config.write_text("Host a\n HostName a.example.com\nMatch final host *.example.com\n Port 99\n")
    assert resolve("a").port == 99
    assert resolve("b").port == 22


def test_match_exec_runs_nothing(config: Path, tmp_path: Path) -> None:
    config.write_text(f'Match exec "touch {tmp_path}/ran"\n Port 99\nMatch host a exec "touch {tmp_path}/ran"\n')
    assert resolve("a").port == 22
    assert not (tmp_path / "ran").exists()


def test_included_files_stand_where_they_are_included(config: Path, home: Path) -> None:
    parts = home / ".ssh" / "parts"
    parts.mkdir()
    (parts / "1.conf").write_text("Host a\n Port 1\n")
    (parts / "2.conf").write_text("Host *\n Port 2\n User deep\n")
    config.write_text("Host a\n User first\n Include parts/*.conf nothing\n Compression yes\nHost b\n Port 3\n")
    assert (resolve("a").port, resolve("a").user) == (1, "first")
    assert resolve("b").port == 3, "what stands in a block that does not fit is not included"
    (parts / ".1.conf.swp").write_text('Host "\n')
    (parts / "directory").mkdir()
    config.write_text("Include parts/*\n")
    assert resolve("b").port == 2, "hidden files and directories are passed over, as by ssh"
    config.write_text(f"Include {parts}/2.conf\nHost b\n Port 3\n")
    assert (resolve("b").port, resolve("b").user) == (2, "deep")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Include ~x\0\n", r"~/\.ssh/config:1: a NUL"),
        ("User a\nIdentityFile a\0b\n", r"~/\.ssh/config:2: a NUL"),
        ("Port " + "9" * 5000 + "\n", "not a port number"),
        ("ProxyJump a:" + "9" * 5000 + "\n", "not a port number"),
    ],
)
def test_impossible_paths_and_ports_are_refused_with_their_line(config: Path, content: str, message: str) -> None:
    config.write_text(content)
    with pytest.raises(TransportUnsupported, match=message):
        resolve("a")


def test_files_that_include_one_another_are_refused(config: Path) -> None:
    config.write_text("Include config\n")
    with pytest.raises(TransportUnsupported, match=r"~/\.ssh/config:1: more than 16 files"):
        resolve("a")


def test_the_user_s_file_comes_before_the_system_s(config: Path, tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ssh_config").write_text("Host *\n Port 2\n User system\n")
    config.write_text("Host a\n Port 1\n")
    assert (resolve("a").port, resolve("a").user) == (1, "system")


@pytest.mark.parametrize(
    ("value", "hops"),
    [
        ("jump", [JumpHost("jump", None, None)]),
        ("me@jump:2222", [JumpHost("jump", 2222, "me")]),
        ("[fe80::1]:2222", [JumpHost("fe80::1", 2222, None)]),
        ("fe80::1", [JumpHost("fe80::1", None, None)]),
        ("ssh://me@jump:2222,b", [JumpHost("jump", 2222, "me"), JumpHost("b", None, None)]),
        ("%r@gate-%n", [JumpHost("gate-a", None, "me")]),
        ("none", []),
    ],
)
def test_proxy_jump(config: Path, value: str, hops: list[JumpHost]) -> None:
    config.write_text(f"Host a\n User me\n ProxyJump {value}\n")
    assert list(resolve("a").jumps) == hops


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Port many", "Port of a is not a port number"),
        ("Port 0", "Port of a is not a port number"),
        ("ProxyJump x:99999", "port of x in ProxyJump is not"),
        ("ProxyCommand nc %h %p", "has a ProxyCommand for a"),
        ('User "me', "config:1: a quotation mark has no partner"),
    ],
)
def test_unsupported_options_are_named(config: Path, text: str, says: str) -> None:
    config.write_text(f"{text}\n")
    with pytest.raises(TransportUnsupported, match=says):
        resolve("a")


def test_the_first_of_proxy_jump_and_proxy_command_counts(config: Path) -> None:
    config.write_text("ProxyJump none\nProxyCommand nc %h %p\n")
    assert not resolve("a").jumps
    config.write_text("ProxyCommand none\nProxyJump b\n")
    assert resolve("a").jumps


def test_lines_that_mean_nothing_here_are_passed_over(config: Path) -> None:
    config.write_bytes(b"Nonsense\nUnknown yes\nForwardAgent yes\nStrictHostKeyChecking no\nPort 99\n\xe4\n")
    assert resolve("a").port == 99


def test_a_file_that_others_may_write_is_refused(config: Path) -> None:
    config.chmod(0o662)
    with pytest.raises(TransportUnsupported, match=r"others may write to it: chmod go-w ~/\.ssh/config"):
        resolve("a")


@pytest.mark.parametrize("included", [False, True])
def test_a_fifo_is_not_waited_for(config: Path, home: Path, included: bool) -> None:
    os.mkfifo(home / ".ssh" / "fifo", 0o600)
    if included:
        config.write_text("Include fifo\n")
    else:
        (home / ".ssh" / "fifo").replace(config)
    with pytest.raises(TransportUnsupported, match="cannot be read: it is not a regular file"):
        resolve("a")


def test_dev_null_is_an_empty_file(config: Path) -> None:
    config.write_text("Include /dev/null\nPort 99\n")
    assert resolve("a").port == 99


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a\nb", "", "x" * 256, "a\0", *PATTERNS])
def test_a_host_that_is_no_word_is_refused(ssh: Ssh, host: str) -> None:
    assert "host" in ssh.schema().validate({"host": host})


@pytest.mark.needs("sshd", "ssh")
def test_a_connection_may_name_an_alias(sshd: Sshd, ssh: Ssh, config: Path, home: Path) -> None:
    admit(sshd, keygen(home / "key"))
    config.write_text(
        f"Host farm\n HostName 127.0.0.1\n Port {sshd.port}\n User {sshd.user}\n"
        f" IdentityFile ~/key\n UserKnownHostsFile ~/known\n"
    )
    (home / "known").write_text(sshd.known_hosts())
    data = ssh.schema().load({"host": "farm"})
    assert isinstance(data, dict)
    link = ssh.open(data, None, timeout=20)
    try:
        assert whoami(link) == sshd.user  # type: ignore[arg-type]
    finally:
        link.close()


@pytest.mark.needs("sshd", "ssh")
@pytest.mark.parametrize("value", ["no", "off", "accept-new"])
def test_nothing_has_a_changed_host_key_accepted(
    start_sshd: StartSshd, connect: Connect, config: Path, value: str
) -> None:
    server = start_sshd()
    config.write_text(f"StrictHostKeyChecking {value}\nUserKnownHostsFile /dev/null\n")
    with pytest.raises(HostKeyUnknown):
        connect(server, hostKey=None, hostKeyChecking="strict")
    connect(server, hostKey=None)
    server.stop()
    server.host_keys = [keygen(server.directory / "new")]
    server.start()
    with pytest.raises(HostKeyChanged):
        connect(server, hostKey=None)


@pytest.mark.needs("sshd", "ssh")
@pytest.mark.parametrize("value", ["yes", "ask"])
def test_a_new_host_key_is_refused_where_the_configuration_says_so(
    sshd: Sshd, connect: Connect, config: Path, value: str
) -> None:
    config.write_text(f"StrictHostKeyChecking {value}\n")
    with pytest.raises(HostKeyUnknown):
        connect(sshd, hostKey=None)


@pytest.mark.needs("sshd", "ssh")
def test_the_host_key_alias_is_what_known_hosts_call_it(
    start_sshd: StartSshd, connect: Connect, config: Path, home: Path
) -> None:
    server = start_sshd()
    config.write_text("HostKeyAlias Farm\n")
    (home / ".ssh" / "known_hosts").write_text(server.known_hosts("farm"))
    connect(server, hostKey=None)


def test_a_file_is_read_once_for_all_its_hosts_and_few_blocks_are_looked_at_for_each(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2000
    hosts = "".join(f"Host h{number}\n  HostName {number}.example\n" for number in range(count))
    config.write_text(f"Include more\nHost *\n  User all\n{hosts}")
    more = config.with_name("more")
    more.write_text("Host h7\n  Port 7\n")
    reads: list[Path] = []
    read = ssh_config.read_local_file
    monkeypatch.setattr(ssh_config, "read_local_file", lambda path: (reads.append(path), read(path))[1])
    files = ConfigFiles()
    assert len(files.aliases(config)) == count
    found = {alias: resolve(alias, files=files) for alias in ("h7", "h8", f"h{count - 1}")}
    assert [(one.host, one.port, one.user) for one in found.values()] == [
        ("7.example", 7, "all"),
        ("8.example", 22, "all"),
        (f"{count - 1}.example", 22, "all"),
    ]
    assert reads.count(config) == reads.count(more) == 1
    blocks = list(files.read(config, strict=True).blocks_of("h8"))
    assert [block.written for block in blocks] == [[], ["*"], ["h8"]], "blocks of other hosts are looked at"


@pytest.mark.parametrize(("settled", "reads_of_two"), [(0.0, 1), (1e9, 2)], ids=["long ago", "just now"])
def test_a_file_is_parsed_again_when_it_has_changed_or_may_have(
    config: Path, monkeypatch: pytest.MonkeyPatch, settled: float, reads_of_two: int
) -> None:
    monkeypatch.setattr(ssh_config, "SETTLED_SECONDS", settled)
    config.write_text("Include *.more\nHost far\n  Port 1\n")
    reads: list[Path] = []
    read = ssh_config.read_local_file
    monkeypatch.setattr(ssh_config, "read_local_file", lambda path: (reads.append(path), read(path))[1])
    files = CurrentFiles()
    assert [resolve(alias, files=files).port for alias in ("far", "near")] == [1, 22]
    assert reads.count(config) == reads_of_two
    config.write_text("Include *.more\nHost far\n  Port 22222\n")
    assert resolve("far", files=files).port == 22222
    config.with_name("a.more").write_text("Host near\n  Port 3\n")
    assert resolve("near", files=files).port == 3
    config.chmod(0o666)
    with pytest.raises(TransportUnsupported, match="others may write to it"):
        resolve("far", files=files)
    config.unlink()
    assert resolve("far", files=files).port == 22


def test_variables_to_send_add_up_and_are_removed_in_the_order_of_the_files(config: Path, tmp_path: Path) -> None:
    config.write_text(
        "Host far\n SendEnv A B_*\n SendEnv -A -LC_* C\n SetEnv X=1 Y=2\n SetEnv X=3 Z=4\nHost *\n SendEnv D\n"
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ssh_config").write_text("SendEnv LANG LC_*\nForwardAgent yes\nLocalForward 1 a:2\n")
    found = resolve("far")
    assert found.send_env == ("A", "B_*", "-A", "-LC_*", "C", "D", "LANG", "LC_*")
    assert found.set_env == ("X=1", "Y=2")
    # As in OpenSSH, what the system's file adds later is not removed by the user's.
    assert ClientEnvironment(found.send_env).patterns == ["B_*", "C", "D", "LANG", "LC_*"]
    assert found.forwards_agent
    # The user has not asked for what the system's file says.
    assert found.unheeded == ()
