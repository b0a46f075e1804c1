"""Logins by certificate at a real sshd: who it says was there, limits, rotation, and who may."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from connmgr.client import ROOT_CATEGORY, Client, ClientError
from tests.conftest import StartDaemon
from tests.daemon import Daemon
from tests.plugins.sshd import keygen
from tests.rights.wire import create
from tests.signers.conftest import Host

pytestmark = pytest.mark.needs("sshd")


def code_of(owner: Client, connection: str) -> str:
    """Return the code of the error of a login that must fail."""
    with pytest.raises(ClientError) as failed:
        owner.shell.start(connection)
    return failed.value.code


def test_the_logs_of_sshd_and_of_the_daemon_name_each_other(clean_daemon: Daemon, owner: Client, host: Host) -> None:
    connection = owner.connection.add("web1", host.data())
    nightly = create(clean_daemon, "shell.any", name="nightly build\n")
    start = len(host.log())
    nightly.ok("/shell/start", connection=connection)
    [accepted] = re.findall(r"Accepted publickey for (\S+) .* ID (connmgr .*) \(serial (\d+)\)", host.log()[start:])
    user, key_id, serial = accepted
    words = dict(word.split("=") for word in key_id.split()[1:])
    assert user == host.user
    assert (words["token"], words["tokenId"]) == ("nightly_build_", nightly.id)
    [entry] = [one for one in owner.post("/audit/query")["entries"] if str(one["seq"]) == words["entry"]]
    assert (entry["event"], entry["serial"], entry["token"]) == ("certificate ordered", serial, nightly.id)
    assert (entry["connection"], entry["principals"], entry["seconds"]) == (connection, [host.user], 300)


def test_a_link_stays_when_the_host_trusts_the_authority_no_more(owner: Client, host: Host) -> None:
    connection = owner.connection.add("web1", host.data())
    owner.shell.start(connection)
    host.trust([])
    assert owner.shell.exec(connection, "echo still here").stdout == "still here"
    # A channel of its own over the same link.
    owner.shell.start(connection, session="another")
    owner.shell.stop(connection, all=True)
    with pytest.raises(ClientError, match="connmgr ca trust team") as failed:
        owner.connection.add("web2", {**host.data(), "keepAlive": 5}, validate=True)
    assert failed.value.code == "auth_failed"


def test_the_nearest_category_limits_names_and_lives(owner: Client, host: Host) -> None:
    prod = owner.category.add("prod", ROOT_CATEGORY)
    inner = owner.category.add("db", prod)
    connection = owner.connection.add("db1", host.data(), category=inner)
    owner.ca.limit("team", category=prod, principals=["nobody-here"], seconds=60)
    assert code_of(owner, connection) == "auth_failed"
    owner.ca.limit("team", category=inner, principals=[host.user, "another"])
    owner.shell.start(connection)
    [entry, *_] = [one for one in owner.post("/audit/query")["entries"] if one.get("event") == "certificate ordered"]
    assert (entry["principals"], entry["seconds"]) == ([host.user], 300)
    wishing = owner.connection.add("db2", host.data(principals=["root-of-all"], seconds=30), category=inner)
    assert code_of(owner, wishing) == "signer_refused"
    [info] = owner.ca.query("team")
    assert info.limits[0].category is None
    assert {limit.category for limit in info.limits} == {None, prod, inner}


def test_a_rotation_leaves_time_for_the_hosts(owner: Client, host: Host) -> None:
    connection = owner.connection.add("web1", host.data())
    [old] = owner.ca.trust("team").lines
    both = owner.ca.rotate("team").lines
    assert both[0] == old
    assert owner.ca.rotate("team").lines == both
    owner.shell.start(connection)
    owner.shell.stop(connection)
    assert owner.ca.rotate("team", finish=True).lines == both[1:]
    with pytest.raises(ClientError, match="No rotation"):
        owner.ca.rotate("team", finish=True)
    other = owner.connection.add("web2", {**host.data(), "keepAlive": 5})
    assert code_of(owner, other) == "auth_failed"
    host.trust(both[1:])
    owner.shell.start(other)


def test_a_token_sets_up_logins_by_certificate_only_with_the_scope(
    clean_daemon: Daemon, owner: Client, host: Host
) -> None:
    connection = owner.connection.add("web1", host.data())
    elsewhere = owner.category.add("elsewhere", ROOT_CATEGORY)
    writes = create(clean_daemon, "connection.read", "connection.write", "secret.decrypt", "shell.any")
    assert writes.refused("/connection/add", name="mine", data=host.data(principals=["root"])) == "scope_denied"
    changed = {**host.data(), "user": "root"}
    assert writes.refused("/connection/update", connection=connection, data=changed) == "scope_denied"
    assert writes.refused("/connection/update", connection=connection, category=elsewhere) == "scope_denied"
    assert writes.refused("/ca/init", name="mine") == "scope_denied"
    writes.ok("/connection/update", connection=connection, name="renamed")
    writes.ok("/shell/start", connection=connection)
    may = create(clean_daemon, "connection.read", "connection.write", "secret.decrypt", "ssh.certificate", "shell.any")
    may.ok("/connection/update", connection=connection, category=elsewhere)
    asks = create(clean_daemon, "connection.read")
    assert "key" not in str(asks.ok("/ca/query")["signers"][0].get("data"))


def test_an_unknown_signer_and_a_taken_name_are_told(owner: Client, host: Host) -> None:
    lost = owner.connection.add("lost", host.data(signer="nobody"))
    assert code_of(owner, lost) == "unknown_signer"
    with pytest.raises(ClientError) as taken:
        owner.ca.init("team")
    assert taken.value.code == "signer_exists"
    for data, complaint in (
        ({"type": "nothing"}, "Unknown type of signers"),
        ({"type": "vault", "address": "http://vault.example", "role": "r", "token": "t"}, "https"),
        ({"type": "command", "argv": []}, "data.argv"),
    ):
        with pytest.raises(ClientError, match=complaint) as refused:
            owner.ca.init("other", data)
        assert refused.value.code == "invalid_request"


def test_the_key_of_an_authority_is_sealed_to_who_made_it(start_daemon: StartDaemon, host: Host) -> None:
    daemon = start_daemon()
    owner = daemon.client
    owner.vault.add_user("alice", "correct horse battery")
    owner.vault.unlock("alice", "correct horse battery")
    host.trust(owner.ca.init("team"))
    connection = owner.connection.add("web1", host.data())
    owner.shell.start(connection)
    assert "PRIVATE" not in Path(daemon.data_dir, "vault.db").read_bytes().decode(errors="replace")
    with Client(daemon.url, auth_file=daemon.auth_file) as other:
        # Neither a login nor the link that is open.
        assert code_of(other, connection) == "secret_locked"
    owner.shell.stop(connection, all=True)
    owner.vault.remove_user("alice")
    with Client(daemon.url, auth_file=daemon.auth_file) as other:
        other.shell.start(connection)


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (["-n", "root", "-V", "+{seconds}s", "{public}"], "certificate_invalid", "it is for root"),
        (["-n", "{principals}", "-V", "+3650d", "{public}"], "certificate_invalid", "valid for 3650 days"),
        (["-n", "{principals}", "-V", "+{seconds}s", "ANOTHER"], "certificate_invalid", "another key than the login's"),
        (["-n", "{principals}", "-V", "+10m:+15m", "{public}"], "certificate_expired", "ahead of this machine's"),
        (["-n", "{principals}", "-V", "-15m:-10m", "{public}"], "certificate_expired", "behind this machine's"),
    ],
    ids=["another name", "years of life", "another key", "10 minutes ahead", "10 minutes behind"],
)
def test_an_answer_that_lies_reaches_no_host(
    owner: Client, host: Host, tmp_path: Path, words: list[str], code: str, complaint: str
) -> None:
    authority, another = (keygen(tmp_path / name) for name in ("authority", "another"))
    host.trust([authority.with_suffix(".pub").read_text().strip()])
    # It is also put where the answer is looked for.
    script = '"$@" && [ -e "${0%.pub}-cert.pub" ] || cat "$OTHER"'
    argv = ["env", f"OTHER={another}-cert.pub", "/bin/sh", "-c", script, "{public}", "ssh-keygen", "-q"]
    argv += ["-s", str(authority), "-I", "lie", *(str(another) if word == "ANOTHER" else word for word in words)]
    owner.ca.init("liar", {"type": "command", "argv": argv})
    connection, start = owner.connection.add("web1", host.data(signer="liar")), len(host.log())
    with pytest.raises(ClientError, match=complaint) as failed:
        owner.shell.start(connection)
    assert failed.value.code == code
    assert "publickey" not in host.log()[start:]


def test_a_host_with_the_list_refuses_a_revoked_certificate(owner: Client, host: Host) -> None:
    revoked = host.directory / "revoked"

    def put(content: bytes) -> None:
        revoked.write_bytes(content)
        revoked.chmod(0o644)

    put(base64.b64decode(owner.ca.trust("team").revoked))
    host.stop()
    host.options["RevokedKeys"] = str(revoked)
    host.start()
    try:
        # Each login has a key id of its own, so what is revoked beforehand is a name of a person by a fixed key id.
        words = ["-q", "-s", str(keygen(host.directory / "fixed")), "-I", "of joe", "-n", "{principals}"]
        authority = host.directory.joinpath("fixed.pub").read_text().strip()
        host.trust([authority])
        argv = ["ssh-keygen", *words, "-V", "+{seconds}s", "{public}"]
        owner.ca.init("joe", {"type": "command", "argv": argv}, authority=authority)
        connection = owner.connection.add("web1", host.data(signer="joe"))
        put(base64.b64decode(owner.ca.trust("joe").revoked))
        owner.shell.start(connection)
        owner.shell.stop(connection, all=True)
        put(owner.ca.revoke("joe", ["of joe"]))
        other = owner.connection.add("web2", {**host.data(signer="joe"), "keepAlive": 5})
        assert code_of(owner, other) == "auth_failed"
        assert "revoked" in host.log()
    finally:
        host.stop()
        del host.options["RevokedKeys"]
        host.start()
