"""The command line of OpenSSH's ``ssh``, as other programs write it, and the connection and the ports that it names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import click

from connmgr.cli import selection
from connmgr.cli.selection import find_exactly
from connmgr.client import Client

OPTIONS = "1246ab:c:e:fgi:kl:m:no:p:qstvxAB:CD:E:F:GI:J:KL:MNO:P:Q:R:S:TVw:W:XYy"
"""The letters of ssh's options; a colon after a letter means that it has a value."""

IGNORED = {
    "the stored connection says it": "iIF46",
    "the daemon keeps one link for all": "MSC",
    "the daemon chooses the algorithms": "cm2",
    "neither X11 nor Kerberos tickets are forwarded": "kKxXY",
    "connmgr writes no log of ssh's": "EPy",
}
"""Options that are accepted and do nothing, by the reason; docs/TOOLS.md lists them too."""

REFUSED = {
    "1": "SSH 1 is not supported",
    "B": "the daemon opens the link, from the address that the system gives it",
    "b": "the daemon opens the link, from the address that the system gives it",
    "J": "store a connection with a gateway: connmgr add ssh NAME host=… gateway=…",
    "Q": "ask ssh itself",
    "R": "ports of the remote host are not forwarded to here",
    "w": "network tunnels (tun devices) are not supported",
}
"""Options that must not be ignored, because they would then mean something else, and the reason why."""

_IGNORED_KEYWORDS = """
    addkeystoagent addressfamily canonicaldomains canonicalizefallbacklocal canonicalizehostname
    canonicalizemaxdots canonicalizepermittedcnames casignaturealgorithms certificatefile
    challengeresponseauthentication channeltimeout checkhostip ciphers compression compressionlevel
    connectionattempts connecttimeout controlmaster controlpath controlpersist enableescapecommandline
    enablesshkeysign exitonforwardfailure fingerprinthash forwardx11 forwardx11timeout
    forwardx11trusted globalknownhostsfile gssapiauthentication gssapidelegatecredentials hashknownhosts
    hostbasedacceptedalgorithms hostbasedauthentication hostbasedkeytypes hostkeyalgorithms hostkeyalias
    identitiesonly identityagent identityfile ignoreunknown include ipqos kbdinteractiveauthentication
    kbdinteractivedevices kexalgorithms knownhostscommand localcommand loglevel logverbose macs
    nohostauthenticationforlocalhost numberofpasswordprompts obscurekeystroketiming passwordauthentication
    pkcs11provider preferredauthentications proxyusefdpass pubkeyacceptedalgorithms pubkeyacceptedkeytypes
    pubkeyauthentication rekeylimit requiredrsasize revokedhostkeys securitykeyprovider
    serveralivecountmax serveraliveinterval streamlocalbindmask streamlocalbindunlink
    stricthostkeychecking syslogfacility tcpkeepalive updatehostkeys useprivilegedport userknownhostsfile
    verifyhostkeydns versionaddendum visualhostkey xauthlocation
"""

IGNORED_KEYWORDS = frozenset(_IGNORED_KEYWORDS.split())
"""Keywords of ``-o`` that are accepted and do nothing."""

HARMLESS = {
    "hostname": (),
    "proxyjump": ("none",),
    "proxycommand": ("none",),
    "remoteforward": (),
    "tunnel": ("no",),
    "tunneldevice": (),
    "bindaddress": (),
    "bindinterface": (),
    "permitlocalcommand": ("no",),
    "gatewayports": ("no",),
    "permitremoteopen": (),
}
"""Keywords of ``-o`` that are refused, except with one of these values."""

AUTO, NO, YES, FORCE = "auto", "no", "yes", "force"
_TTY = {AUTO: AUTO, "no": NO, "false": NO, "yes": YES, "true": YES, "force": FORCE}
_MAX_PORT = 65535


