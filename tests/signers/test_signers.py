"""What the bundled signers answer, how a login checks it, and what a signer that fails costs.

Vault and OpenBao cannot be had here: a server replays the answers that their documentation shows, and really signs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from connmgr.errors import (
    AuthFailed,
    CertificateExpired,
    CertificateInvalid,
    ConnmgrError,
    SignerRefused,
    SignerTimeout,
    SignerUnavailable,
)
from connmgr.plugin import Asker, CertificateOrder, CertificateWish, Schema, SignedCertificate, SshSigner
from connmgr.registry import Offered, Registry
from connmgr.secrets.principals import Access
from connmgr.signers import AT_ONCE, BACKDATED_SECONDS, Limit, Signer, Signers, revocation_list
from connmgr.vault import Vault
from connmgr_ssh import certificates, signing_servers
from connmgr_ssh.certificates import check, log_in_certified
from connmgr_ssh.keys import Identity, fresh
from connmgr_ssh.signers import OwnAuthority, SigningCommand
from connmgr_ssh.signing_servers import VaultSecretsEngine
from tests.plugins.sshd import keygen

DAY = 86_400
KEY_ID = "connmgr entry=7 caller=tests"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keygen(tmp_path_factory.mktemp("authority") / "authority")


@pytest.fixture
def key() -> tuple[Identity, str]:
    """A login's key, and its public part."""
    return fresh("the login's")


def ordered(public: str, **other: Any) -> CertificateOrder:
    """Return an order as a login of ``deploy`` makes it."""
    now = int(time.time())
    order = CertificateOrder(
        public,
        KEY_ID,
        4711,
        ("deploy",),
        now - BACKDATED_SECONDS,
        now + 300,
        300,
        ("permit-port-forwarding", "permit-pty"),
    )
    return replace(order, **other)


def public_of(authority: Path) -> str:
    return " ".join(authority.with_name(f"{authority.name}.pub").read_text().split()[:2])


def signed(key: tuple[Identity, str], authority: Path, **other: Any) -> SignedCertificate:
    """Return an answer to an order for ``deploy``, signed as if something ``other`` had been ordered."""
    text = OwnAuthority().sign({"key": authority.read_text()}, ordered(key[1], **other), timeout=10)
    return SignedCertificate(text, ordered(key[1]), "team", [public_of(authority)])


