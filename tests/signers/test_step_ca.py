"""step-ca as a signer. It cannot be had here: a server replays what its API and its JWK provisioners do, and signs."""

from __future__ import annotations

import base64
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

from connmgr.client import ClientError
from connmgr.errors import ConnmgrError, SignerRefused, SignerTimeout, SignerUnavailable
from connmgr.fields import ValidationError
from connmgr.plugin import CertificateOrder, SignedCertificate
from connmgr_ssh.certificates import check
from connmgr_ssh.keys import Identity, fresh
from connmgr_ssh.signers import OwnAuthority
from connmgr_ssh.signing_servers import StepCa
from tests.daemon import Daemon
from tests.plugins.sshd import keygen
from tests.signers.conftest import Host
from tests.signers.test_signers import ordered, public_of

NAME, PASSWORD = "connmgr@example", "the provisioner's password"


def b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64url(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Provisioner:
    """A JWK provisioner: its key, and what it checks of a token."""

    def __init__(self, curve: str) -> None:
        self.curve = curve
        if curve == "Ed25519":
            self.key: Any = ed25519.Ed25519PrivateKey.generate()
            self.jwk = {
                "kty": "OKP",
                "crv": curve,
                "x": b64url(self.key.public_key().public_bytes_raw()),
                "d": b64url(self.key.private_bytes_raw()),
            }
            return
        size, self.key = (32, ec.generate_private_key(ec.SECP256R1()))
        numbers = self.key.private_numbers()
        self.jwk = {
            "kty": "EC",
            "crv": curve,
            "kid": "of-the-provisioner",
            "x": b64url(numbers.public_numbers.x.to_bytes(size, "big")),
            "y": b64url(numbers.public_numbers.y.to_bytes(size, "big")),
            "d": b64url(numbers.private_value.to_bytes(size, "big")),
        }

    def encrypted(self) -> str:
        """Return the key as ca.json has it: a JWE by PBES2-HS256+A128KW and A256GCM."""
        head = {"alg": "PBES2-HS256+A128KW", "cty": "jwk+json", "enc": "A256GCM", "p2c": 1000, "p2s": b64url(b"s" * 16)}
        protected = b64url(json.dumps(head).encode())
        salt = head["alg"].encode() + b"\0" + b"s" * 16  # type: ignore[attr-defined]
        wrapping = PBKDF2HMAC(hashes.SHA256(), 16, salt, 1000).derive(PASSWORD.encode())
        content_key, iv = b"c" * 32, b"i" * 12
        sealed = AESGCM(content_key).encrypt(iv, json.dumps(self.jwk).encode(), protected.encode())
        parts = (aes_key_wrap(wrapping, content_key), iv, sealed[:-16], sealed[-16:])
        return ".".join([protected, *map(b64url, parts)])

    def verify(self, token: str) -> dict[str, Any]:
        """Return the claims of a token that this provisioner has signed; raise ValueError for any other."""
        text, _, signature = token.rpartition(".")
        head, claims = (json.loads(unb64url(part)) for part in text.split("."))
        raw = unb64url(signature)
        try:
            if self.curve == "Ed25519":
                assert head["alg"] == "EdDSA"
                self.key.public_key().verify(raw, text.encode())
            else:
                assert (head["alg"], head["kid"], len(raw)) == ("ES256", "of-the-provisioner", 64)
                halves = (int.from_bytes(half, "big") for half in (raw[:32], raw[32:]))
                self.key.public_key().verify(encode_dss_signature(*halves), text.encode(), ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            raise ValueError("error verifying token") from None
        return dict(claims)


class Replay(ThreadingHTTPServer):
    """Answers ``/1.0/ssh/sign`` as step-ca does for a JWK provisioner, and signs."""

    daemon_threads = True

    def __init__(self, authority: Path, provisioner: Provisioner) -> None:
        super().__init__(("127.0.0.1", 0), Replaying)
        self.authority = authority
        self.provisioner = provisioner
        self.ahead = 0
        self.spent: set[str] = set()
        self.plain_tokens: set[str] = set()
        self.answer: tuple[int, bytes] | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that reads no further than it must hangs up.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def signed(self, body: dict[str, Any]) -> bytes:
        """Return the certificate for a request, or raise ValueError with what step-ca's log says of it."""
        if body["ott"] in self.plain_tokens:
            self.plain_tokens.remove(body["ott"])
            subject, of_token = "of another provisioner", {}
        else:
            claims = self.provisioner.verify(body["ott"])
            now = time.time() + self.ahead
            if not claims["nbf"] - 60 <= now <= claims["exp"] + 60 or claims["iat"] > now + 60:
                raise ValueError("token not valid at this time")
            if (claims["iss"], claims["aud"]) != (NAME, f"{self.url}/1.0/ssh/sign"):
                raise ValueError("invalid issuer or audience")
            if claims["jti"] in self.spent:
                raise ValueError("token already used")
            self.spent.add(claims["jti"])
            subject, of_token = claims["sub"], claims["step"]["ssh"]
            # As the validator of options: what both say must be the same.
            if any(body[name] != value for name, value in of_token.items()):
                raise ValueError("ssh certificate options do not match")
        if body.get("keyID", subject) != subject:
            raise ValueError("ssh certificate keyID does not match")
        order = ordered(
            f"ssh-ed25519 {body['publicKey']}",
            key_id=subject,
            principals=tuple(body["principals"]),
            extensions=("permit-X11-forwarding", "permit-pty"),
        )
        # As step-ca does: valid from a minute ago, by its own clock.
        moment = int(time.time()) + self.ahead
        seconds = int(body["validBefore"].removesuffix("s"))
        order = replace(order, valid_after=moment - 60, valid_before=moment + seconds)
        line = OwnAuthority().sign({"key": self.authority.read_text()}, order, timeout=10)
        return base64.b64decode(line.split()[1])


class Replaying(BaseHTTPRequestHandler):
    server: Replay
    protocol_version: ClassVar[str] = "HTTP/1.1"  # type: ignore[misc]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, answer = self.server.answer or self._answer(body)
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if self.path != "/1.0/ssh/sign" or body["certType"] != "user":
            return 404, b"404 page not found\n"
        try:
            certificate = self.server.signed(body)
        except ValueError:
            # It says no more than that; its log does.
            said = "The request lacked necessary authorization to be completed."
            return 401, json.dumps({"status": 401, "message": said}).encode()
        return 201, json.dumps({"crt": base64.b64encode(certificate).decode()}).encode()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keygen(tmp_path_factory.mktemp("authority") / "authority")


@pytest.fixture(params=["P-256", "Ed25519"])
def replay(authority: Path, request: pytest.FixtureRequest) -> Iterator[Replay]:
    server = Replay(authority, Provisioner(request.param))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, name="replay")
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def key() -> tuple[Identity, str]:
    return fresh("the login's")


def data_for(replay: Replay, **other: Any) -> dict[str, Any]:
    given = {"address": replay.url, "provisioner": NAME, "key": json.dumps(replay.provisioner.jwk), **other}
    loaded: dict[str, Any] = StepCa().schema().load({name: value for name, value in given.items() if value})
    return loaded


def certified(data: dict[str, Any], order: CertificateOrder) -> str:
    return StepCa().sign(data, order, timeout=60)


def test_a_provisioner_s_key_gets_a_certificate_with_a_token_of_its_own(
    replay: Replay, key: tuple[Identity, str], authority: Path
) -> None:
    order = ordered(key[1])
    encrypted = {"key": replay.provisioner.encrypted(), "password": PASSWORD}
    for data in (data_for(replay), data_for(replay), data_for(replay, **encrypted)):
        text = certified(data, order)
        check(SignedCertificate(text, order, "corp", [public_of(authority)]), key[0])
        assert order.key_id.encode() in base64.b64decode(text.split()[1])
    assert len(replay.spent) == 3


def test_a_token_of_another_provisioner_is_passed_on(
    replay: Replay, key: tuple[Identity, str], authority: Path
) -> None:
    replay.plain_tokens.add("made by step ca token")
    data, order = data_for(replay, provisioner=None, key=None, token="made by step ca token"), ordered(key[1])
    check(SignedCertificate(certified(data, order), order, "corp", [public_of(authority)]), key[0])
    with pytest.raises(SignerRefused):
        certified(data, order)


@pytest.mark.parametrize("ahead", [-600, 600])
def test_clocks_that_are_apart_are_named(replay: Replay, key: tuple[Identity, str], ahead: int) -> None:
    replay.ahead = ahead
    with pytest.raises(SignerRefused, match="a clock that is wrong"):
        certified(data_for(replay), ordered(key[1]))


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"key": "no key"}, "it is not a JWK"),
        ({"key": '{"kty": "RSA", "n": "AA"}'}, "not a private JWK of an elliptic curve"),
        ({"key": '{"kty": "EC", "crv": "P-256", "x": "AA"}'}, "not a private JWK of an elliptic curve"),
        ({"key": "a.b.c.d.e", "password": PASSWORD}, "damaged"),
    ],
)
def test_a_key_that_cannot_sign_is_told_without_it(
    replay: Replay, key: tuple[Identity, str], other: dict[str, str], why: str
) -> None:
    with pytest.raises(SignerUnavailable, match=f"cannot be used: .*{why}") as failed:
        certified(data_for(replay, **other), ordered(key[1]))
    assert other["key"] not in failed.value.message