class SshOptions:
    """What a command line of ssh asks for."""

    host: str | None = None
    command: Sequence[str] = ()
    user: str | None = None
    port: int | None = None
    tty = AUTO
    no_input = False
    background = False
    no_command = False
    subsystem = False
    batch = False
    quiet = False
    agent: bool | None = None
    verbose = False
    version = False
    describe = False
    gateway_ports = False
    escape: str | None = "~"
    control: str | None = None
    stdio_to: str | None = None

    def __init__(self) -> None:
        self.local: list[str] = []
        self.dynamic: list[str] = []
        self.ignored: list[str] = []
        self.send_env: list[str] = []
        self.set_env: dict[str, str] = {}
        self._seen: set[str] = set()

    def first(self, name: str) -> bool:
        """Whether ``name`` is given for the first time: for options with one value the first one counts."""
        if name in self._seen:
            return False
        self._seen.add(name)
        return True


def parse(words: Sequence[str]) -> SshOptions:
    """Parse the ``words`` after ``ssh``: options, the host, more options, the command.

    :raises click.UsageError: they are malformed, or contain an option that is refused.
    """
    options = SshOptions()
    rest = _options(list(words), options)
    if rest:
        options.host = rest[0]
        rest = _options(rest[1:], options)
    if options.command and rest:
        raise click.UsageError("RemoteCommand and a command cannot both be run.")
    options.command = rest or options.command
    if options.gateway_ports and (options.local or options.dynamic):
        raise click.UsageError("-g is not supported: forwarded ports listen on loopback only.")
    return options


