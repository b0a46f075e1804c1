"""The settings of ``~/.ssh/config`` and ``/etc/ssh/ssh_config`` for a host, read as ssh_config(5) describes.

Honoured: Host, Match (all, host, originalhost, user, localuser, final), Include, HostName, Port, User, IdentityFile,
CertificateFile, IdentitiesOnly, IdentityAgent, ProxyJump, HostKeyAlias, UserKnownHostsFile, GlobalKnownHostsFile and
StrictHostKeyChecking. ``Match exec`` never matches and ProxyCommand is refused, because both would run a program. No
setting makes a changed host key acceptable.
"""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from connmgr.errors import TransportUnsupported
from connmgr_ssh.config_file import Block, ConfigFiles, Criteria, Patterns, home_expanded, shown

DEFAULT_PORT = 22
SYSTEM = Path("/etc/ssh")
MAX_NESTING = 16
"""Depth of nested includes, and hosts in a chain of ProxyJump."""

_GATHERED = {"identityfile", "certificatefile"}
_LISTS = {"sendenv"}
_ACCEPT_NEW = {"accept-new", "no", "off"}
_NEGATABLE = {"all", "host", "originalhost", "user", "localuser", "final"}


_HEEDED_WORDS = """
    hostname port user identityfile certificatefile identitiesonly identityagent proxyjump proxycommand hostkeyalias
    userknownhostsfile globalknownhostsfile stricthostkeychecking sendenv setenv include forwardagent
"""
_HARMLESS_WORDS = """
    addkeystoagent batchmode checkhostip clearallforwardings compression connectionattempts controlmaster controlpath
    controlpersist enableescapecommandline escapechar exitonforwardfailure fingerprinthash forkafterauthentication
    forwardx11timeout forwardx11trusted gatewayports hashknownhosts ignoreunknown ipqos kbdinteractivedevices loglevel
    logverbose nohostauthenticationforlocalhost numberofpasswordprompts obscurekeystroketiming rekeylimit
    serveralivecountmax serveraliveinterval stdinnull streamlocalbindmask streamlocalbindunlink syslogfacility tag
    tcpkeepalive updatehostkeys useprivilegedport usekeychain versionaddendum visualhostkey xauthlocation
"""
_OTHER_WORDS = """
    AddressFamily BindAddress BindInterface CanonicalDomains CanonicalizeFallbackLocal CanonicalizeHostname
    CanonicalizeMaxDots CanonicalizePermittedCNAMEs CASignatureAlgorithms ChannelTimeout Ciphers ConnectTimeout
    DynamicForward EnableSSHKeysign ForwardX11 GSSAPIAuthentication GSSAPIDelegateCredentials
    HostbasedAcceptedAlgorithms HostbasedAuthentication HostKeyAlgorithms KbdInteractiveAuthentication KexAlgorithms
    KnownHostsCommand LocalCommand LocalForward MACs PasswordAuthentication PermitLocalCommand PermitRemoteOpen
    PKCS11Provider PreferredAuthentications ProxyUseFdpass PubkeyAcceptedAlgorithms PubkeyAuthentication RemoteCommand
    RemoteForward RequestTTY RequiredRSASize RevokedHostKeys SecurityKeyProvider SessionType Tunnel TunnelDevice
    VerifyHostKeyDNS
"""
_SILENT = frozenset([*_HEEDED_WORDS.split(), *_HARMLESS_WORDS.split()])
"""Keywords that are heeded, that are about the program ``ssh`` itself, or that change no outcome."""

_SPELLING = {name.lower(): name for name in _OTHER_WORDS.split()}
_USUAL_VALUES = {
    "addressfamily": "any",
    "canonicalizehostname": "no",
    "connecttimeout": "none",
    "enablesshkeysign": "no",
    "forwardx11": "no",
    "gssapiauthentication": "no",
    "gssapidelegatecredentials": "no",
    "hostbasedauthentication": "no",
    "kbdinteractiveauthentication": "yes",
    "passwordauthentication": "yes",
    "permitlocalcommand": "no",
    "proxyusefdpass": "no",
    "pubkeyauthentication": "yes",
    "remotecommand": "none",
    "requesttty": "auto",
    "sessiontype": "default",
    "tunnel": "no",
    "verifyhostkeydns": "no",
}
"""Values with which a keyword that is not heeded changes nothing."""


def _changes_something(keyword: str, arguments: list[str]) -> bool:
    if keyword in _SILENT:
        return False
    return [argument.lower() for argument in arguments] != [_USUAL_VALUES.get(keyword)]


