"""Logging in (RFC 4252, RFC 4256): which private keys are offered, and the conversation with the host.

The keys are a connection's own, the configuration's, or an agent's. Public keys come first, then keyboard-interactive,
then password, as OpenSSH orders them. A password refused by one method is not sent by another: hosts count failures and
lock users.
"""

from __future__ import annotations

import os
import queue
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from paramiko import common
from paramiko.message import Message
from paramiko.ssh_exception import SSHException

from connmgr.errors import AuthFailed, HostRefused
from connmgr.plugin import Deadline
from connmgr_ssh.agent import AgentClient
from connmgr_ssh.config import Destination, read_local_file, shown
from connmgr_ssh.keys import Identity, certified, load
from connmgr_ssh.known_hosts import HostKey
from connmgr_ssh.link import SshLink
from connmgr_ssh.packets import packed

USUAL = ("id_ed25519", "id_ecdsa", "id_rsa")
"""The files that ``ssh`` tries in ``~/.ssh`` if none is named."""

STORED = "(the connection's own key)"

MAX_ATTEMPTS = 6
"""Attempts in all, as many as sshd accepts by default (MaxAuthTries). One is reserved for a password."""

MAX_ROUNDS = 16
"""Rounds of questions that a host may ask in one login."""

MAX_UNREAD_ANSWERS = 8
"""Answers that may wait to be read; a host answers each message once."""

_SUCCESS, _FAILURE = common.MSG_USERAUTH_SUCCESS, common.MSG_USERAUTH_FAILURE
# Three messages share one number; the current method tells them apart.
_KEY_OK = _NEW_PASSWORD = _QUESTIONS = common.MSG_USERAUTH_INFO_REQUEST

_PASSWORD_WORDS = re.compile(
    r"passwor[dt]|passphrase|passord|mot de passe|contrase|senha|has[lł]o|парол|密码|密碼|パスワード|암호|비밀번호"
    r"|l[öo]senord|wachtwoord|parola|salasana|adgangskode|heslo|jelsz|[sş]ifre",
    re.IGNORECASE,
)
_OTHER_WORDS = re.compile(
    # Whole words: the user's name may be part of the question.
    r"\b(?:new|again|retype|repeat|one-?time|otp|token|(?:pass)?code|verification|neues|nouveau|nueva)\b",
    re.IGNORECASE,
)


@dataclass
class OfferedIdentities:
    """The identities to offer, certificates first, and notes about keys that cannot be used.

    ``locked`` are the details of an error about an encrypted key that could be used with its passphrase.
    """

    identities: list[Identity]
    notes: list[str]
    locked: Mapping[str, Any] = field(default_factory=dict)


def gather(
    destination: Destination,
    data: Mapping[str, Any],
    deadline: Deadline,
    agent: AgentClient | None,
    passphrases: Mapping[str, str],
) -> OfferedIdentities:
    """Return the identities to offer.

    If ``data`` has an ``identity``, only that identity is offered. ``agent`` is None if no agent may be asked.
    ``passphrases`` are those that a client lends, by the ``key`` in the details of an error.
    :raises AuthFailed: the requested identity cannot be used.
    """
    agent_keys, notes = _agent_keys(agent, deadline, insist=bool(data.get("agent")))
    if data.get("identity"):
        return OfferedIdentities(
            _with_certificates(_requested(data["identity"], agent_keys, passphrases), destination), notes
        )
    configured = _configured(destination, data, agent_keys, passphrases)
    identities = configured.identities
    if not destination.identities_only:
        identities = [*agent_keys, *(identity for identity in identities if identity not in agent_keys)]
    return OfferedIdentities(_with_certificates(identities, destination), notes + configured.notes, configured.locked)