def ssh_keygen(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ssh-keygen", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.needs("sshd")
def test_ssh_keygen_reads_what_our_own_authority_issues(
    key: tuple[Identity, str], authority: Path, tmp_path: Path
) -> None:
    (tmp_path / "issued").write_text(signed(key, authority).text)
    shown = ssh_keygen("-L", "-f", str(tmp_path / "issued")).stdout
    for line in (
        "ssh-ed25519-cert-v01@openssh.com user certificate",
        f'Key ID: "{KEY_ID}"',
        "Serial: 4711",
        "deploy",
        "permit-pty",
        "Critical Options: (none)",
    ):
        assert line in shown, shown
    identity, certificate = check(signed(key, authority), key[0])
    assert (identity.public.type, certificate.principals) == ("ssh-ed25519-cert-v01@openssh.com", ["deploy"])


def test_a_new_authority_is_another_one_each_time() -> None:
    first, second = OwnAuthority().new_authority(), OwnAuthority().new_authority()
    assert first[1] != second[1]
    assert first[1].startswith("ssh-ed25519 ")


@pytest.mark.needs("sshd")
def test_ssh_keygen_finds_revoked_certificates_in_the_list(
    key: tuple[Identity, str], authority: Path, tmp_path: Path
) -> None:
    signer = Signer("team", "ca", {}, (public_of(authority),), revoked={"4711": "then", "connmgr entry=9": "then"})
    (tmp_path / "revoked").write_bytes(revocation_list(signer, 2))
    (tmp_path / "none").write_bytes(revocation_list(replace(signer, revoked={}), 0))
    issued = {"serial": {}, "id": {"serial": 1, "key_id": "connmgr entry=9"}, "valid": {"serial": 2}}
    for name, other in issued.items():
        path = tmp_path / f"{name}.pub"
        path.write_text(signed(key, authority, **other).text)
        asked = ssh_keygen("-Q", "-f", str(tmp_path / "revoked"), str(path))
        assert asked.returncode == (name != "valid"), asked.stdout + asked.stderr
        assert ssh_keygen("-Q", "-f", str(tmp_path / "none"), str(path)).returncode == 0


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ({"principals": ("deploy", "root")}, "it is for deploy, root, and deploy was ordered"),
        ({"valid_before": int(time.time()) + 3650 * DAY}, r"valid for 36(49|50) days, and 300 s were ordered"),
        ({"public_key": fresh("another")[1]}, "certifies another key"),
    ],
    ids=["another name", "years of life", "another key"],
)
def test_an_answer_that_lies_is_refused(
    key: tuple[Identity, str], authority: Path, lie: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(CertificateInvalid, match=complaint):
        check(signed(key, authority, **lie), key[0])


@pytest.mark.needs("sshd")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["-h", "-n", "deploy", "-V", "+5m"], "not a user certificate"),
        (["-V", "+5m"], "it is for everybody"),
        (["-n", "deploy", "-V", "always:forever"], "days, and 300 s were ordered"),
        (["-n", "deploy", "-V", "+5m", "-O", "force-command=id"], "the option force-command"),
    ],
    ids=["a host's", "nobody named", "for ever", "a forced command"],
)
def test_what_ssh_keygen_signs_otherwise_is_refused(
    key: tuple[Identity, str], authority: Path, tmp_path: Path, options: list[str], complaint: str
) -> None:
    (tmp_path / "key.pub").write_text(key[1])
    made = ssh_keygen("-q", "-s", str(authority), "-I", "x", *options, str(tmp_path / "key.pub"))
    assert made.returncode == 0, made.stderr
    answer = SignedCertificate((tmp_path / "key-cert.pub").read_text(), ordered(key[1]), "team")
    with pytest.raises(CertificateInvalid, match=complaint):
        check(answer, key[0])


def test_another_authority_and_a_changed_byte_are_refused(
    key: tuple[Identity, str], authority: Path, tmp_path: Path
) -> None:
    answer = signed(key, keygen(tmp_path / "another"))
    with pytest.raises(CertificateInvalid, match="which is not the signer's"):
        check(replace(answer, authorities=[public_of(authority)]), key[0])
    check(replace(answer, authorities=[]), key[0])
    kind, blob = signed(key, authority).text.split()
    for at in range(0, len(blob) - 4, 7):
        other = "A" if blob[at] != "A" else "B"
        broken = replace(answer, text=f"{kind} {blob[:at]}{other}{blob[at + 1 :]}", authorities=[public_of(authority)])
        with pytest.raises((CertificateInvalid, CertificateExpired)):
            check(broken, key[0])
    for nonsense in ("", "no certificate", f"{kind} !!!", key[1], "\n" * 1000):
        with pytest.raises(CertificateInvalid, match="damaged"):
            check(replace(answer, text=nonsense), key[0])


@pytest.mark.parametrize(
    ("minutes", "complaint"), [(10, "clock of the signer is ahead"), (-20, "clock of the signer is behind")]
)
def test_clocks_that_are_apart_are_told(
    key: tuple[Identity, str], authority: Path, minutes: int, complaint: str
) -> None:
    order = ordered(key[1])
    away = {
        "valid_after": order.valid_after + 60 * minutes,
        "valid_before": order.valid_before + 60 * minutes,
    }
    with pytest.raises(CertificateExpired, match=complaint):
        check(signed(key, authority, **away), key[0])