def test_a_wrong_password_is_told_without_it(replay: Replay, key: tuple[Identity, str]) -> None:
    data = data_for(replay, key=replay.provisioner.encrypted(), password="another password")
    with pytest.raises(SignerUnavailable, match="its password is wrong") as failed:
        certified(data, ordered(key[1]))
    assert "another password" not in failed.value.message
    hostile = replay.provisioner.encrypted().split(".")
    head = {**json.loads(unb64url(hostile[0])), "p2c": 10**12}
    data = data_for(replay, key=".".join([b64url(json.dumps(head).encode()), *hostile[1:]]), password=PASSWORD)
    with pytest.raises(SignerUnavailable, match="1000000000000 iterations"):
        certified(data, ordered(key[1]))


@pytest.mark.parametrize(
    ("answer", "error", "complaint"),
    [
        ((500, b'{"status": 500, "message": "\\u001b[31mThe CA failed."}'), SignerUnavailable, r"500: \[31mThe CA"),
        ((403, b"<html>"), SignerRefused, r"does not sign \(403\): it said nothing"),
        ((201, b"{}"), SignerUnavailable, "there is no crt"),
        ((201, b'{"crt": "no base64!"}'), SignerUnavailable, "there is no crt"),
        ((201, b"[]"), SignerUnavailable, "there is no crt"),
        ((201, b"x" * 300_000), SignerUnavailable, "more than 256 KiB"),
    ],
)
def test_what_it_answers_otherwise_is_told(
    replay: Replay, key: tuple[Identity, str], answer: tuple[int, bytes], error: type[ConnmgrError], complaint: str
) -> None:
    replay.answer = answer
    with pytest.raises(error, match=complaint):
        certified(data_for(replay), ordered(key[1]))


