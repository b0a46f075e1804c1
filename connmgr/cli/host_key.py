"""Unknown host keys: asks about them on a terminal, as ``ssh`` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from connmgr.client import Client, ClientError
from connmgr.printable import visible

UNKNOWN, CHANGED = "host_key_unknown", "host_key_changed"


class Doorkeeper:
    """Trusts keys of unknown hosts: those with one of ``fingerprints``, or without any, those a person accepts."""

    def __init__(self, client: Client, fingerprints: Sequence[str] = ()) -> None:
        self._client = client
        self._fingerprints = fingerprints
        self.admitted = 0
        """Number of keys trusted so far."""

    def admits(self, error: ClientError, body: bytes) -> bool:
        """Whether the request with ``body``, refused by ``error``, may be repeated because a key is now trusted."""
        told = error.details
        if error.code != UNKNOWN or not {"host", "hostKey", "fingerprint"} <= told.keys():
            return False
        connection = json.loads(body).get("connection")
        if not isinstance(connection, str) or not self._accepted(told):
            return False
        self._client.hostkey.trust(connection, told["host"], told["hostKey"])
        self.admitted += 1
        click.echo(f"trusted  {visible(told['host'])}  {visible(told['fingerprint'])}", err=True)
        return True

    def _accepted(self, told: dict[str, Any]) -> bool:
        if self._fingerprints:
            return told["fingerprint"] in self._fingerprints
        return sys.stdin.isatty() and sys.stderr.isatty() and _asked(told)


def _asked(told: dict[str, Any]) -> bool:
    # Imported here, because most commands ask nothing.
    from connmgr.cli.progress import hush
    from connmgr.cli.randomart import randomart

    hush()
    kind = visible(told["hostKey"].split()[0])
    click.echo(f"The key of {visible(told['host'])} is not known:", err=True)
    click.echo(f"{kind} {visible(told['fingerprint'])}\n{randomart(told['hostKey'])}", err=True)
    while True:
        answer = click.prompt("Trust this host? (yes/no/fingerprint)", err=True, prompt_suffix=" ").strip()
        if answer == told["fingerprint"] or answer.lower() == "yes":
            return True
        if answer.lower() == "no":
            return False
