"""``connmgr exec --dry-run``: how the rules of the caller's token decide about a command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import click

from connmgr.cli.exits import NOT_RUN
from connmgr.cli.output import print_json
from connmgr.client import Client
from connmgr.printable import visible

_EFFECTS = {"allow": "would run", "ask": "would wait for an approval", "deny": "would be refused"}


def foretell(client: Client, request: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the daemon's decision about a request to ``/shell/exec``; exit with 125 unless it would run."""
    given = {name: value for name, value in request.items() if value is not None}
    told = client.post("/token/check", path="/shell/exec", request=given)
    if as_json:
        print_json(told)
    else:
        click.echo(_line(told))
    if told["effect"] != "allow":
        raise click.exceptions.Exit(NOT_RUN)


def _line(told: Mapping[str, Any]) -> str:
    rule = "" if told["rule"] is None else f" by rule {visible(str(told['rule']))}"
    run_as = f": {visible(shlex.join(told['argv']))}" if "argv" in told else ""
    why = f" ({told['code']}: {visible(told['message'])})" if "code" in told else ""
    return f"It {_EFFECTS[told['effect']]}{rule}{why}{run_as}"
