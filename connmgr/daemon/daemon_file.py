"""The file beside the auth file that tells clients where the daemon listens."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from connmgr import __version__
from connmgr.daemon.files import replace_private
from connmgr.errors import StartupError
from connmgr.paths import Whereabouts, daemon_file_of, read_daemon_file
from connmgr.processes import start_of

logger = logging.getLogger("connmgr.daemon")


class DaemonFile:
    """A file, mode 0600, with this daemon's address, from construction to :meth:`remove`.

    The caller holds ``auth_file``, so a file of another daemon is a leftover and is replaced. If the file cannot be
    written, clients must be given the ``url``.
    """

    def __init__(self, auth_file: Path, url: str) -> None:
        self._path = daemon_file_of(auth_file)
        self._content = Whereabouts(url, os.getpid(), start_of(os.getpid()), __version__)
        try:
            replace_private(self._path, self._content.text())
        except StartupError as error:
            logger.warning("%s Clients look for the daemon where the settings say.", error.message)

    def remove(self) -> None:
        """Remove the file if it is still this daemon's; calling it again does nothing."""
        with suppress(OSError):
            if read_daemon_file(self._path) == self._content:
                self._path.unlink()
