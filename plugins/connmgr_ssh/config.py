"""The settings of ``~/.ssh/config`` and ``/etc/ssh/ssh_config`` for a host, read as ssh_config(5) describes.

Honoured: Host, Match (all, host, originalhost, user, localuser, final), Include, HostName, Port, User, IdentityFile,
CertificateFile, IdentitiesOnly, IdentityAgent, ProxyJump, HostKeyAlias, UserKnownHostsFile, GlobalKnownHostsFile and
StrictHostKeyChecking. ``Match exec`` never matches and ProxyCommand is refused, because both would run a program. No
setting makes a changed host key acceptable.

First the values for a host, then the files: their lines, their patterns, and the files that they include.
"""

from __future__ import annotations

import errno
import getpass
import glob
import os
import re
import resource
import shlex
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connmgr.errors import HostUnreachable, TransportUnsupported
from connmgr.plugin.types import EXPLAINER, KEPT_CONFIG

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
class JumpHost:
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
    jumps: tuple[JumpHost, ...]
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


def destination_of(data: Mapping[str, Any], files: ConfigFiles | None = None) -> Destination:
    """Return how to reach the host of a connection's ``data``; ``files`` as in :func:`resolve`."""
    port = data["port"] if data["port"] != DEFAULT_PORT else None
    return resolve(data["host"], port, data.get("user"), files=files)


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


def jumps(destination: Destination, depth: int = 0, files: ConfigFiles | None = None) -> list[Destination]:
    """Return the hosts of ProxyJump that lead to ``destination``, in order, after the hosts that lead to the first.

    ``files`` as in :func:`resolve`.

    :raises TransportUnsupported: they form a circle, or :func:`resolve` fails for one.
    """
    if depth == MAX_NESTING:
        raise TransportUnsupported(f"~/.ssh/config: ProxyJump of {destination.alias} leads in a circle.")
    hosts = [resolve(hop.host, hop.port, hop.user, files=files) for hop in destination.jumps]
    return [*jumps(hosts[0], depth + 1, files), *hosts] if hosts else []


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
            return block.hosts.match(self._alias)
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
            return patterns.match(self._host())
        if criterion == "originalhost":
            return patterns.match(self._alias)
        return patterns.match(self._remote_user() if criterion == "user" else self._local_user)

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
            set_env=tuple(setting for setting in self._values.get("setenv", ()) if "=" in setting),
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
        path = self._first("identityagent")
        if path is None or path == "SSH_AUTH_SOCK":
            return os.environ.get("SSH_AUTH_SOCK") or None
        if path.lower() == "none":
            return None
        return os.environ.get(path[1:]) if path.startswith("$") else _path(path, tokens)

    def _known_hosts(self, tokens: dict[str, str]) -> Iterator[Path]:
        yours = self._values.get("userknownhostsfile") or ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]
        global_ = self._values.get("globalknownhostsfile") or [
            str(SYSTEM / "ssh_known_hosts"),
            str(SYSTEM / "ssh_known_hosts2"),
        ]
        return (Path(_path(name, tokens)) for name in [*yours, *global_] if name.lower() != "none")

    def _jumps(self, tokens: dict[str, str]) -> tuple[JumpHost, ...]:
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


def _hop(text: str) -> JumpHost:
    user, _, address = text.strip().removeprefix("ssh://").rpartition("@")
    bracketed = re.fullmatch(r"\[(.+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)", address)
    if not bracketed:
        raise TransportUnsupported("~/.ssh/config: an empty host in ProxyJump.")
    host, port = bracketed[1] or bracketed[3] or bracketed[5], bracketed[2] or bracketed[4]
    return JumpHost(host, _port(port, f"The port of {host} in ProxyJump") if port else None, user or None)


def _port(text: str, what: str) -> int:
    # int() raises another error for thousands of digits.
    if not text.isdecimal() or len(text) > 5 or not 1 <= int(text) <= 65535:
        raise TransportUnsupported(f"~/.ssh/config: {what} is not a port number.")
    return int(text)


def _expand(text: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda token: tokens.get(token[1], token[0]), text)


def _path(text: str, tokens: dict[str, str]) -> str:
    return str(home_expanded(os.path.expandvars(_expand(text, tokens))))


_SPECIAL = frozenset("*?!")
_LINE = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")


class Patterns:
    """Compiled patterns of ``*``, ``?`` and leading ``!``; a negated pattern that matches overrules the others."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.names = [pattern.lower() for pattern in patterns]
        self.are_names = not any(_SPECIAL & set(name) for name in self.names)
        self._parts = [] if self.are_names else [(name.startswith("!"), name.removeprefix("!")) for name in self.names]

    def match(self, subject: str) -> bool:
        """Whether they match ``subject``."""
        subject = subject.lower()
        if self.are_names:
            return subject in self.names
        matched = False
        for negated, pattern in self._parts:
            if _matches_pattern(pattern, subject):
                if negated:
                    return False
                matched = True
        return matched


def _matches_pattern(pattern: str, subject: str) -> bool:
    """Whether ``pattern`` matches ``subject``; linear, because each part is searched once, from left to right."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == subject
    first, *parts = pattern.split("*")
    if not parts:
        return len(first) == len(subject) and _matches_at(first, subject, 0)
    last = parts.pop()
    position, end = len(first), len(subject) - len(last)
    if position > end or not _matches_at(first, subject, 0) or not _matches_at(last, subject, end):
        return False
    for part in parts:
        while part and position + len(part) <= end and not _matches_at(part, subject, position):
            position += 1
        position += len(part)
        if position > end:
            return False
    return True


