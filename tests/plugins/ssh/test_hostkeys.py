"""Which host keys are trusted, and that nothing is sent to a host with another key."""

from __future__ import annotations

import base64
import os
import stat
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connmgr.errors import HostKeyChanged, HostKeyUnknown, TransportUnsupported
from connmgr_ssh import Ssh
from connmgr_ssh.known_hosts import HostKey
from tests.plugins.ssh.conftest import Connect, StartSshd, public_key
from tests.plugins.sshd import Sshd, certify, keygen

pytestmark = pytest.mark.needs("sshd", "ssh")


@pytest.fixture
def known(home: Path) -> Path:
    """The user's known_hosts file."""
    return home / ".ssh" / "known_hosts"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """connmgr's own known_hosts file."""
    return tmp_path / "data" / "known_hosts"


def fingerprint(private: Path) -> str:
    argv = ["ssh-keygen", "-l", "-f", f"{private}.pub"]
    return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=20).stdout.split()[1]


def nothing_was_sent(server: Sshd) -> bool:
    return "publickey" not in server.log() and "Accepted" not in server.log()


def test_an_unknown_key_is_refused_with_its_fingerprint_and_how_to_accept_it(
    start_sshd: StartSshd, connect: Connect, known: Path, own: Path
) -> None:
    server = start_sshd()
    with pytest.raises(HostKeyUnknown) as caught:
        connect(server, hostKey=None)
    assert fingerprint(server.host_keys[0]) in caught.value.message
    assert "hostKeyChecking" in caught.value.message
    assert f"ssh-keyscan -p {server.port} 127.0.0.1" in caught.value.message
    assert caught.value.details["fingerprint"] == fingerprint(server.host_keys[0])
    assert nothing_was_sent(server)
    assert not known.exists()
    assert not own.exists()
    connect(server, hostKey=caught.value.details["hostKey"])


def test_a_key_of_the_user_s_known_hosts_is_believed(sshd: Sshd, connect: Connect, known: Path) -> None:
    known.write_text(f"# a comment\n\nnonsense\nother ssh-ed25519 AAAA\n{sshd.known_hosts()}")
    connect(sshd, hostKey=None)


def test_a_hashed_name_is_recognised(sshd: Sshd, connect: Connect, known: Path) -> None:
    known.write_text(sshd.known_hosts())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(known)], check=True, timeout=20, capture_output=True)
    assert "127.0.0.1" not in known.read_text()
    connect(sshd, hostKey=None)


@pytest.mark.parametrize(
    ("hosts", "believed"),
    [
        ("[127.0.0.1]:{port}", True),
        ("[127.0.0.*]:{port}", True),
        ("[127.?.0.1]:*", True),
        ("*", True),
        ("other,[127.0.0.1]:{port}", True),
        ("127.0.0.1", False),
        ("[127.0.0.1]:1", False),
        ("*,![127.0.0.1]:{port}", False),
        ("![127.0.0.1]:{port},*", False),
    ],
)
def test_patterns(sshd: Sshd, connect: Connect, known: Path, hosts: str, believed: bool) -> None:
    known.write_text(sshd.known_hosts(hosts.format(port=sshd.port)))
    if believed:
        connect(sshd, hostKey=None)
    else:
        with pytest.raises(HostKeyUnknown):
            connect(sshd, hostKey=None)


@pytest.mark.parametrize("checking", ["strict", "acceptNew"])
def test_a_changed_key_is_always_refused_and_nothing_is_sent(
    start_sshd: StartSshd, connect: Connect, known: Path, tmp_path: Path, checking: str
) -> None:
    server = start_sshd()
    known.write_text(f"[127.0.0.1]:{server.port} {public_key(keygen(tmp_path / 'former'))}\n")
    with pytest.raises(HostKeyChanged) as caught:
        connect(server, hostKey=None, hostKeyChecking=checking)
    assert fingerprint(server.host_keys[0]) in caught.value.message
    assert f"{fingerprint(tmp_path / 'former')} (~/.ssh/known_hosts, line 1)" in caught.value.message
    assert nothing_was_sent(server)


def test_the_files_that_ssh_config_names_are_those_that_are_told(
    start_sshd: StartSshd, connect: Connect, home: Path, tmp_path: Path
) -> None:
    server = start_sshd()
    (home / ".ssh" / "config").write_text("UserKnownHostsFile /dev/null ~/.ssh/others\n")
    with pytest.raises(HostKeyUnknown, match=r"add the key to ~/\.ssh/others"):
        connect(server, hostKey=None)
    former = public_key(keygen(tmp_path / "former"))
    (home / ".ssh" / "others").write_text(f"# of old\n[127.0.0.1]:{server.port} {former}\n")
    with pytest.raises(HostKeyChanged, match=r"\(~/\.ssh/others, line 2\)"):
        connect(server, hostKey=None)
    (home / ".ssh" / "others").write_text(f"@revoked * {public_key(server.host_keys[0])}\n")
    with pytest.raises(HostKeyChanged, match=r"revoked in ~/\.ssh/others, line 1"):
        connect(server, hostKey=None)