@dataclass(frozen=True)
class Hop:
    """One host of a ProxyJump; None means not given."""

    host: str
    port: int | None
    user: str | None


@dataclass(frozen=True)
class Destination:
    """How to reach a host."""

    alias: str
    host: str
    port: int
    user: str
    jumps: tuple[Hop, ...]
    identity_files: tuple[str, ...] | None
    """None if the configuration names none; the usual files are tried then."""
    certificate_files: tuple[str, ...]
    identities_only: bool
    agent_socket: str | None
    agent_is_usual: bool
    """Whether that is the agent of the environment (SSH_AUTH_SOCK), for which a client may lend its own."""
    host_key_alias: str | None
    known_hosts: tuple[Path, ...]
    accept_new: bool
    """Whether the key of an unknown host is accepted, for a connection without ``hostKeyChecking``."""
    send_env: tuple[str, ...] = ()
    set_env: tuple[str, ...] = ()
    forwards_agent: bool = False
    """Whether ForwardAgent asks for what a connection has to allow (``forwardAgent``)."""
    unheeded: tuple[str, ...] = ()
    """Keywords of the user's own file that would change something and are not heeded, or that OpenSSH lacks too."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def resolve(
    host: str,
    port: int | None = None,
    user: str | None = None,
    *,
    file: Path | None = None,
    files: ConfigFiles | None = None,
) -> Destination:
    """Return how to reach ``host``; a given ``port`` or ``user`` overrides the configuration.

    ``file`` replaces the user's and the system's, as with ``ssh -F``; ``files`` caches what was read.
    :raises TransportUnsupported: the configuration cannot be read, or needs a feature that connmgr lacks.
    """
    options = _Options(host, user, file, files or ConfigFiles())
    final = options.read_files(final=False)
    if final:
        options.read_files(final=True)
    return options.destination(port)


def local_user() -> str:
    """Return the name of the user who runs this process, or the user id if the system does not list the user."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