@pytest.mark.parametrize("seconds", [0, 301], ids=["in time", "too late"])
def test_a_certificate_that_expires_in_the_login_is_told(
    authority: Path, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    def certify(wish: CertificateWish, _timeout: float) -> SignedCertificate:
        order = ordered(wish.public_key, extensions=tuple(wish.extensions))
        text = OwnAuthority().sign({"key": authority.read_text()}, order, timeout=10)
        return SignedCertificate(text, order, "team")

    def run(_identities: object, _password: object) -> None:
        later = time.time() + seconds
        monkeypatch.setattr(
            certificates, "time", SimpleNamespace(time=lambda: later, strftime=time.strftime, gmtime=time.gmtime)
        )
        raise AuthFailed("The host refuses the login.")

    login: Any = SimpleNamespace(user="deploy", host="web1", deadline=SimpleNamespace(left=lambda: 10.0), run=run)
    expected = CertificateExpired if seconds else AuthFailed
    with pytest.raises(expected) as failed:
        log_in_certified(login, {"signer": "team"}, {}, Asker(certify=certify))
    assert ("expired during the login" if seconds else "connmgr ca trust team") in failed.value.message


def command(*argv: str) -> dict[str, Any]:
    loaded: dict[str, Any] = SigningCommand().schema().load({"argv": list(argv)})
    return loaded


@pytest.mark.needs("sshd")
@pytest.mark.parametrize("how", ["beside", "printed"])
def test_a_command_signs(key: tuple[Identity, str], authority: Path, how: str) -> None:
    words = ["-q", "-s", str(authority), "-I", "{keyId}", "-z", "{serial}", "-n", "{principals}", "-V", "+{seconds}s"]
    argv = ["ssh-keygen", *words, "{public}"]
    if how == "printed":
        argv = ["/bin/sh", "-c", '"$@"; cat "${0%.pub}-cert.pub"; rm "${0%.pub}-cert.pub"', "{public}", *argv]
    order = ordered(key[1])
    text = SigningCommand().sign(command(*argv), order, timeout=60)
    check(SignedCertificate(text, order, "team", [public_of(authority)]), key[0])


@pytest.mark.parametrize(
    ("argv", "error", "complaint"),
    [
        (["/nowhere/sign"], SignerUnavailable, "cannot run /nowhere/sign: No such file"),
        (["/bin/sh", "-c", "echo not today >&2; exit 3"], SignerRefused, "exited with 3: not today"),
        ([sys.executable, "-c", "print('x' * 100_000_000)"], SignerUnavailable, "printed more than"),
        (["/bin/sh", "-c", "read -r word </dev/tty"], SignerRefused, "exited with"),
        (["/bin/sh", "-c", "sleep 600 & wait"], SignerTimeout, "did not answer within"),
        (["/bin/sh", "-c", "exec >&- 2>&-; sleep 600"], SignerTimeout, "did not answer within"),
    ],
    ids=["missing", "fails", "100 MB", "asks at a terminal", "hangs", "hangs without streams"],
)
def test_a_command_that_does_not_sign(
    key: tuple[Identity, str], argv: list[str], error: type[ConnmgrError], complaint: str
) -> None:
    seconds = 0.5 if error is SignerTimeout else 60
    with pytest.raises(error, match=complaint):
        SigningCommand().sign(command(*argv), ordered(key[1]), timeout=seconds)


class Replay(ThreadingHTTPServer):
    """Answers as the documentation of Vault's ssh secrets engine and of its AppRole method shows, and signs."""

    daemon_threads = True

    def __init__(self, authority: Path) -> None:
        super().__init__(("127.0.0.1", 0), Replaying)
        self.authority = authority
        self.logins = self.renewals = 0
        self.lease = 1200
        self.tokens = {"hvs.static"}
        self.asked: list[dict[str, Any]] = []
        self.answer: tuple[int, bytes] | None = None
        self.dribbles = False
        self.stopped = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def signed(self, body: Mapping[str, Any]) -> str:
        order = ordered(
            body["public_key"],
            key_id=body["key_id"],
            principals=tuple(body["valid_principals"].split(",")),
            extensions=tuple(sorted(body["extensions"])),
        )
        # As Vault does: valid from 30 s ago.
        order = replace(order, valid_after=order.valid_before - int(body["ttl"].removesuffix("s")) - 30)
        return OwnAuthority().sign({"key": self.authority.read_text()}, order, timeout=10)


class Replaying(BaseHTTPRequestHandler):
    server: Replay
    protocol_version: ClassVar[str] = "HTTP/1.1"  # type: ignore[misc]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.answer or self._answer(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        for piece in (answer[at : at + 1] for at in range(len(answer))) if self.server.dribbles else [answer]:
            self.wfile.write(piece)
            if self.server.dribbles and self.server.stopped.wait(0.1):
                return

    def _answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if self.path == "/v1/auth/approle/login":
            if (body["role_id"], body["secret_id"]) != ("role", "a secret id"):
                return 400, json.dumps({"errors": ["invalid role or secret ID"]}).encode()
            self.server.logins += 1
            token = f"hvs.of-login-{self.server.logins}"
            self.server.tokens.add(token)
            auth = {"client_token": token, "lease_duration": 1200, "renewable": True, "token_type": "service"}
            return 200, json.dumps({"request_id": "1", "auth": auth, "data": None}).encode()
        if self.headers["X-Vault-Token"] not in self.server.tokens:
            return 403, json.dumps({"errors": ["permission denied"]}).encode()
        if self.path == "/v1/auth/token/renew-self":
            self.server.renewals += 1
            auth = {
                "client_token": self.headers["X-Vault-Token"],
                "lease_duration": self.server.lease,
                "renewable": True,
            }
            return 200, json.dumps({"request_id": "3", "auth": auth, "data": None}).encode()
        if self.path != "/v1/ssh/sign/connmgr":
            return 400, json.dumps({"errors": ['unknown role "other"']}).encode()
        self.server.asked.append(body)
        data = {"serial_number": "c73f26d2340276aa", "signed_key": self.server.signed(body) + "\n"}
        return 200, json.dumps({"request_id": "2", "lease_duration": 0, "data": data, "auth": None}).encode()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def replay(authority: Path) -> Iterator[Replay]:
    server = Replay(authority)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="replay")
    thread.start()
    yield server
    server.stopped.set()
    server.shutdown()
    thread.join()
    server.server_close()


