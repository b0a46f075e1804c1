"""The daemon's settings: a frozen dataclass, read from flags, environment, file and defaults, in this order."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from connmgr import paths
from connmgr.durations import FORMS, parse_duration
from connmgr.errors import StartupError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MEBIBYTE = 1024 * 1024
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
KEY_STORES = ("file", "systemd-creds", "keyring")
STEP_UP_NONE, STEP_UP_PASSPHRASE, STEP_UP_APPROVAL = STEP_UPS = ("none", "passphrase", "approval")
AUDITS = ("on", "required")
TOKEN_TEXT = "text"  # noqa: S105 - no secret
TOKEN_COMMANDS = (TOKEN_TEXT, "hash")


def _option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    start: str = "",
    at_least: float | None = None,
    at_most: float | None = None,
    secret: bool = False,
) -> Any:
    limits = {"choices": choices, "start": start, "at_least": at_least, "at_most": at_most}
    return field(default=default, metadata={"help": help, "secret": secret, **limits})


@dataclass(frozen=True)
class Settings:
    """The daemon's settings. Each field is an option ``--name-with-hyphens``, explained by its ``metadata["help"]``.

    Paths are absolute; :func:`load` sets ``data_dir`` and ``auth_file`` if the user did not.
    """

    host: str = _option(
        "127.0.0.1", "Address to listen on; anything but loopback puts every connection within reach of the network."
    )
    port: int = _option(paths.DEFAULT_PORT, "TCP port; 0 takes a free one.", at_least=0, at_most=65535)
    data_dir: Path = _option(  # noqa: RUF009 - it makes a field
        None, "Directory of the vault, its key and the known hosts. [platform's data directory]"
    )
    auth_file: Path = _option(  # noqa: RUF009 - it makes a field
        None, "File through which local clients authenticate. [connmgr/auth in the runtime directory]"
    )
    database_url: str = _option(
        "",
        "SQLAlchemy URL of a PostgreSQL database to keep the vault in, instead of vault.db.",
        start="postgresql",
        secret=True,
    )
    key_store: str = _option("file", "Where the vault's key is kept.", choices=KEY_STORES)
    threads: int = _option(
        64, "Requests that may wait for machines at the same time; the next one gets 503.", at_least=1, at_most=1000
    )
    no_auth: bool = _option(False, "Accept requests without a token (for development); browsers are still refused.")
    metrics_token_file: Path | None = _option(  # noqa: RUF009 - it makes a field
        None, "File with a token that grants GET /metrics and nothing else, also after a restart."
    )
    allowed_hosts: tuple[str, ...] = _option(
        (), "Further names that clients may put into the Host header, with or without a port; separated by commas."
    )
    send_env: tuple[str, ...] = _option(
        ("LANG", "LC_*"),
        "Variables, with * and ?, that clients pass from their environment to what they run, separated by commas.",
    )
    session_ttl: float = _option(
        86400.0, "Time of idleness after which a client's token expires; 0: never while the daemon runs.", at_least=0
    )
    web_ttl: float = _option(
        3600.0,
        "Time of idleness after which a page in a browser is logged out; 0: as late as any client.",
        at_least=0,
    )
    web_step_up: str = _option(
        STEP_UP_NONE,
        "What a page in a browser needs again, every 15 minutes, before it reaches machines, secrets, connections or "
        "rights: nothing (none), the passphrase of a vault user, or an approval.",
        choices=STEP_UPS,
    )
    unlock_ttl: float = _option(
        3600.0, "Time of idleness after which a session's vault user is locked again; 0: never.", at_least=0
    )
    idle_timeout: float = _option(86400.0, "Time after which a shell that nobody uses is closed; 0: never.", at_least=0)
    start_timeout: float = _option(30.0, "Time that a shell may take to start.", at_least=0.1, at_most=3600)
    command_timeout: float = _option(
        3600.0, "Time that a command may run if its request names no timeout.", at_least=0.1, at_most=86400
    )
    max_output: int = _option(
        16 * MEBIBYTE, "Bytes kept of each output stream of a command; the rest is dropped.", at_least=1024
    )
    job_output: int = _option(
        64 * MEBIBYTE,
        "Bytes that the remote host keeps of each output stream of a job; the rest is dropped.",
        at_least=1024,
    )
    max_jobs: int = _option(1000, "Jobs that may be under way at the same time.", at_least=1)
    max_connection_jobs: int = _option(64, "Jobs that may be under way on one connection at the same time.", at_least=1)
    max_terminals: int = _option(256, "Terminals that may run at the same time.", at_least=1, at_most=4096)
    max_connection_terminals: int = _option(
        16, "Terminals that may run on one connection at the same time.", at_least=1, at_most=4096
    )
    terminal_timeout: float = _option(
        86400.0, "Time after which a terminal that nobody uses is closed; 0: never.", at_least=0
    )
    max_recording: int = _option(64 * MEBIBYTE, "Bytes after which the recording of a terminal ends.", at_least=1024)
    max_recordings: int = _option(
        1024 * MEBIBYTE,
        "Bytes of all recordings of terminals together; the oldest ended ones are then removed.",
        at_least=1024,
    )
    recording_days: float = _option(
        30.0, "Days after which the recording of a terminal is removed; 0: never.", at_least=0
    )
    max_undo_file: int = _option(
        4 * MEBIBYTE,
        "Bytes of the largest file of which a copy is kept before a token changes it.",
        at_least=0,
        at_most=64 * MEBIBYTE,
    )
    max_undo: int = _option(
        1024 * MEBIBYTE, "Bytes of all copies of files that tokens have changed together; 0: none is kept.", at_least=0
    )
    undo_days: float = _option(
        7.0, "Days after which a change of a file by a token can no longer be undone; 0: never.", at_least=0
    )
    run_days: float = _option(
        30.0, "Days after which an ended run, its targets and its outputs are removed; 0: never.", at_least=0
    )
    run_output: int = _option(
        65536, "Bytes that a run keeps of the end of each output stream of a target.", at_least=1024, at_most=MEBIBYTE
    )
    run_lease: float = _option(
        15.0,
        "Time after which other daemons of a vault on PostgreSQL take over the runs of a daemon that is silent.",
        at_least=1,
        at_most=600,
    )
    daemon_name: str = _option(
        "",
        "The name of this daemon among those that share a vault: a run's local connections belong to it. By default "
        "the host name.",
    )
    max_body: int = _option(16 * MEBIBYTE, "Bytes that a request body may have.", at_least=1024)
    max_blob: int = _option(4096 * MEBIBYTE, "Bytes that a blob may have.", at_least=1024)
    blob_quota: int = _option(8192 * MEBIBYTE, "Bytes that all blobs together may have.", at_least=1024)
    blob_ttl: float = _option(3600.0, "Time after which a blob is dropped.", at_least=1)
    log_level: str = _option("info", "What is logged to stderr; info has one line a request.", choices=LOG_LEVELS)
    log_format: str = _option("text", "How it is logged: lines for people, or JSON objects.", choices=LOG_FORMATS)
    audit: str = _option(
        "on",
        "What is done where the audit log cannot be written: everything (on), or nothing that changes or runs "
        "something (required).",
        choices=AUDITS,
    )
    audit_commands: bool = _option(
        False, "Put the whole text of all commands into the audit log, with the secrets that they may hold."
    )
    audit_token_commands: str = _option(
        TOKEN_TEXT,
        "What the audit log has of the commands of requests with a token: their text, without the secrets that the "
        "vault knows, or only a keyed hash of it.",
        choices=TOKEN_COMMANDS,
    )
    debug: bool = _option(False, "Put tracebacks into the answers to failed requests.")


def options() -> Iterator[Field[Any]]:
    """Yield the fields of :class:`Settings`, each an option, in the order of the documentation."""
    yield from fields(Settings)


def load(flags: Mapping[str, object], environ: Mapping[str, str] = os.environ, config: Path | None = None) -> Settings:
    """Return the settings: a flag wins over ``CONNMGR_<OPTION>``, that over ``config.toml``, that over the default.

    ``flags`` maps field names to values, None for a flag that was not given. ``config`` is the file to read and must
    exist; without it :func:`connmgr.paths.config_file` is read if it exists.
    :raises StartupError: an unknown key, a misspelt variable or a bad value; the message names it and its origin.
    """
    variables = {option.name: f"CONNMGR_{option.name.upper()}" for option in options()}
    if wrong := paths.misspelt(environ, [*variables.values(), *paths.CLIENT_VARIABLES]):
        raise StartupError(wrong)
    values: dict[str, Any] = dict(_from_file(config, environ))
    for option in options():
        variable = variables[option.name]
        value = paths.value_of(environ, variable)
        if value is not None:
            values[option.name] = _convert(option, value, f"environment variable {variable}")
        if flags.get(option.name) is not None:
            flag = f"option --{option.name.replace('_', '-')}"
            values[option.name] = _convert(option, flags[option.name], flag)
    values.setdefault("data_dir", paths.data_directory())
    values.setdefault("auth_file", paths.auth_file(environ))
    return Settings(**values)


def _from_file(config: Path | None, environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    path = config or paths.config_file(environ)
    required = config is not None or "CONNMGR_CONFIG" in environ
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise StartupError(f"The configuration file {path} does not exist.") from None
        return
    except OSError as error:
        raise StartupError(f"The configuration file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise StartupError(f"The configuration file {path} is not valid TOML: {error}.") from None
    by_name = {option.name: option for option in options()}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in by_name or (name != key and name in content):
            raise StartupError(f"The configuration file {path} has an unknown or repeated key: {key}.")
        yield name, _convert(by_name[name], value, f"key {key} in {path}")


def _convert(option: Field[Any], value: object, source: str) -> Any:
    """Convert ``value``, text or a TOML value, to the type of ``option``.

    :raises StartupError: the option does not accept it.
    """
    shown = "" if option.metadata["secret"] else f": {value!r}"
    try:
        convert = _days if option.name.endswith("_days") else _CONVERTERS[str(option.type)]
        converted = convert(value)
    except ValueError as error:
        raise StartupError(f"Bad value of {source}{shown} ({error}).") from None
    choices, start, least, most = (option.metadata[key] for key in ("choices", "start", "at_least", "at_most"))
    if choices and converted not in choices:
        raise StartupError(f"Bad value of {source}{shown} (one of {', '.join(choices)}).")
    if start and not str(converted).startswith(start):
        raise StartupError(f"Bad value of {source}{shown} (begins with {start}).")
    # `not >=` also refuses NaN, for which every comparison is false.
    if least is not None and not converted >= least:
        raise StartupError(f"Bad value of {source}{shown} (at least {least}).")
    if most is not None and not converted <= most:
        raise StartupError(f"Bad value of {source}{shown} (at most {most}).")
    return converted


def _text(value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("not a text")
    # An empty address would be every address, an empty database another vault.
    if not value.strip():
        raise ValueError("it is empty; leave it out for the default")
    return value


def _path(value: object) -> Path:
    text = str(value) if isinstance(value, Path) else _text(value)
    return Path(text).expanduser().absolute()


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("not an integer")  # noqa: TRY004
    if isinstance(value, str) and not value.strip().isdecimal():
        raise ValueError("not an integer")
    return int(value)


def _duration(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"not a duration: give {FORMS}")  # noqa: TRY004
    if isinstance(value, str):
        return parse_duration(value)
    if value == float("inf"):
        raise ValueError("not a finite number")
    return float(value)


def _days(value: object) -> float:
    """Return a number of days, or a duration with a unit in days."""
    has_unit = isinstance(value, str) and value.strip()[-1:].isalpha()
    return _duration(value) / 86400 if has_unit else _duration(value)


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "1", "false", "0"}:
        return value.lower() in {"true", "1"}
    raise ValueError("true or false")


def _texts(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError("not a list of texts")
    return tuple(item.strip() for item in items if item.strip())


_CONVERTERS = {
    "str": _text,
    "int": _integer,
    "float": _duration,
    "bool": _boolean,
    "Path": _path,
    "Path | None": _path,
    "tuple[str, ...]": _texts,
}
