"""The bundled kinds of signers that are servers: the ssh engine of HashiCorp's Vault and of OpenBao, and step-ca."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from connmgr.errors import SignerRefused, SignerTimeout, SignerUnavailable
from connmgr.plugin import (
    CertificateOrder,
    Deadline,
    Length,
    Schema,
    Secret,
    SshSigner,
    Text,
    ValidationError,
    validates_schema,
)
from connmgr.plugin.outside import Unanswered, ask_server, check_server, quoted

MAX_ANSWER_BYTES = 256 << 10
SECONDS_WITHOUT_LEASE = 3600.0
"""After this time a token that never ends, or cannot be renewed, is tried again."""

CA_FILE = Text(
    validate=Length(1, 4096), metadata={"description": "The certificates that HTTPS trusts; the system's otherwise."}
)


class SigningVaultSchema(Schema):
    """A role of an ssh secrets engine, and how to log in there."""

    address = Text(
        required=True,
        validate=[Length(1, 2000), check_server],
        metadata={"description": "Such as https://vault.example:8200."},
    )
    role = Text(required=True, validate=Length(1, 128), metadata={"description": "The role that signs."})
    mount = Text(
        load_default="ssh", validate=Length(1, 128), metadata={"description": "Where the ssh engine is mounted."}
    )
    namespace = Text(validate=Length(1, 256), metadata={"description": "The namespace, if there are any."})
    token = Secret(metadata={"description": "A token; or else roleId and secretId."})
    roleId = Text(validate=Length(1, 256), metadata={"description": "The role id of an AppRole."})
    secretId = Secret(metadata={"description": "The secret id of that AppRole."})
    appRoleMount = Text(
        load_default="approle", validate=Length(1, 128), metadata={"description": "Where AppRole is mounted."}
    )
    caFile = CA_FILE

    @validates_schema
    def _logs_in_by_one_way(self, data: Mapping[str, Any], **_: Any) -> None:
        by_role = ["roleId" in data, "secretId" in data]
        if ("token" in data) == any(by_role) or by_role.count(True) == 1:
            raise ValidationError("Either token is needed, or roleId and secretId.")


class VaultSecretsEngine(SshSigner):
    """``ssh/sign/ROLE`` of HashiCorp's Vault or OpenBao.

    Tokens of AppRoles are kept in memory for half of their lease; a token of one's own is renewed as often.
    """

    name = "vault"
    description = "A role of the ssh secrets engine of HashiCorp Vault or OpenBao."
    schema = SigningVaultSchema

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: dict[bytes, tuple[float, str]] = {}
        self._renewals: dict[bytes, float] = {}

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        deadline = Deadline(timeout)
        path = f"/v1/{quote(data['mount'])}/sign/{quote(data['role'], safe='')}"
        body = {
            "public_key": order.public_key,
            "cert_type": "user",
            "key_id": order.key_id,
            "valid_principals": ",".join(order.principals),
            "ttl": f"{order.seconds}s",
            "extensions": dict.fromkeys(order.extensions, ""),
        }
        if "token" in data:
            self._renew(data, deadline)
        for last in (False, True):
            token = data.get("token") or self._logged_in(data, deadline)
            status, answer = _of_vault(data, path, body, token, deadline)
            if status == http.client.FORBIDDEN and "token" not in data and not last:
                # It was revoked before its time.
                self._forget(data)
                continue
            break
        signed = _vaults_answer(data, status, answer).get("data")
        key = signed.get("signed_key") if isinstance(signed, dict) else None
        if not isinstance(key, str):
            raise SignerUnavailable(f"{data['address']} did not answer as Vault does: there is no signed_key.")
        return key

    def _logged_in(self, data: Mapping[str, Any], deadline: Deadline) -> str:
        """Return a token of the AppRole; the lock is held meanwhile, so that many logins need one."""
        if not self._lock.acquire(timeout=deadline.left()):
            raise _late(data, deadline)
        try:
            until, token = self._tokens.get(_account(data), (0.0, ""))
            if time.monotonic() < until:
                return token
            body = {"role_id": data["roleId"], "secret_id": data["secretId"]}
            path = f"/v1/auth/{quote(data['appRoleMount'])}/login"
            auth = _vaults_answer(data, *_of_vault(data, path, body, None, deadline)).get("auth")
            new = auth.get("client_token") if isinstance(auth, dict) else None
            if not isinstance(auth, dict) or not isinstance(new, str):
                raise SignerUnavailable(f"{data['address']} did not answer as Vault does: there is no client_token.")
            self._tokens[_account(data)] = (time.monotonic() + _half_of(auth.get("lease_duration")), new)
            return new
        finally:
            self._lock.release()

    def _renew(self, data: Mapping[str, Any], deadline: Deadline) -> None:
        """Renew the token if half of its lease is over, or that is unknown; one that cannot be is used as it is."""
        name = hashlib.sha256(json.dumps([data["address"], data["token"]]).encode()).digest()
        with self._lock:
            if time.monotonic() < self._renewals.get(name, 0.0):
                return
            # Other logins do not wait for the answer.
            self._renewals[name] = time.monotonic() + SECONDS_WITHOUT_LEASE
        try:
            status, content = _of_vault(data, "/v1/auth/token/renew-self", {}, data["token"], deadline)
        except (SignerTimeout, SignerUnavailable):
            # The next login tries again.
            with self._lock:
                self._renewals.pop(name, None)
            raise
        if status == http.client.OK and isinstance(auth := _vaults_answer(data, status, content).get("auth"), dict):
            with self._lock:
                self._renewals[name] = time.monotonic() + _half_of(auth.get("lease_duration"))

    def _forget(self, data: Mapping[str, Any]) -> None:
        with self._lock:
            self._tokens.pop(_account(data), None)


def _half_of(lease: object) -> float:
    """Return after how many seconds a token is renewed: its other half is for requests under way, and for clocks."""
    return lease / 2 if isinstance(lease, int) and lease > 0 else SECONDS_WITHOUT_LEASE


def _account(data: Mapping[str, Any]) -> bytes:
    words = [data["address"], data.get("namespace"), data["appRoleMount"], data["roleId"], data["secretId"]]
    return hashlib.sha256(json.dumps(words).encode()).digest()


def _of_vault(
    data: Mapping[str, Any], path: str, body: Mapping[str, Any], token: str | None, deadline: Deadline
) -> tuple[int, bytes]:
    headers = {"X-Vault-Request": "true"}
    headers |= {"X-Vault-Token": token} if token else {}
    headers |= {"X-Vault-Namespace": data["namespace"]} if data.get("namespace") else {}
    return _posted(data, path, body, headers, deadline)


def _vaults_answer(data: Mapping[str, Any], status: int, content: bytes) -> dict[str, Any]:
    """Return the JSON of an answer.

    :raises SignerRefused | SignerUnavailable: its status, or its form, is another.
    """
    where, answer = data["address"], _object(content)
    errors = answer.get("errors") if answer is not None else None
    reason = quoted("; ".join(map(str, errors)) if isinstance(errors, list) else "") or "it said nothing"
    if status == http.client.OK and answer is not None:
        return answer
    if status in (400, 403, 404):
        raise SignerRefused(f"{where} does not sign for the role {data['role']} ({status}): {reason}.")
    if status == http.client.OK:
        raise SignerUnavailable(f"{where} did not answer as Vault does: its answer is not JSON.")
    raise SignerUnavailable(f"{where} fails with status {status}: {reason}.")


def _posted(
    data: Mapping[str, Any], path: str, body: Mapping[str, Any], headers: Mapping[str, str], deadline: Deadline
) -> tuple[int, bytes]:
    """Post ``body`` as JSON and return the status and the content of the answer.

    :raises SignerUnavailable | SignerTimeout: there is none.
    """
    try:
        return ask_server(
            data["address"],
            path,
            deadline,
            headers={"Content-Type": "application/json", **headers},
            body=json.dumps(body).encode(),
            ca_file=data.get("caFile"),
            limit=MAX_ANSWER_BYTES,
        )
    except Unanswered as why:
        if why.late:
            raise _late(data, deadline) from None
        raise SignerUnavailable(f"The signer at {data['address']} does not answer: {why}.") from why.__cause__


def _late(data: Mapping[str, Any], deadline: Deadline) -> SignerTimeout:
    return SignerTimeout(f"The signer at {data['address']} did not answer within {deadline.seconds:.0f} s.")


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        decoded = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return decoded if isinstance(decoded, dict) else None


TOKEN_SECONDS = 300
"""How long a one-time token for step-ca is valid; its clock may differ by a minute."""

MOST_ITERATIONS = 10_000_000
"""Iterations over the password of a provisioner's key; more would take longer than a signer may."""

