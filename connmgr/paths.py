"""Where connmgr's files are by default, for those who must know without loading the server."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

APPLICATION = "connmgr"
DEFAULT_PORT = 21721


def data_directory() -> Path:
    """Return the platform's directory for this user's data of connmgr: vault, keys, known hosts."""
    if sys.platform == "linux":
        return _xdg_directory(os.environ, "XDG_DATA_HOME", ".local/share")
    import platformdirs

    return platformdirs.user_data_path(APPLICATION, appauthor=False)


def config_file(environ: Mapping[str, str]) -> Path:
    """Return the path of ``config.toml``: ``CONNMGR_CONFIG``, or in the platform's configuration directory."""
    named = environ.get("CONNMGR_CONFIG")
    if named:
        return Path(named)
    if sys.platform == "linux":
        return _xdg_directory(environ, "XDG_CONFIG_HOME", ".config") / "config.toml"
    import platformdirs

    return platformdirs.user_config_path(APPLICATION, appauthor=False) / "config.toml"


def auth_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the auth file: in the session's runtime directory, else in the platform's state directory.

    ``/tmp`` is never chosen, as platformdirs does where there is no runtime directory.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):  # noqa: PTH117 - the specification has a relative one ignored
        return Path(runtime) / APPLICATION / "auth"
    return state_directory(environ) / "auth"


def socket_of(auth_file: Path, port: int) -> Path:
    """Return the path of the Unix socket of the daemon that made ``auth_file`` and listens on ``port``.

    The port is part of the name, so that a client which is told another daemon's port does not talk to this one.
    """
    return auth_file.with_name(f"{auth_file.name}.{port}.sock")


def state_directory(environ: Mapping[str, str]) -> Path:
    """Return the platform's directory for what is kept, but is no data of the user's."""
    if sys.platform == "linux":
        return _xdg_directory(environ, "XDG_STATE_HOME", ".local/state")
    import platformdirs

    return platformdirs.user_state_path(APPLICATION, appauthor=False)


def _xdg_directory(environ: Mapping[str, str], variable: str, default: str) -> Path:
    # What platformdirs does on Linux, without the time that importing it takes.
    named = environ.get(variable, "").strip()
    return (Path(named) if named else Path.home() / default) / APPLICATION