class _Options:
    """The options for one host, collected file by file: the first value of each wins."""

    def __init__(self, alias: str, user: str | None, file: Path | None, files: ConfigFiles) -> None:
        self._alias = alias
        self._file = file
        self._files = files
        self._user = user
        self._local_user = local_user()
        self._values: dict[str, list[str]] = {}
        self._unheeded: dict[str, None] = {}
        self._final = False
        self._wants_final = False

    def read_files(self, *, final: bool) -> bool:
        """Read the user's and the system's file; return whether a block waits for the final reading."""
        self._final = final
        self._read(self._file or Path.home() / ".ssh" / "config", Path.home() / ".ssh", depth=0)
        if self._file is None:
            self._read(SYSTEM / "ssh_config", SYSTEM, depth=0)
        return self._wants_final

    def _read(self, path: Path, base: Path, *, depth: int) -> None:
        for block in self._files.read(path, strict=base != SYSTEM).blocks_of(self._alias):
            if self._applies(block):
                self._take(block, path, base, depth)

    def _applies(self, block: Block) -> bool:
        if block.keyword == "host":
            return block.hosts.mean(self._alias)
        return block.keyword != "match" or self._matches(block.criteria)

    def _take(self, block: Block, path: Path, base: Path, depth: int) -> None:
        for number, keyword, arguments in block.lines:
            if base != SYSTEM and _changes_something(keyword, arguments):
                self._unheeded.setdefault(_SPELLING.get(keyword, keyword))
            if keyword == "include":
                if depth == MAX_NESTING:
                    raise TransportUnsupported(
                        f"{shown(path)}:{number}: more than {MAX_NESTING} files include one another."
                    )
                for path_within in self._files.included(arguments, base):
                    self._read(path_within, base, depth=depth + 1)
            elif keyword in _GATHERED:
                gathered = self._values.setdefault(keyword, [])
                gathered += [argument for argument in arguments[:1] if argument not in gathered]
            elif keyword in _LISTS:
                self._values.setdefault(keyword, []).extend(arguments)
            else:
                self._values.setdefault(keyword, arguments)

    def _matches(self, criteria: Criteria) -> bool:
        outcome = True
        for criterion, negated, patterns in criteria:
            if criterion not in _NEGATABLE:
                if outcome:
                    self._unheeded.setdefault(f"Match {criterion}")
                return False
            outcome = outcome and self._meets(criterion, patterns) != negated
        return outcome

    def _meets(self, criterion: str, patterns: Patterns) -> bool:
        if criterion == "all":
            return True
        if criterion == "final":
            self._wants_final = True
            return self._final
        if criterion == "host":
            return patterns.mean(self._host())
        if criterion == "originalhost":
            return patterns.mean(self._alias)
        return patterns.mean(self._remote_user() if criterion == "user" else self._local_user)

    def _first(self, keyword: str) -> str | None:
        values = self._values.get(keyword)
        return values[0] if values else None

    def _host(self) -> str:
        name = self._first("hostname")
        return name.replace("%%", "\0").replace("%h", self._alias).replace("\0", "%") if name else self._alias

    def _remote_user(self) -> str:
        return self._user or self._first("user") or self._local_user

    def destination(self, port: int | None) -> Destination:
        """Return the options as a destination."""
        port = port or _port(self._first("port") or str(DEFAULT_PORT), f"Port of {self._alias}")
        tokens = self._tokens(port)
        only = (self._first("identitiesonly") or "no").lower() == "yes"
        files = self._values.get("identityfile")
        return Destination(
            alias=self._alias,
            host=self._host(),
            port=port,
            user=self._remote_user(),
            jumps=self._jumps(tokens),
            identity_files=None if files is None else tuple(_path(f, tokens) for f in files if f.lower() != "none"),
            certificate_files=tuple(_path(file, tokens) for file in self._values.get("certificatefile", [])),
            identities_only=only,
            agent_socket=self._agent(tokens),
            agent_is_usual=self._first("identityagent") in (None, "SSH_AUTH_SOCK"),
            host_key_alias=self._first("hostkeyalias"),
            known_hosts=tuple(self._known_hosts(tokens)),
            accept_new=(self._first("stricthostkeychecking") or "").lower() in _ACCEPT_NEW,
            send_env=tuple(self._values.get("sendenv", ())),
            set_env=tuple(one for one in self._values.get("setenv", ()) if "=" in one),
            forwards_agent=(self._first("forwardagent") or "no").lower() != "no",
            unheeded=tuple(self._unheeded),
        )

    def _tokens(self, port: int) -> dict[str, str]:
        local = socket.gethostname()
        return {
            "%": "%",
            "d": str(Path.home()),
            "h": self._host(),
            "i": str(os.getuid()),
            "k": self._first("hostkeyalias") or self._alias,
            "L": local.partition(".")[0],
            "l": local,
            "n": self._alias,
            "p": str(port),
            "r": self._remote_user(),
            "u": self._local_user,
        }

    def _agent(self, tokens: dict[str, str]) -> str | None:
        named = self._first("identityagent")
        if named is None or named == "SSH_AUTH_SOCK":
            return os.environ.get("SSH_AUTH_SOCK") or None
        if named.lower() == "none":
            return None
        return os.environ.get(named[1:]) if named.startswith("$") else _path(named, tokens)

    def _known_hosts(self, tokens: dict[str, str]) -> Iterator[Path]:
        yours = self._values.get("userknownhostsfile") or ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]
        global_ = self._values.get("globalknownhostsfile") or [
            str(SYSTEM / "ssh_known_hosts"),
            str(SYSTEM / "ssh_known_hosts2"),
        ]
        return (Path(_path(name, tokens)) for name in [*yours, *global_] if name.lower() != "none")

    def _jumps(self, tokens: dict[str, str]) -> tuple[Hop, ...]:
        # The first of the two in the files decides; "none" for one switches the other off.
        for keyword in self._values:
            value = self._first(keyword) or ""
            if keyword == "proxycommand" and value.lower() != "none":
                raise TransportUnsupported(
                    f"~/.ssh/config has a ProxyCommand for {self._alias}, which connmgr does not run: "
                    "use ProxyJump there, or the connection's gateway."
                )
            if keyword == "proxyjump":
                return () if value.lower() == "none" else tuple(_hop(_expand(h, tokens)) for h in value.split(","))
        return ()


def _hop(text: str) -> Hop:
    user, _, address = text.strip().removeprefix("ssh://").rpartition("@")
    bracketed = re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)", address)
    if not bracketed:
        raise TransportUnsupported("~/.ssh/config: an empty host in ProxyJump.")
    host, port = bracketed[1] or bracketed[3] or bracketed[5], bracketed[2] or bracketed[4]
    return Hop(host, _port(port, f"The port of {host} in ProxyJump") if port else None, user or None)


def _port(text: str, what: str) -> int:
    # int() raises another error for thousands of digits.
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise TransportUnsupported(f"~/.ssh/config: {what} is not a port number.")
    return int(text)


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def _path(text: str, tokens: dict[str, str]) -> str:
    return str(home_expanded(os.path.expandvars(_expand(text, tokens))))