_SIGNING = {"P-256": ("ES256", 32), "P-384": ("ES384", 48), "P-521": ("ES512", 66)}
"""By the name of a curve (RFC 7518): the algorithm, and the bytes of each half of a signature."""


class StepSchema(Schema):
    """A provisioner of a step-ca."""

    address = Text(
        required=True,
        validate=[Length(1, 2000), check_server],
        metadata={"description": "Such as https://ca.example:9000."},
    )
    provisioner = Text(
        validate=Length(1, 256), metadata={"description": "The name of a provisioner of the type JWK, with its key."}
    )
    key = Secret(
        metadata={
            "description": "The provisioner's private key: a JWK, or the `encryptedKey` of ca.json with its password."
        }
    )
    password = Secret(metadata={"description": "The password of an encrypted key."})
    token = Secret(
        metadata={
            "description": "A one-time token of a provisioner of another type, from a source that makes one for each "
            "login."
        }
    )
    caFile = CA_FILE

    @validates_schema
    def _logs_in_by_one_way(self, data: Mapping[str, Any], **_: Any) -> None:
        by_key = ["provisioner" in data, "key" in data]
        if ("token" in data) == any(by_key) or by_key.count(True) == 1 or ("token" in data and "password" in data):
            raise ValidationError(
                "Either provisioner and key are needed, with a password if it is encrypted, or token."
            )