def test_one_that_is_down_or_silent_is_given_up(replay: Replay, key: tuple[Identity, str], closed_port: int) -> None:
    down = {**data_for(replay), "address": f"http://127.0.0.1:{closed_port}"}
    with pytest.raises(SignerUnavailable, match="Connection refused"):
        certified(down, ordered(key[1]))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        silent = {**down, "address": f"http://127.0.0.1:{listening.getsockname()[1]}"}
        with pytest.raises(SignerTimeout, match="did not answer within"):
            StepCa().sign(silent, ordered(key[1]), timeout=0.5)


@pytest.mark.parametrize(
    "data",
    [
        {"address": "https://ca.example"},
        {"address": "https://ca.example", "provisioner": "a"},
        {"address": "https://ca.example", "key": "a"},
        {"address": "https://ca.example", "token": "a", "provisioner": "b", "key": "c"},
        {"address": "https://ca.example", "token": "a", "password": "b"},
        {"address": "http://ca.example", "token": "a"},
    ],
)
def test_it_logs_in_by_one_way(data: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        StepCa().schema().load(data)


@pytest.mark.needs("sshd")
def test_a_login_by_it_reaches_a_host(clean_daemon: Daemon, host: Host, replay: Replay, authority: Path) -> None:
    owner = clean_daemon.client
    host.trust([public_of(authority)])
    made = owner.ca.init(
        "corp",
        {"type": "step-ca", "address": replay.url, "provisioner": NAME, "key": json.dumps(replay.provisioner.jwk)},
        authority=public_of(authority),
    )
    assert made == [public_of(authority)]
    connection, start = owner.connection.add("web1", host.data(signer="corp")), len(host.log())
    assert owner.shell.start(connection)
    assert "ID connmgr entry=" in host.log()[start:]
    replay.answer = (503, b"")
    other = owner.connection.add("web2", {**host.data(signer="corp"), "keepAlive": 5})
    with pytest.raises(ClientError) as failed:
        owner.shell.start(other)
    assert failed.value.code == "signer_unavailable"