def test_a_host_that_offers_only_another_type_of_key_has_changed(
    start_sshd: StartSshd, connect: Connect, known: Path, tmp_path: Path
) -> None:
    server = start_sshd()
    known.write_text(f"[127.0.0.1]:{server.port} {public_key(keygen(tmp_path / 'former', 'ecdsa'))}\n")
    with pytest.raises(HostKeyChanged):
        connect(server, hostKey=None, hostKeyChecking="acceptNew")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_of_several_host_keys_the_known_one_is_asked_for(
    start_sshd: StartSshd, connect: Connect, known: Path, kind: str
) -> None:
    kinds = ("ed25519", "ecdsa", "rsa")
    server = start_sshd(host_keys=kinds)
    key = public_key(server.host_keys[kinds.index(kind)])
    known.write_text(f"[127.0.0.1]:{server.port} {key}\n")
    connect(server, hostKey=None)
    known.unlink()
    connect(server, hostKey=key)


@pytest.mark.parametrize("checking", ["strict", "acceptNew"])
@pytest.mark.parametrize("also_known", [False, True])
def test_a_revoked_key_is_refused(
    start_sshd: StartSshd, connect: Connect, known: Path, checking: str, also_known: bool
) -> None:
    server = start_sshd()
    lines = f"@revoked * {public_key(server.host_keys[0])}\n"
    known.write_text(lines + (server.known_hosts() if also_known else ""))
    with pytest.raises(HostKeyChanged, match="revoked"):
        connect(server, hostKey=None, hostKeyChecking=checking)
    with pytest.raises(HostKeyChanged, match="revoked"):
        connect(server)
    assert nothing_was_sent(server)


def test_a_pin_by_fingerprint(sshd: Sshd, connect: Connect) -> None:
    connect(sshd, hostKey=fingerprint(sshd.host_keys[0]))


@pytest.mark.parametrize("form", ["key", "fingerprint"])
def test_a_pin_outranks_known_hosts(
    start_sshd: StartSshd, connect: Connect, known: Path, tmp_path: Path, form: str
) -> None:
    server = start_sshd()
    known.write_text(server.known_hosts())
    other = keygen(tmp_path / "other")
    with pytest.raises(HostKeyChanged, match="not the one that the connection's hostKey names"):
        connect(server, hostKey=public_key(other) if form == "key" else fingerprint(other))
    assert nothing_was_sent(server)


@pytest.mark.parametrize(
    "pin",
    ["", "nonsense", "SHA256:short", "ssh-ed25519", "ssh-ed25519 !!!!", "ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIA=="],
)
def test_a_pin_that_makes_no_sense_is_refused(ssh: Ssh, pin: str) -> None:
    assert "hostKey" in ssh.schema().validate({"host": "h", "hostKey": pin})


def test_accept_new_keeps_the_key_in_connmgr_s_own_file_only(
    sshd: Sshd, connect: Connect, known: Path, own: Path
) -> None:
    connect(sshd, hostKey=None, hostKeyChecking="acceptNew")
    assert own.read_text() == f"[127.0.0.1]:{sshd.port} {public_key(sshd.host_keys[0])}\n"
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert not known.exists()
    connect(sshd, hostKey=None)
    assert own.read_text().count("\n") == 1
    assert [path.name for path in own.parent.iterdir()] == ["known_hosts"]


def test_an_accepted_key_that_changes_is_refused(start_sshd: StartSshd, connect: Connect, own: Path) -> None:
    server = start_sshd()
    connect(server, hostKey=None, hostKeyChecking="acceptNew")
    before = own.read_text()
    server.stop()
    server.host_keys = [keygen(server.directory / "new")]
    server.start()
    with pytest.raises(HostKeyChanged) as caught:
        connect(server, hostKey=None, hostKeyChecking="acceptNew")
    assert own.read_text() == before
    assert "(known_hosts in the data directory of connmgr, line 1)" in caught.value.message, (
        "who is to remove the old key is not told that connmgr's own file holds it"
    )
    assert str(own.parent) not in caught.value.message