def _matches_at(part: str, subject: str, at: int) -> bool:
    return all(
        expected in ("?", character) for expected, character in zip(part, subject[at : at + len(part)], strict=True)
    )


def matches(patterns: Sequence[str], subject: str) -> bool:
    """Whether ``patterns`` match ``subject``."""
    return Patterns(patterns).match(subject)


@dataclass(frozen=True)
class Block:
    """The lines from one ``Host`` or ``Match`` to the next; ``keyword`` is empty before the first.

    ``hosts`` are the patterns of ``Host``, ``written`` their text, ``criteria`` those of ``Match``. Each of ``lines``
    is a number, a keyword in lower case, and arguments.
    """

    keyword: str
    hosts: Patterns
    written: list[str]
    criteria: Criteria
    lines: list[tuple[int, str, list[str]]] = field(default_factory=list)


Criteria = list[tuple[str, bool, Patterns]]
"""For each criterion its name in lower case, whether it is negated, and its patterns."""

WITHOUT_PATTERNS = ("all", "final")


class ConfigFile:
    """One parsed file, indexed so that a host needs few of thousands of blocks."""

    def __init__(self, path: Path, *, strict: bool) -> None:
        self.blocks = [Block("", Patterns([]), [], [])]
        # Blocks with plain host names are found by name; all others are examined for every host.
        self._named: dict[str, list[int]] = {}
        self._others = [0]
        for number, keyword, arguments in _lines(path, strict=strict):
            if keyword in ("host", "match"):
                self._begin(keyword, arguments)
            else:
                self.blocks[-1].lines.append((number, keyword, arguments))
        for block in self.blocks:
            # Hosts that ssh reaches by this daemon: it would log in by itself.
            if any(
                keyword == "proxycommand" and tuple(words[-len(EXPLAINER) :]) == EXPLAINER
                for _, keyword, words in block.lines
            ):
                block.lines.clear()
                block.written.clear()

    def _begin(self, keyword: str, arguments: list[str]) -> None:
        written = arguments if keyword == "host" else []
        hosts = Patterns(written)
        if keyword == "host" and hosts.are_names:
            for name in dict.fromkeys(hosts.names):
                self._named.setdefault(name, []).append(len(self.blocks))
        else:
            self._others.append(len(self.blocks))
        self.blocks.append(Block(keyword, hosts, written, _criteria(arguments) if keyword == "match" else []))

    def blocks_of(self, host: str) -> Iterator[Block]:
        """Yield the blocks that may apply to ``host``, in their order."""
        for index in sorted([*self._others, *self._named.get(host.lower(), ())]):
            yield self.blocks[index]


class ConfigFiles:
    """Caches configuration files and their includes, so that each is read once for several hosts."""

    def __init__(self) -> None:
        self._files: dict[tuple[Path, bool], ConfigFile] = {}
        self._included: dict[tuple[tuple[str, ...], Path], list[Path]] = {}

    def read(self, path: Path, *, strict: bool) -> ConfigFile:
        """Return the file at ``path``, empty if missing; ``strict`` refuses one that others may write to."""
        if (path, strict) not in self._files:
            self._files[path, strict] = ConfigFile(path, strict=strict)
        return self._files[path, strict]

    def included(self, names: Sequence[str], base: Path) -> list[Path]:
        """Return the files that match the patterns ``names``, relative ones below ``base``."""
        key = (tuple(names), base)
        if key not in self._included:
            self._included[key] = list(_included(names, base))
        return self._included[key]

    def aliases(self, path: Path) -> list[str]:
        """Return the host names without wildcards in the file at ``path`` and its includes, in their order."""
        aliases: dict[str, None] = {}
        self._collect(path, aliases, set())
        return list(aliases)

    def _collect(self, path: Path, aliases: dict[str, None], read_files: set[Path]) -> None:
        read_files.add(path)
        for block in self.read(path, strict=True).blocks:
            aliases |= dict.fromkeys(name for name in block.written if not _SPECIAL & set(name))
            for _, keyword, arguments in block.lines:
                if keyword == "include":
                    for file in self.included(arguments, Path.home() / ".ssh"):
                        if file not in read_files:
                            self._collect(file, aliases, read_files)


SETTLED_SECONDS = 2.0
"""A file that was changed this recently may change again without another time: some file systems count seconds."""