def offered(destination: Destination, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the private keys that :func:`gather` would offer besides an agent's; reads no file."""
    requested = data.get("identity")
    if requested and isinstance(requested.get("certificate"), Mapping):
        return (f"(a certificate by {requested['certificate']['signer']})",)
    if requested:
        return (shown(Path(requested["file"]).expanduser()) if "file" in requested else STORED,)
    return tuple(shown(Path(name).expanduser()) for name in _named(destination, data))


def wants_agent(data: Mapping[str, Any]) -> bool:
    """Whether an ssh-agent is to be asked for keys."""
    return bool(data.get("agent", data.get("password") is None and not data.get("identity")))


def _agent_keys(agent: AgentClient | None, deadline: Deadline, *, insist: bool) -> tuple[list[Identity], list[str]]:
    if agent is None:
        return [], []
    try:
        return agent.identities(deadline), []
    except AuthFailed as error:
        if insist:
            raise
        return [], [error.message]


def _requested(
    requested: Mapping[str, Any], agent_keys: list[Identity], passphrases: Mapping[str, str]
) -> list[Identity]:
    if "key" in requested:
        text = requested["key"].encode()
        # A lent passphrase must open no other connection's key.
        name = f"key {sha256(text).hexdigest()[:16]}"
        identities = [
            load("The private key", text, passphrases.get(name) or requested.get("passphrase"), asked_as=name)
        ]
    else:
        identities = [_from_file(requested["file"], requested.get("passphrase"), agent_keys, passphrases)]
    certificate = requested.get("certificate")
    if certificate:
        path = Path(certificate).expanduser() if certificate.startswith(("/", "~/")) else None
        text = _read(path, "The certificate") if path else certificate.encode()
        return [certified(identities[0], text), *identities]
    return identities


def _configured(
    destination: Destination, data: Mapping[str, Any], agent_keys: list[Identity], passphrases: Mapping[str, str]
) -> OfferedIdentities:
    names = _named(destination, data)
    identities: list[Identity] = []
    notes: list[str] = []
    locked: Mapping[str, Any] = {}
    if not names and destination.identity_files is None and data.get("password") is None:
        notes.append(f"~/.ssh has no {', '.join(USUAL[:-1])} or {USUAL[-1]}")
    for name in names:
        try:
            identities.append(_from_file(name, None, agent_keys, passphrases))
        except AuthFailed as error:
            notes.append(error.message)
            locked = locked or error.details
    return OfferedIdentities(identities, notes, locked)


def _named(destination: Destination, data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of private keys to offer, for a connection that names no identity."""
    if destination.identity_files is not None:
        return destination.identity_files
    if data.get("password") is not None:
        # The user has chosen the password. sshd counts each offered key as an attempt (MaxAuthTries).
        return ()
    usual = [str(Path.home() / ".ssh" / name) for name in USUAL]
    return tuple(name for name in usual if Path(name).exists())


def _from_file(
    name: str, passphrase: str | None, agent_keys: list[Identity], passphrases: Mapping[str, str]
) -> Identity:
    path = Path(name).expanduser()
    label = shown(path)
    subject = f"The private key {label}"
    public = _public_part(path)
    # The agent first: the file may be encrypted, or only name a security key, where the agent has the key open.
    by_agent = next((identity for identity in agent_keys if identity.public == public), None)
    if by_agent:
        return by_agent
    if public and path.suffix == ".pub":
        raise AuthFailed(f"{label} is a public key, and the ssh-agent does not have its private key: ssh-add it.")
    text = _read(path, subject, private=True)
    return load(subject, text, passphrases.get(label) or passphrase, name=label, asked_as=label)


def _public_part(path: Path) -> HostKey | None:
    for candidate in (path, path.with_name(path.name + ".pub")):
        try:
            return HostKey.parse(read_local_file(candidate)[0].decode())
        except (OSError, ValueError):
            continue
    return None


def _read(path: Path, subject: str, *, private: bool = False) -> bytes:
    try:
        content, status = read_local_file(path)
    except OSError as error:
        raise AuthFailed(f"{subject} cannot be read: {error.strerror}.") from error
    # Like ssh, refuse a key of this user that others could have read.
    if private and content and status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise AuthFailed(f"{subject} is not used, because other users may read it: run chmod 600 on it.")
    return content


def _with_certificates(identities: list[Identity], destination: Destination) -> list[Identity]:
    return [*_certificates_of(identities, destination), *identities]


def _certificates_of(identities: list[Identity], destination: Destination) -> Iterator[Identity]:
    for identity in identities:
        names = [f"{identity.name}-cert.pub", *destination.certificate_files]
        for path in (Path(name).expanduser() for name in names if name.startswith(("/", "~/"))):
            if path.exists():
                try:
                    yield certified(identity, read_local_file(path)[0])
                except (AuthFailed, OSError):
                    continue


@dataclass(frozen=True)
class Attempt:
    """One attempt to log in: its method, its name in messages, and the request for the final answer."""

    method: str
    name: str
    make: Callable[[], tuple[int, Message]]


@dataclass
class UserAuthentication:
    """The conversation with one host about one user, in the role of paramiko's authentication handler."""

    link: SshLink
    user: str
    host: str
    deadline: Deadline
    offered: list[str] = field(default_factory=list)
    """The methods with which the host lets us continue."""
    tried: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _answers: queue.SimpleQueue[tuple[int, Message] | None] = field(default_factory=queue.SimpleQueue)
    password_sent: bool = False
    """Whether the host has got the password, by whatever method."""
    _password_refused: bool = False

    def run(self, identities: Sequence[Identity], password: str | None) -> None:
        """Log in.

        :raises AuthFailed: the host accepts none of the credentials.
        :raises TimeoutError: it did not answer in time.
        """
        self.link.auth_handler = cast(Any, self)
        service = bytes([common.MSG_SERVICE_REQUEST]) + packed(b"ssh-userauth")
        self.link.post(Message(service), self.deadline)
        # The method "none" asks which methods can continue (RFC 4252, section 5.2); sshd does not count it.
        if self._concludes(self._request("none")):
            return
        attempts = self._attempts(identities, password)
        while True:
            attempt = self._choose(attempts)
            if attempt is None or len(self.tried) == MAX_ATTEMPTS:
                raise AuthFailed(self._refusal())
            attempts.remove(attempt)
            self.tried.append(attempt.name)
            if self._concludes(attempt.make()):
                return

    def _attempts(self, identities: Sequence[Identity], password: str | None) -> list[Attempt]:
        most = MAX_ATTEMPTS - (password is not None)
        # Nobody shall touch a security key for a host that does not know it.
        direct = len(identities) == 1 and not identities[0].public.of_security_key
        keys = [
            Attempt("publickey", identity.name, partial(self._offer_key, identity, direct=direct))
            for identity in identities[:most]
        ]
        if len(identities) > most:
            self.notes.append(f"{len(identities) - most} more keys were not tried")
        if password is None:
            return keys
        secret = packed(password.encode("utf-8", errors="surrogateescape"))
        return [
            *keys,
            Attempt("keyboard-interactive", "keyboard-interactive", partial(self._answer_questions, secret)),
            Attempt("password", "password", partial(self._send_password, secret)),
        ]

    def _choose(self, attempts: list[Attempt]) -> Attempt | None:
        for attempt in attempts:
            is_key = attempt.method == "publickey"
            if attempt.method in self.offered and (is_key or not self._password_refused):
                return attempt
        return None

    def _offer_key(self, identity: Identity, *, direct: bool) -> tuple[int, Message]:
        algorithm = identity.algorithm(self.link.server_extensions.get("server-sig-algs", b""))
        described = packed(algorithm.encode()) + packed(identity.public.blob)
        # Signing takes time, and an agent may ask its user: sign only by a key that the host accepts.
        if not direct:
            code, answer = self._request("publickey", b"\0" + described)
            if code != _KEY_OK:
                return code, answer
        fields = b"\1" + described
        # The signature covers the session's id, so a host that gets it cannot use it at another (RFC 4252, section 7).
        signed = packed(self.link.session_id or b"") + self._request_body("publickey", fields)
        return self._request("publickey", fields + packed(identity.sign(signed, algorithm, self.deadline)))

    def _send_password(self, secret: bytes) -> tuple[int, Message]:
        # Before it is sent: where the link breaks meanwhile, the host may have it.
        self.password_sent = True
        code, answer = self._request("password", b"\0" + secret)
        if code == _NEW_PASSWORD:
            raise AuthFailed(
                f"The password of {self.user} at {self.host} has expired. Log in there by hand to set a new one, and "
                "store it in the connection."
            )
        self._note_refusal(code, answer)
        return code, answer

    def _answer_questions(self, secret: bytes) -> tuple[int, Message]:
        code, message = self._request("keyboard-interactive", packed(b"") + packed(b""))
        sent = False
        for _ in range(MAX_ROUNDS):
            if code != _QUESTIONS:
                break
            questions = _questions(message)
            answers = b""
            if questions:
                # Given once: a host that asks again has refused it or means another one, and a second wrong answer may
                # lock the account.
                if sent or not asks_for_password(questions):
                    self.notes.append(f"only a person can answer the host's question {questions[0][0]!r}")
                    # Another request ends this one (RFC 4256, section 3.1) without a wrong answer.
                    empty = packed(b"") * len(questions)
                    return self._respond(len(questions), empty) if sent else self._request("none")
                answers = secret
                sent = self.password_sent = True
            code, message = self._respond(len(questions), answers)
        if sent:
            self._note_refusal(code, message)
        return code, message

    def _respond(self, count: int, answers: bytes) -> tuple[int, Message]:
        head = bytes([common.MSG_USERAUTH_INFO_RESPONSE]) + count.to_bytes(4, "big")
        return self._exchange(Message(head + answers))

    def _note_refusal(self, code: int, message: Message) -> None:
        if code == _FAILURE:
            # After the list of methods comes "partial success": the password was right, and the host wants another
            # method too (RFC 4252, section 5.1).
            message.get_binary()
            self._password_refused = not message.get_boolean()
            message.rewind()

    def _request(self, method: str, fields: bytes = b"") -> tuple[int, Message]:
        return self._exchange(Message(self._request_body(method, fields)))

    def _request_body(self, method: str, fields: bytes) -> bytes:
        names = b"".join(packed(name.encode()) for name in (self.user, "ssh-connection", method))
        return bytes([common.MSG_USERAUTH_REQUEST]) + names + fields

    def _exchange(self, message: Message) -> tuple[int, Message]:
        self.link.post(message, self.deadline)
        try:
            answer = self._answers.get(timeout=self.deadline.left())
        except queue.Empty:
            raise TimeoutError("No answer to a login.") from None
        if answer is None:
            raise self._cut_off()
        return answer

    def _concludes(self, answer: tuple[int, Message]) -> bool:
        code, message = answer
        if code == _SUCCESS:
            return True
        if code != _FAILURE:
            raise AuthFailed(
                f"{self.host} broke the SSH protocol: it answered the login of {self.user} with message {code}."
            )
        self.offered = _text(message).split(",")
        return False

    def _refusal(self) -> str:
        tried = ", ".join(self.tried) or "nothing, because no credential suits these methods"
        offered = _printable(", ".join(name for name in self.offered if name)) or "nothing"
        notes = "".join(f" Note: {note.rstrip('.')}." for note in self.notes)
        return f"{self.host} does not let {self.user} in. Tried: {tried}. It accepts: {offered}.{notes}"

    def _cut_off(self) -> Exception:
        reason = _printable(self.link.disconnected or "")
        if not self.tried and not reason:
            return EOFError()
        ended = f"{self.host} ended the connection during the login of {self.user}."
        if reason:
            return AuthFailed(f"{ended} It said: {reason}. {self._refusal()}")
        if self.password_sent:
            return AuthFailed(f"{ended} It may allow fewer attempts (MaxAuthTries). {self._refusal()}")
        # A host that restarts ends logins without a word, and trying keys again cannot lock an account.
        tried = ", ".join(self.tried)
        return HostRefused(f"{ended} It may be restarting, or allow fewer attempts (MaxAuthTries). Tried: {tried}.")

    # The interface of an authentication handler, which paramiko calls in its reader thread.

    @property
    def _handler_table(self) -> dict[int, Callable[[Message], None]]:
        return {
            common.MSG_SERVICE_ACCEPT: _ignore,
            common.MSG_USERAUTH_BANNER: _ignore,
            _SUCCESS: self._succeed,
            _FAILURE: partial(self._pass_on, _FAILURE),
            _QUESTIONS: partial(self._pass_on, _QUESTIONS),
        }

    def _succeed(self, message: Message) -> None:
        # In the reading thread, before the next message: the host may send at once what only a link that is logged in
        # takes (RFC 4252, section 5.1).
        self.link.authenticated = True
        self._pass_on(_SUCCESS, message)

    def _pass_on(self, code: int, message: Message) -> None:
        if self._answers.qsize() >= MAX_UNREAD_ANSWERS:
            raise SSHException("It sent answers to requests that were not made")
        self._answers.put((code, message))

    def is_authenticated(self) -> bool:
        """Whether the host has accepted the user."""
        return self.link.authenticated

    def abort(self) -> None:
        """Wake the thread that waits for an answer: the link is gone."""
        self._answers.put(None)


def _ignore(message: Message) -> None:
    """Do nothing: greetings and confirmations need no answer."""


def _questions(message: Message) -> list[tuple[str, bool]]:
    for _ in range(3):
        message.get_binary()
    return [(_printable(_text(message)), message.get_boolean()) for _ in range(min(message.get_int(), 32))]


def asks_for_password(questions: list[tuple[str, bool]]) -> bool:
    """Whether ``questions`` ask for the password alone; each is a text, and whether its answer is echoed."""
    prompt, echo = questions[0]
    alone = len(questions) == 1 and not echo
    return alone and bool(_PASSWORD_WORDS.search(prompt)) and not _OTHER_WORDS.search(prompt)


def _text(message: Message) -> str:
    return message.get_binary().decode(errors="replace")


def _printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:200].strip()
