"""The sealed form: only its principals can read it, and every changed byte is noticed."""

from __future__ import annotations

import base64
import copy
import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.bindings import crypto_box_seal, crypto_box_seal_open, sodium_pad
from nacl.secret import SecretBox

from connmgr.errors import IntegrityError
from connmgr.secrets.principals import Access, Principal, new_principal
from connmgr.secrets.sealing import seal, verify

SEALING_KEY = bytes(range(32))
WRAPPING = bytes(32)


def pair(name: str) -> tuple[Principal, bytes]:
    return new_principal(name, WRAPPING)


def open_as(encrypted: dict[str, Any], who: Principal, private: bytes) -> str:
    envelope = verify(encrypted, SEALING_KEY)
    key_id, sealed = envelope.recipients[who.name]
    assert key_id == who.key_id
    return envelope.open(crypto_box_seal_open(sealed, who.public_key, private))


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(value: str) -> None:
    principal, private = pair("vault")
    assert open_as(seal(value, [principal], SEALING_KEY), principal, private) == value


def test_each_principal_opens_it_with_its_own_key() -> None:
    pairs = [pair(name) for name in ("vault", "alice", "bob")]
    encrypted = seal("s3cret", [principal for principal, _ in pairs], SEALING_KEY)
    assert list(verify(encrypted, SEALING_KEY).recipients) == ["alice", "bob", "vault"]
    assert [open_as(encrypted, *each) for each in pairs] == ["s3cret"] * 3


def test_the_shape_and_that_it_shows_nothing() -> None:
    principal, _ = pair("vault")
    first, second = (seal("hunter2", [principal], SEALING_KEY) for _ in range(2))
    assert set(first) == {"encryptedToken", "secret"}
    assert set(first["encryptedToken"]) == {"token"}
    assert set(first["secret"]) == {"encryptedValue", "type"}
    assert first["secret"]["type"] == "locked"
    assert first["secret"]["encryptedValue"] != second["secret"]["encryptedValue"]
    raw = b"".join(base64.b64decode(text_of(first, part)) for part in ("token", "box"))
    assert b"hunter2" not in raw + json.dumps(first).encode()


def test_the_length_of_a_password_is_hidden() -> None:
    principal, _ = pair("vault")
    lengths = {len(seal("x" * n, [principal], SEALING_KEY)["secret"]["encryptedValue"]) for n in range(64)}
    assert len(lengths) == 1


@pytest.fixture(scope="module")
def encrypted() -> dict[str, Any]:
    return seal("the value", [pair("vault")[0], pair("alice")[0]], SEALING_KEY)


def with_text(encrypted: dict[str, Any], part: str, text: Any) -> dict[str, Any]:
    changed = copy.deepcopy(encrypted)
    if part == "token":
        changed["encryptedToken"]["token"] = text
    else:
        changed["secret"]["encryptedValue"] = text
    return changed


def text_of(encrypted: dict[str, Any], part: str) -> str:
    return str(encrypted["encryptedToken"]["token"] if part == "token" else encrypted["secret"]["encryptedValue"])


@pytest.mark.parametrize("part", ["token", "box"])
def test_every_changed_byte_is_refused(encrypted: dict[str, Any], part: str) -> None:
    raw = base64.b64decode(text_of(encrypted, part))
    for at in range(len(raw)):
        for change in (1, 0x80, 0xFF):
            changed = raw[:at] + bytes([raw[at] ^ change]) + raw[at + 1 :]
            with pytest.raises(IntegrityError):
                verify(with_text(encrypted, part, base64.b64encode(changed).decode()), SEALING_KEY)


@pytest.mark.parametrize("part", ["token", "box"])
def test_every_shortened_or_lengthened_part_is_refused(encrypted: dict[str, Any], part: str) -> None:
    raw = base64.b64decode(text_of(encrypted, part))
    for changed in [raw[:end] for end in range(len(raw))] + [raw + b"\0", b"\0" + raw, raw * 2]:
        with pytest.raises(IntegrityError):
            verify(with_text(encrypted, part, base64.b64encode(changed).decode()), SEALING_KEY)