class CurrentFiles(ConfigFiles):
    """Configuration files as they are now; each is parsed again only when it has changed. For several threads."""

    def __init__(self) -> None:
        super().__init__()
        self._parsed: dict[tuple[Path, bool], tuple[tuple[int, ...], ConfigFile]] = {}

    def read(self, path: Path, *, strict: bool) -> ConfigFile:
        state = _state_of(path)
        parsed = self._parsed.get((path, strict))
        if parsed is not None and parsed[0] == state:
            return parsed[1]
        file = ConfigFile(path, strict=strict)
        if state is not None and state == _state_of(path):
            self._parsed[path, strict] = state, file
        return file

    def included(self, names: Sequence[str], base: Path) -> list[Path]:
        return list(_included(names, base))


def _state_of(path: Path) -> tuple[int, ...] | None:
    """Return what differs after a change of the file, or None if that is not certain to differ."""
    try:
        status = path.stat()
    except OSError:
        return None
    if time.time() - max(status.st_mtime, status.st_ctime) < SETTLED_SECONDS:
        return None
    return (
        *(status.st_dev, status.st_ino, status.st_mode, status.st_uid),
        *(status.st_size, status.st_mtime_ns, status.st_ctime_ns),
    )


def _criteria(words: Sequence[str]) -> Criteria:
    remaining = iter(words)
    criteria = []
    for word in remaining:
        criterion = word.lower().removeprefix("!")
        patterns = [] if criterion in WITHOUT_PATTERNS else next(remaining, "").split(",")
        criteria.append((criterion, word.startswith("!"), Patterns(patterns)))
    return criteria


def _lines(path: Path, *, strict: bool) -> Iterator[tuple[int, str, list[str]]]:
    """Yield number, lower-case keyword and arguments of each line; a missing file has none.

    :param strict: whether to refuse a file that others than its owner, this user or root may write to.
    :raises TransportUnsupported: the file is refused, cannot be read, or cannot be understood.
    :raises HostUnreachable: the daemon has no descriptor left to read it, nor one to reach a host.
    """
    try:
        content, status = read_local_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        if (full := out_of_descriptors(error)) is not None:
            raise HostUnreachable(f"The host is not dialled: {full}.") from error
        raise TransportUnsupported(f"{shown(path)} cannot be read: {error.strerror}.") from error
    others = status.st_uid not in (0, os.getuid()) or status.st_mode & 0o022
    if strict and others and stat.S_ISREG(status.st_mode):
        advice = f"chmod go-w {shown(path)}"
        raise TransportUnsupported(f"{shown(path)} is not used, because others may write to it: {advice}")
    if content.startswith(KEPT_CONFIG.encode()):
        # It may have thousands of hosts, all of them the daemon's own.
        return
    for number, line in enumerate(content.decode(errors="surrogateescape").splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if line.lstrip().startswith("#") or not match:
            continue
        if "\0" in line:
            # No path and no name has one, and the system's calls raise other errors for it.
            raise TransportUnsupported(f"{shown(path)}:{number}: a NUL is not text.")
        try:
            yield number, match[1].lower(), _arguments(match[2])
        except ValueError:
            raise TransportUnsupported(f"{shown(path)}:{number}: a quotation mark has no partner.") from None


def _arguments(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        # The quotation mark may be part of a comment.
        return shlex.split(text, comments=True)
    comment = next((index for index, word in enumerate(words) if word.startswith("#")), len(words))
    return words[:comment]


def _included(names: Sequence[str], base: Path) -> Iterator[Path]:
    """Yield the files that match the patterns ``names``, relative ones below ``base``."""
    for name in names:
        pattern = home_expanded(name)
        anchored = pattern if pattern.is_absolute() else base / pattern
        # Path.glob() would also find hidden files, such as those that editors make.
        paths = sorted(glob.glob(str(anchored)))  # noqa: PTH207
        yield from (path for path in map(Path, paths) if not path.is_dir())


def home_expanded(name: str) -> Path:
    """Return ``name`` with a leading ``~`` or ``~user`` replaced, if that home exists."""
    return Path(os.path.expanduser(name))  # noqa: PTH111 - Path.expanduser() raises where this leaves the name alone


def shown(path: Path) -> str:
    """Return the path for clients, without the daemon user's home directory."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


MAX_FILE_BYTES = 16 << 20
"""Largest file that is read; even long lists of known hosts are far smaller."""


def out_of_descriptors(error: OSError) -> str | None:
    """Say that the process may open no further file, and what to do, if ``error`` is for that reason."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"the daemon has as many files open as it may ({limit:,}); close links with connmgr disconnect, or raise the "
        "limit (LimitNOFILE of its service, ulimit -n)"
    )


def read_local_file(path: Path) -> tuple[bytes, os.stat_result]:
    """Return the content of a regular file, and its status; ``/dev/null`` is an empty one, as for ``ssh``.

    :raises OSError: with a ``strerror`` for people: it cannot be opened, is a FIFO, a device or a directory, or is too
        large.
    """
    # O_NONBLOCK: opening a FIFO would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev:  # noqa: PTH116 - a constant
            return b"", status
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES >> 20} MiB", str(path))
    return content, status