def vault_data(replay: Replay, **other: Any) -> dict[str, Any]:
    by_role = {"roleId": "role", "secretId": "a secret id"}
    given = {"address": replay.url, "role": "connmgr", **(by_role if "token" not in other else {}), **other}
    loaded: dict[str, Any] = VaultSecretsEngine().schema().load(given)
    return loaded


def test_vault_signs_for_a_token_and_for_an_approle(replay: Replay, key: tuple[Identity, str], authority: Path) -> None:
    engine, order = VaultSecretsEngine(), ordered(key[1])
    for data in (vault_data(replay, token="hvs.static"), vault_data(replay), vault_data(replay)):
        text = engine.sign(data, order, timeout=60)
        check(SignedCertificate(text, order, "corp", [public_of(authority)]), key[0])
    assert (replay.logins, replay.renewals) == (1, 1)
    assert replay.asked[0] == {
        "public_key": key[1],
        "cert_type": "user",
        "key_id": KEY_ID,
        "valid_principals": "deploy",
        "ttl": "300s",
        "extensions": {"permit-port-forwarding": "", "permit-pty": ""},
    }


def test_a_token_is_renewed_when_half_of_its_lease_is_over(
    replay: Replay, key: tuple[Identity, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, order, data = VaultSecretsEngine(), ordered(key[1]), vault_data(replay, token="hvs.static")
    for passed, renewals in ((0, 1), (599, 1), (601, 2)):
        now = time.monotonic() + passed
        monkeypatch.setattr(signing_servers, "time", SimpleNamespace(monotonic=lambda now=now: now))
        engine.sign(data, order, timeout=60)
        assert replay.renewals == renewals


def test_an_approle_logs_in_again_when_its_token_was_revoked(replay: Replay, key: tuple[Identity, str]) -> None:
    engine, order = VaultSecretsEngine(), ordered(key[1])
    engine.sign(vault_data(replay), order, timeout=60)
    replay.tokens.clear()
    engine.sign(vault_data(replay), order, timeout=60)
    assert replay.logins == 2
    replay.answer = (403, b'{"errors": ["permission denied"]}')
    with pytest.raises(SignerRefused, match="permission denied"):
        engine.sign(vault_data(replay), order, timeout=60)


@pytest.mark.parametrize(
    ("answer", "error", "complaint"),
    [
        ((503, b'{"errors": ["Vault is sealed"]}'), SignerUnavailable, "status 503: Vault is sealed"),
        (
            (400, b'{"errors": ["deploy is not a valid value for valid_principals"]}'),
            SignerRefused,
            "not a valid value",
        ),
        ((500, b"\x1b[31m" + b"x" * 5000), SignerUnavailable, "status 500: it said nothing"),
        ((200, b"<html>"), SignerUnavailable, "not JSON"),
        ((200, b"[]"), SignerUnavailable, "not JSON|as Vault does"),
        ((200, b'{"data": {"signed_key": 5}}'), SignerUnavailable, "no signed_key"),
    ],
)
def test_what_vault_refuses_is_told_without_the_token(
    replay: Replay, key: tuple[Identity, str], answer: tuple[int, bytes], error: type[ConnmgrError], complaint: str
) -> None:
    replay.answer = answer
    with pytest.raises(error, match=complaint) as failed:
        VaultSecretsEngine().sign(vault_data(replay, token="hvs.static"), ordered(key[1]), timeout=60)
    assert "hvs.static" not in failed.value.message


def test_a_vault_that_is_slow_or_down_is_given_up(replay: Replay, key: tuple[Identity, str], closed_port: int) -> None:
    replay.dribbles = True
    with pytest.raises(SignerTimeout, match="did not answer within"):
        VaultSecretsEngine().sign(vault_data(replay, token="hvs.static"), ordered(key[1]), timeout=1)
    down = {**vault_data(replay, token="hvs.static"), "address": f"http://127.0.0.1:{closed_port}"}
    with pytest.raises(SignerUnavailable, match="cannot be reached: Connection refused"):
        VaultSecretsEngine().sign(down, ordered(key[1]), timeout=60)


class Scripted(SshSigner):
    """A signer that does what the test says."""

    name = "scripted"
    description = "Does what the test says."
    schema = Schema

    def __init__(self, does: Callable[[], str]) -> None:
        self.does = does
        self.calls = 0

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        self.calls += 1
        return self.does()


def test_500_logins_do_not_storm_a_signer_that_is_down(vault: Vault, key: tuple[Identity, str]) -> None:
    down, wanting = threading.Event(), threading.Semaphore(0)

    def fail() -> str:
        down.wait(60)
        raise SignerUnavailable("It is down.")

    kind = Scripted(fail)
    desk = Signers(vault, Registry([], signers=[Offered(kind, "tests")]), lambda _facts, _details: 1)
    stored = desk.add("slow", {"type": "scripted"}, None, Limit(), Access())

    def among() -> Iterator[Signer]:
        # The first thing that a login looks at, once it has begun.
        wanting.release()
        yield stored

    errors: list[ConnmgrError] = []

    def log_in() -> None:
        wish = CertificateWish("slow", key[1], "deploy")
        try:
            desk.certify(among(), wish, 60, connection=None, asking=Access(), by=Access())
        except ConnmgrError as error:
            errors.append(error)

    threads = [threading.Thread(target=log_in) for _ in range(500)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert wanting.acquire(timeout=60)
    down.set()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 500
    assert {error.code for error in errors} <= {"signer_unavailable", "signer_timeout"}
    # Those that had a turn, and none of those that waited.
    assert kind.calls <= AT_ONCE
