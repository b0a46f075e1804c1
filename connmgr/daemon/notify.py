"""Tells systemd that the daemon is ready, if systemd has started it and waits for that."""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger("connmgr.daemon")


def tell_ready() -> None:
    """Send ``READY=1`` to the socket named by ``NOTIFY_SOCKET``, if any; shells then do not get the variable."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        try:
            # @ stands for the null byte of an abstract address.
            told.connect("\0" + address[1:] if address.startswith("@") else address)
            told.send(b"READY=1")
        except OSError as error:
            logger.warning("systemd cannot be told that the daemon is ready: %s.", error.strerror)