@pytest.mark.parametrize("part", ["token", "box"])
def test_every_other_spelling_of_the_same_bytes_is_refused(encrypted: dict[str, Any], part: str) -> None:
    text = text_of(encrypted, part)
    spellings = {text + "\n", " " + text, text[:4] + "\n" + text[4:], text + "=", text + "====", text + "\u00e9"}
    spellings |= {text.translate(str.maketrans("+/", "-_")), text.rstrip("=")} - {text}
    for character in map(chr, range(128)):
        for at in (0, len(text) // 2, len(text.rstrip("=")) - 1):
            spellings.add(text[:at] + character + text[at + 1 :])
    for spelling in spellings - {text}:
        with pytest.raises(IntegrityError):
            verify(with_text(encrypted, part, spelling), SEALING_KEY)


@pytest.mark.parametrize("text", ["", "AA==", None, 7, [], {}, b"AAAA", True])
@pytest.mark.parametrize("part", ["token", "box"])
def test_malformed_base64_is_refused(encrypted: dict[str, Any], part: str, text: Any) -> None:
    with pytest.raises(IntegrityError):
        verify(with_text(encrypted, part, text), SEALING_KEY)


@pytest.mark.parametrize(
    "shape", [{}, {"secret": 3}, {"secret": {}, "encryptedToken": []}, {"encryptedToken": {"token": "AA=="}}]
)
def test_another_shape_is_refused(shape: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        verify(shape, SEALING_KEY)


def test_another_type_is_refused(encrypted: dict[str, Any]) -> None:
    changed = copy.deepcopy(encrypted)
    changed["secret"]["type"] = "open"
    with pytest.raises(IntegrityError):
        verify(changed, SEALING_KEY)


def test_token_and_value_of_two_secrets_cannot_be_mixed() -> None:
    principal, _ = pair("vault")
    first, second = (seal(value, [principal], SEALING_KEY) for value in ("one", "two"))
    with pytest.raises(IntegrityError):
        verify({"encryptedToken": first["encryptedToken"], "secret": second["secret"]}, SEALING_KEY)


def test_a_secret_of_another_vault_is_refused(encrypted: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        verify(encrypted, os.urandom(32))


def test_a_forgery_from_public_keys_alone_is_refused() -> None:
    """Everything that a forger needs except the sealing key: public keys, names and the format."""
    victim, _ = pair("vault")
    data_key = os.urandom(32)
    box = bytes(SecretBox(data_key).encrypt(sodium_pad(b"attacker's password", 64)))
    header = b"\x01\x01\x05vault" + victim.key_id + crypto_box_seal(data_key, victim.public_key)
    genuine = base64.b64decode(seal("x", [victim], SEALING_KEY)["encryptedToken"]["token"])
    assert len(genuine) == len(header) + 32, "the forgery no longer has the shape of a genuine token"
    for guess in (bytes(32), os.urandom(32), victim.public_key, genuine[-32:]):
        forged = {
            "encryptedToken": {"token": base64.b64encode(header + guess).decode()},
            "secret": {"encryptedValue": base64.b64encode(box).decode(), "type": "locked"},
        }
        with pytest.raises(IntegrityError):
            verify(forged, SEALING_KEY)


def test_a_wrong_data_key_is_an_integrity_error(encrypted: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        verify(encrypted, SEALING_KEY).open(os.urandom(32))


def test_access_opens_for_its_user_until_it_is_locked() -> None:
    (alice, alice_private), (bob, _) = pair("alice"), pair("bob")
    encrypted = seal("s", [alice, bob], SEALING_KEY)
    recipients = verify(encrypted, SEALING_KEY).recipients
    access = Access()
    assert access.open(*recipients["alice"]) is None
    access.grant(alice, alice_private)
    assert access.open(*recipients["bob"]) is None
    data_key = access.open(*recipients["alice"])
    assert data_key is not None
    assert verify(encrypted, SEALING_KEY).open(data_key) == "s"
    held = access._private
    access.lock()
    assert held == bytearray(32), "the private key was not overwritten"
    assert access.open(*recipients["alice"]) is None
    assert access.principal is None