def test_accepting_keeps_what_others_accept_at_the_same_time(
    start_sshd: StartSshd, connect: Connect, own: Path
) -> None:
    servers = [start_sshd() for _ in range(4)]
    threads = [
        threading.Thread(target=connect, args=[server], kwargs={"hostKey": None, "hostKeyChecking": "acceptNew"})
        for server in servers * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(own.read_text().splitlines()) == sorted(
        f"[127.0.0.1]:{server.port} {public_key(server.host_keys[0])}" for server in servers
    )


@pytest.mark.parametrize("alias", ["*", "web?", "a,b", "|1|x", "@revoked", "!x", "a b"])
def test_a_name_that_would_speak_of_other_hosts_is_not_kept(
    sshd: Sshd, connect: Connect, home: Path, own: Path, alias: str
) -> None:
    config = home / ".ssh" / "config"
    config.write_text(f'HostKeyAlias "{alias}"\n')
    config.chmod(0o600)
    with pytest.raises(HostKeyUnknown, match="cannot be stored: in known_hosts that name would be a pattern"):
        connect(sshd, hostKey=None, hostKeyChecking="acceptNew")
    assert not own.exists()
    config.unlink()
    with pytest.raises(HostKeyUnknown):
        connect(sshd, hostKey=None)


def test_without_a_data_directory_nothing_new_is_accepted(sshd: Sshd) -> None:
    kind = Ssh()
    data = kind.schema().load({"host": "127.0.0.1", "port": sshd.port, "hostKeyChecking": "acceptNew"})
    assert isinstance(data, dict)
    with pytest.raises(HostKeyUnknown, match="there is no known_hosts file"):
        kind.open(data, None, timeout=20)


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_known_hosts_file_that_cannot_be_read_is_not_overlooked(
    sshd: Sshd, connect: Connect, known: Path, make: Callable[[Path], None]
) -> None:
    make(known)
    with pytest.raises(TransportUnsupported, match="known_hosts cannot be read"):
        connect(sshd)


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return keygen(tmp_path / "authority")


def with_certificate(server: Sshd, authority: Path, principals: str, *options: str) -> Sshd:
    server.stop()
    for key in server.host_keys:
        certify(authority, key.with_name(key.name + ".pub"), principals, "-h", *options)
        server.options["HostCertificate"] = f"{key}-cert.pub"
    server.start()
    return server


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certified_host_is_believed(
    start_sshd: StartSshd, connect: Connect, known: Path, authority: Path, kind: str
) -> None:
    server = with_certificate(start_sshd(host_keys=(kind,)), authority, "127.0.0.1")
    known.write_text(f"@cert-authority [127.0.0.1]:* {public_key(authority)}\n")
    connect(server, hostKey=None)


@pytest.mark.parametrize(
    ("principals", "options", "says"),
    [
        ("elsewhere.example.com", [], "it is for elsewhere.example.com"),
        ("127.0.0.1", ["-V", "20200101:20200102"], "not valid at this time"),
        ("127.0.0.1", ["-V", "20900101:20900102"], "not valid at this time"),
    ],
)
def test_a_certificate_that_does_not_count_leaves_an_unknown_key(
    start_sshd: StartSshd,
    connect: Connect,
    known: Path,
    authority: Path,
    principals: str,
    options: list[str],
    says: str,
) -> None:
    server = with_certificate(start_sshd(), authority, principals, *options)
    trust = f"@cert-authority * {public_key(authority)}\n"
    known.write_text(trust)
    with pytest.raises(HostKeyUnknown, match=says):
        connect(server, hostKey=None)
    known.write_text(trust + server.known_hosts())
    connect(server, hostKey=None)


def test_a_certificate_of_an_authority_for_other_hosts_does_not_count(
    start_sshd: StartSshd, connect: Connect, known: Path, authority: Path, tmp_path: Path
) -> None:
    server = with_certificate(start_sshd(), authority, "127.0.0.1")
    other = public_key(keygen(tmp_path / "other"))
    known.write_text(f"@cert-authority elsewhere {public_key(authority)}\n@cert-authority * {other}\n")
    with pytest.raises(HostKeyUnknown, match=r"its authority SHA256:\S+ is not known"):
        connect(server, hostKey=None)


def test_a_certificate_of_a_revoked_authority_does_not_count(
    start_sshd: StartSshd, connect: Connect, known: Path, authority: Path
) -> None:
    server = with_certificate(start_sshd(), authority, "127.0.0.1")
    key = public_key(authority)
    known.write_text(f"@cert-authority * {key}\n@revoked * {key}\n")
    with pytest.raises(HostKeyUnknown, match="is revoked"):
        connect(server, hostKey=None)


def test_a_forged_certificate_does_not_count(tmp_path: Path, authority: Path) -> None:
    from connmgr_ssh.keys import refusal

    keygen(tmp_path / "host")
    certificate = certify(authority, tmp_path / "host.pub", "machine", "-h")
    blob = bytearray(base64.b64decode(certificate.read_text().split()[1]))
    trusted = [HostKey.parse(public_key(authority))]
    assert refusal(bytes(blob), "machine", trusted, []) is None
    for position in range(len(blob)):
        forged = bytes([*blob[:position], blob[position] ^ 1, *blob[position + 1 :]])
        assert _refused(forged, trusted), f"byte {position} of the certificate does not matter"


def _refused(blob: bytes, trusted: list[HostKey]) -> Any:
    from connmgr_ssh.keys import refusal

    return refusal(blob, "machine", trusted, [])


def test_a_user_s_certificate_does_not_vouch_for_a_host(tmp_path: Path, authority: Path) -> None:
    keygen(tmp_path / "host")
    certificate = certify(authority, tmp_path / "host.pub", "machine")
    blob = base64.b64decode(certificate.read_text().split()[1])
    assert _refused(blob, [HostKey.parse(public_key(authority))]) == "it is not a host certificate"