class StepCa(SshSigner):
    """``POST /1.0/ssh/sign`` of smallstep's step-ca, with a one-time token for each certificate.

    The daemon makes the token by the key of a JWK provisioner. It names the key id, the names and the time, so it is
    good for this certificate alone.
    """

    name = "step-ca"
    description = "A provisioner of smallstep's step-ca."
    schema = StepSchema

    def sign(self, data: Mapping[str, Any], order: CertificateOrder, *, timeout: float) -> str:
        deadline = Deadline(timeout)
        claims = {"certType": "user", "principals": list(order.principals), "validBefore": f"{order.seconds}s"}
        if "key" in data:
            claims["keyID"] = order.key_id
            token = _one_time_token(data, claims)
        else:
            # step-ca refuses another key id than the subject of the token.
            token = data["token"]
        blob = order.public_key.split()[1]
        status, content = _posted(data, "/1.0/ssh/sign", {"publicKey": blob, "ott": token, **claims}, {}, deadline)
        answer = _object(content)
        if status == http.client.CREATED:
            try:
                certificate = base64.b64decode((answer or {})["crt"], validate=True)
                kind = certificate[4 : 4 + int.from_bytes(certificate[:4], "big")].decode("ascii")
            except (KeyError, TypeError, ValueError):
                raise SignerUnavailable(f"{data['address']} did not answer as step-ca does: there is no crt.") from None
            return f"{kind} {base64.b64encode(certificate).decode()}"
        reason = quoted(str((answer or {}).get("message", ""))) or "it said nothing"
        if status in (400, 401, 403):
            raise SignerRefused(
                f"{data['address']} does not sign ({status}): {reason}. Its log says why: the provisioner, its "
                f"key, the names, {order.seconds} s (step-ca wants five minutes or more by default), or a "
                "clock that is wrong."
            )
        raise SignerUnavailable(f"{data['address']} fails with status {status}: {reason}.")


