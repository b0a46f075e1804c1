"""Default paths of connmgr's files, without importing the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from connmgr.errors import StartupError

APPLICATION = "connmgr"
DEFAULT_PORT = 21721

TOKEN_VARIABLE = "CONNMGR_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE_VARIABLE = "CONNMGR_TOKEN_FILE"  # noqa: S105
API_KEY_FILE_VARIABLE = "CONNMGR_API_KEY_FILE"
CREDENTIAL_VARIABLES = (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, API_KEY_FILE_VARIABLE)
"""The variables that name a client's credential. One that is set and empty is an error, never the owner."""


def value_of(environ: Mapping[str, str], variable: str) -> str | None:
    """Return the value of a ``variable``, None if it is not set.

    :raises StartupError: it is empty: what was to be named may be another vault, or another daemon, than the default.
    """
    value = environ.get(variable)
    if value is not None and not value.strip():
        raise StartupError(f"The environment variable {variable} is empty: unset it, or give it a value.")
    return value


def data_directory() -> Path:
    """Return the platform's data directory of connmgr: vault, keys, known hosts."""
    if sys.platform == "linux":
        return _xdg_directory(os.environ, "XDG_DATA_HOME", ".local/share")
    import platformdirs

    return platformdirs.user_data_path(APPLICATION, appauthor=False)


def config_file(environ: Mapping[str, str]) -> Path:
    """Return the path of ``config.toml``: ``CONNMGR_CONFIG``, or in the platform's configuration directory.

    :raises StartupError: the variable is empty.
    """
    named = value_of(environ, "CONNMGR_CONFIG")
    if named is not None:
        return Path(named)
    if sys.platform == "linux":
        return _xdg_directory(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"
    import platformdirs

    return platformdirs.user_config_path(APPLICATION, appauthor=False) / "config.toml"


def auth_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the auth file: in the session's runtime directory, or else the platform's state directory.

    Never ``/tmp``, which platformdirs chooses if there is no runtime directory.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):  # noqa: PTH117 - the specification has a relative one ignored
        return Path(runtime) / APPLICATION / "auth"
    return state_directory(environ) / "auth"


def socket_of(auth_file: Path, port: int) -> Path:
    """Return the path of the Unix socket of the daemon with this ``auth_file`` and ``port``; both are in its name."""
    return auth_file.with_name(f"{auth_file.name}.{port}.sock")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the platform's directory for state, as opposed to the user's data."""
    if sys.platform == "linux":
        return _xdg_directory(environ, "XDG_STATE_HOME", ".local/state")
    import platformdirs

    return platformdirs.user_state_path(APPLICATION, appauthor=False)


def _xdg_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    # As platformdirs on Linux, without its import time.
    named = environ.get(variable, "").strip()
    return (Path(named) if named else Path.home() / default) / APPLICATION