def _options(words: list[str], options: SshOptions) -> list[str]:
    """Parse the options at the beginning of ``words``, and return the rest."""
    while words and words[0].startswith("-") and words[0] != "-":
        cluster = words.pop(0)
        if cluster == "--":
            break
        # As getopt(3): letters may stand together (-tt), and a value may follow its letter directly (-p2222).
        letters = cluster[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            at = OPTIONS.find(letter)
            if at < 0 or letter == ":":
                raise click.UsageError(f"ssh has no option -{letter}.")
            value = ""
            if OPTIONS[at + 1 : at + 2] == ":":
                if not letters and not words:
                    raise click.UsageError(f"-{letter} lacks its value.")
                value, letters = letters or words.pop(0), ""
            _take(options, letter, value)
    return words


def _take(options: SshOptions, letter: str, value: str) -> None:
    if letter in REFUSED:
        raise click.UsageError(f"-{letter} is not possible: {REFUSED[letter]}.")
    if letter in _FLAGS:
        name, flag = _FLAGS[letter]
        setattr(options, name, flag)
    elif letter == "t":
        options.tty = FORCE if options.tty in (YES, FORCE) else YES
    elif letter in _VALUES:
        _VALUES[letter](options, value)
    else:
        options.ignored.append(f"-{letter}")


def _user(options: SshOptions, value: str) -> None:
    if options.first("user"):
        options.user = value


def _port(options: SshOptions, value: str) -> None:
    if not (value.isascii() and value.isdecimal() and 0 < int(value) <= _MAX_PORT):
        raise click.UsageError(f"{value!r} is not a port.")
    if options.first("port"):
        options.port = int(value)


def _escape(options: SshOptions, value: str) -> None:
    if value == "none":
        options.escape = None
    elif len(value) == 2 and value.startswith("^"):
        options.escape = chr(ord(value[1]) & 0x1F)
    elif len(value) == 1 and value.isascii():
        options.escape = value
    else:
        raise click.UsageError(f"{value!r} is not an escape character.")


def _keyword(options: SshOptions, value: str) -> None:
    """Parse the value of ``-o``: ``Keyword=value`` or ``Keyword value``."""
    keyword = value.strip().replace("=", " ", 1).split(None, 1)[0] if value.strip(" =") else ""
    rest = value.strip()[len(keyword) :].lstrip(" =").strip()
    if len(rest) > 1 and rest.startswith('"') and rest.endswith('"'):
        rest = rest[1:-1]
    name = keyword.lower()
    if name in _KEYWORDS:
        _KEYWORDS[name](options, rest)
    elif name in HARMLESS:
        if rest.lower() not in HARMLESS[name]:
            raise click.UsageError(f"-o {keyword} is not possible: the stored connection says where it leads, and how.")
    elif name in IGNORED_KEYWORDS:
        options.ignored.append(keyword)
    else:
        raise click.UsageError(f"ssh has no option {keyword!r}.")


def _tty(options: SshOptions, value: str) -> None:
    if value.lower() not in _TTY:
        raise click.UsageError(f"RequestTTY is not {value!r}.")
    options.tty = _TTY[value.lower()]


def _session_type(options: SshOptions, value: str) -> None:
    options.no_command = value.lower() == "none"
    options.subsystem = value.lower() == "subsystem"


def _is_yes(name: str) -> Callable[[SshOptions, str], None]:
    def take(options: SshOptions, value: str) -> None:
        if options.first(name):
            setattr(options, name, value.lower() in ("yes", "true"))

    return take


def _forward_agent(options: SshOptions, value: str) -> None:
    # Any other value names an agent: its socket, or the variable that has it.
    if value.lower() not in ("yes", "true", "no", "false"):
        raise click.UsageError("ForwardAgent is yes or no: the agent is that of SSH_AUTH_SOCK.")
    if options.first("forwardagent") and options.agent is None:
        options.agent = value.lower() in ("yes", "true")


def _send_env(options: SshOptions, value: str) -> None:
    for pattern in value.split():
        if pattern.startswith("-"):
            options.send_env = [name for name in options.send_env if not fnmatchcase(name, pattern[1:])]
        else:
            options.send_env.append(pattern)


def _set_env(options: SshOptions, value: str) -> None:
    try:
        assignments = shlex.split(value)
    except ValueError as error:
        raise click.UsageError(f"SetEnv: {error}.") from None
    if not options.first("setenv"):
        return
    for assignment in assignments:
        name, sign, text = assignment.partition("=")
        if not sign:
            raise click.UsageError(f"SetEnv: {assignment!r} is not of the form NAME=VALUE.")
        options.set_env.setdefault(name, text)


def _clear_forwardings(options: SshOptions, value: str) -> None:
    if value.lower() in ("yes", "true"):
        options.local.clear()
        options.dynamic.clear()


def _remote_command(options: SshOptions, value: str) -> None:
    if value.lower() != "none":
        options.command = [value]


def _forward(options: SshOptions, value: str) -> None:
    # In the configuration a blank separates the two ends; in the option, a colon.
    options.local.append(":".join(value.split()))


def _set(name: str) -> Callable[[SshOptions, str], None]:
    return lambda options, value: setattr(options, name, value)


_FLAGS: dict[str, tuple[str, object]] = {
    "a": ("agent", False),
    "A": ("agent", True),
    "f": ("background", True),
    "g": ("gateway_ports", True),
    "G": ("describe", True),
    "n": ("no_input", True),
    "N": ("no_command", True),
    "q": ("quiet", True),
    "s": ("subsystem", True),
    "T": ("tty", NO),
    "v": ("verbose", True),
    "V": ("version", True),
}
_VALUES: dict[str, Callable[[SshOptions, str], None]] = {
    "D": lambda options, value: options.dynamic.append(value),
    "e": _escape,
    "L": lambda options, value: options.local.append(value),
    "l": _user,
    "O": _set("control"),
    "o": _keyword,
    "p": _port,
    "W": _set("stdio_to"),
}
_KEYWORDS: dict[str, Callable[[SshOptions, str], None]] = {
    "batchmode": _is_yes("batch"),
    "clearallforwardings": _clear_forwardings,
    "dynamicforward": lambda options, value: options.dynamic.append(value),
    "escapechar": _escape,
    "forkafterauthentication": _is_yes("background"),
    "forwardagent": _forward_agent,
    "localforward": _forward,
    "port": _port,
    "remotecommand": _remote_command,
    "requesttty": _tty,
    "sendenv": _send_env,
    "sessiontype": _session_type,
    "setenv": _set_env,
    "stdinnull": _is_yes("no_input"),
    "user": _user,
}

ACTING = frozenset({*_FLAGS, *_VALUES, "t"})
"""Options that work as in ssh."""


# What the options name.

_LOOPBACK = {"": "127.0.0.1", "localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}
_PART = re.compile(r"\[([^\]]*)\]|([^:/]*)")
SSH_PORT = 22
_USER_OF_TYPE = {"shellEnvironment": "root"}
"""The user of a type's connections that name none."""


def resolve(client: Client, options: SshOptions) -> str:
    """Return the uuid of the connection that is meant, or of one to the address that is given.

    A stored connection has its own user and port. Other ones are refused: running as another user or on another machine
    than the caller says would be worse than failing.
    :raises click.UsageError: user or port are not the connection's.
    :raises Failure: there is no such connection, or several.
    """
    name = options.host or ""
    host, user, port = name, options.user, options.port
    # A stored connection may be called user@host, which outranks the address. ssh:// always means an address.
    stored = None if name.startswith(selection.SCHEME) else find_exactly(client, name)
    address = selection.read_address(name) if stored is None else None
    if address is not None:
        host, user, port = address.host, user or address.user, port or address.port
        if not name.startswith(selection.SCHEME):
            stored = find_exactly(client, host)
    if stored is not None:
        _check(client, stored, name, user, port)
        return stored
    if user is None and port is None and address is None:
        return client.connection.find(name)
    dialled = selection.Address(host, user, port)
    return client.connection.add(str(dialled), dialled.data, temporary=True)


def _check(client: Client, id: str, name: str, user: str | None, port: int | None) -> None:
    if user is None and port is None:
        return
    info = client.connection.info([id])[0]
    own = info.data.get("user") or _USER_OF_TYPE.get(info.type)
    if user is not None and user != own:
        login = f"logs in as {own}" if own else "does not say whom it logs in as"
        raise click.UsageError(
            f"{info.path} is a stored connection that {login}, not as {user}; "
            f"leave the user out, or write {selection.SCHEME}{user}@{name.rpartition('@')[2]} for the address."
        )
    own_port = info.data.get("port") or SSH_PORT
    if port is not None and port != own_port:
        raise click.UsageError(f"{info.path} is a stored connection to port {own_port}, not to {port}.")


class ForwardSpec(NamedTuple):
    """A local port to listen on, and its destination; None if each client asks for its own."""

    host: str
    port: int
    to: tuple[str, int] | None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def local_forward(text: str) -> ForwardSpec:
    """Parse ``[HERE:]PORT:HOST:PORT``.

    :raises click.UsageError: it is malformed, or HERE is not the loopback interface.
    """
    parts = _parts(text)
    if len(parts) == 3:
        parts.insert(0, "")
    if len(parts) != 4 or not parts[2]:
        raise click.UsageError(f"{text!r} is not of the form [HERE:]PORT:HOST:PORT; Unix sockets are not forwarded.")
    return ForwardSpec(_here(parts[0]), _forwarded_port(parts[1], least=0), (parts[2], _forwarded_port(parts[3])))


def dynamic_forward(text: str) -> ForwardSpec:
    """Parse ``[HERE:]PORT``; otherwise as :func:`local_forward`."""
    parts = _parts(text)
    if len(parts) == 1:
        parts.insert(0, "")
    if len(parts) != 2:
        raise click.UsageError(f"{text!r} is not of the form [HERE:]PORT.")
    return ForwardSpec(_here(parts[0]), _forwarded_port(parts[1], least=0), None)


def host_and_port(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``."""
    parts = _parts(text)
    if len(parts) != 2 or not parts[0]:
        raise click.UsageError(f"{text!r} is not of the form HOST:PORT.")
    return parts[0], _forwarded_port(parts[1])


def _parts(text: str) -> list[str]:
    parts, at = [], 0
    while True:
        part = _PART.match(text, at)
        assert part is not None, "it matches nothing, too"  # noqa: S101
        parts.append(part[1] or part[2] or "")
        at = part.end() + 1
        if part.end() == len(text):
            return parts
        if text[part.end()] != ":":
            raise click.UsageError(f"{text!r} is not a port and host.")


def _here(host: str) -> str:
    if host not in _LOOPBACK:
        raise click.UsageError(f"Cannot listen on {host!r}: forwarded ports listen on loopback only.")
    return _LOOPBACK[host]


def _forwarded_port(text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 1 << 16):
        raise click.UsageError(f"{text!r} is not a port.")
    return int(text)