def _one_time_token(data: Mapping[str, Any], wish: Mapping[str, Any]) -> str:
    """Return a JWT (RFC 7519) of the provisioner for one certificate.

    :raises SignerUnavailable: its key cannot be used.
    """
    jwk = _provisioner_key(data["key"], data.get("password"))
    now = int(time.time())
    claims = {
        "iss": data["provisioner"],
        "aud": f"{data['address'].rstrip('/')}/1.0/ssh/sign",
        "sub": wish["keyID"],
        "jti": secrets.token_hex(16),
        "iat": now,
        "nbf": now,
        "exp": now + TOKEN_SECONDS,
        "step": {"ssh": dict(wish)},
    }
    try:
        algorithm, sign = _signing(jwk)
    except (KeyError, TypeError, ValueError):
        raise _unusable("it is not a private JWK of an elliptic curve (kty EC or OKP)") from None
    head = {"alg": algorithm, "kid": jwk.get("kid") or _thumbprint(jwk), "typ": "JWT"}
    text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{_encoded(sign(text.encode()))}"


def _provisioner_key(text: str, password: str | None) -> dict[str, Any]:
    """Return the private JWK that ``text`` is, or that it has encrypted by ``password`` (RFC 7516, as step writes it).

    :raises SignerUnavailable: it is neither, or the password is wrong.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.pbkdf2 import PBKDF2HMAC
    from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

    if (jwk := _object(text.encode())) is not None:
        return jwk
    if password is None:
        raise _unusable("it is not a JWK; if it is encrypted, its password is needed")
    try:
        protected, *parts = text.strip().split(".")
        wrapped, iv, content, tag = map(_decoded, parts)
        head = json.loads(_decoded(protected))
        if (head["alg"], head["enc"]) not in (("PBES2-HS256+A128KW", "A256GCM"), ("PBES2-HS256+A128KW", "A128GCM")):
            raise _unusable(f"it is encrypted by {quoted(str(head['alg']))} and {quoted(str(head['enc']))}")
        iterations = head["p2c"]
        if not 0 < iterations <= MOST_ITERATIONS:
            raise _unusable(f"it asks for {quoted(str(iterations))} iterations")
        salt = head["alg"].encode() + b"\0" + _decoded(head["p2s"])
        derivation = PBKDF2HMAC(hashes.SHA256(), 16, salt, iterations)
        key = aes_key_unwrap(derivation.derive(password.encode()), wrapped)
        decrypted = _object(AESGCM(key).decrypt(iv, content + tag, protected.encode()))
    except (InvalidUnwrap, InvalidTag):
        raise _unusable("its password is wrong") from None
    except (KeyError, TypeError, ValueError):
        raise _unusable("it is damaged") from None
    if decrypted is None:
        raise _unusable("it is damaged")
    return decrypted


def _signing(jwk: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the algorithm of a private JWK (RFC 7518, RFC 8037) and a function that signs by it."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    if jwk["kty"] == "OKP" and jwk["crv"] == "Ed25519":
        return "EdDSA", ed25519.Ed25519PrivateKey.from_private_bytes(_decoded(jwk["d"])).sign
    if jwk["kty"] != "EC":
        raise ValueError(jwk["kty"])
    curves: dict[str, tuple[ec.EllipticCurve, hashes.HashAlgorithm]] = {
        "P-256": (ec.SECP256R1(), hashes.SHA256()),
        "P-384": (ec.SECP384R1(), hashes.SHA384()),
        "P-521": (ec.SECP521R1(), hashes.SHA512()),
    }
    curve, hashing = curves[jwk["crv"]]
    algorithm, size = _SIGNING[jwk["crv"]]
    key = ec.derive_private_key(int.from_bytes(_decoded(jwk["d"]), "big"), curve)

    def sign(text: bytes) -> bytes:
        # Both numbers in full length, and not ASN.1 (RFC 7518, section 3.4).
        return b"".join(n.to_bytes(size, "big") for n in decode_dss_signature(key.sign(text, ec.ECDSA(hashing))))

    return algorithm, sign


def _thumbprint(jwk: Mapping[str, Any]) -> str:
    """Return the name that step gives a key: RFC 7638 over its public members, in their order."""
    members = {name: jwk[name] for name in ("crv", "kty", "x", "y") if name in jwk}
    return _encoded(hashlib.sha256(json.dumps(members, separators=(",", ":")).encode()).digest())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), "-_", validate=True)


def _unusable(why: str) -> SignerUnavailable:
    # No part of the key is in it.
    return SignerUnavailable(f"The key of step-ca's provisioner cannot be used: {why}.")
