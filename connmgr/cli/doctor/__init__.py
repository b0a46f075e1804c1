"""``connmgr doctor``: finds what is wrong on this machine, and says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.daemon import address
from connmgr.cli.doctor import daemon, files, leftovers, surroundings, vault
from connmgr.cli.doctor.finding import OK, PROBLEM, Examined, Finding
from connmgr.cli.exits import FAILED
from connmgr.cli.options import read_settings, setting_options
from connmgr.cli.output import json_option, print_json, print_table
from connmgr.client import Client, ClientError
from connmgr.client.address import is_address_named
from connmgr.errors import ConnmgrError
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.settings import Settings

ANSWER_SECONDS = 5.0


@click.command()
@json_option
@setting_options("host", "port", "data_dir", "auth_file", "database_url", "key_store")
def doctor(*, as_json: bool, **given: Any) -> None:
    """Check the installation, and say what to do.

    It checks files, key, vault, plugins, programs, clock, daemon and leftovers of jobs. It changes nothing. If a daemon
    runs, programs and SSH agent are those that the daemon finds. It exits with 1 if something is wrong, but not for
    warnings.
    """
    findings = list(_findings(given))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table([(one.result.upper() if one.result != OK else OK, one.subject, one.message) for one in findings])
        for one in findings:
            if one.advice:
                click.echo(f"\n{visible(f'{one.subject}: {one.advice}')}")
    if any(finding.result == PROBLEM for finding in findings):
        raise click.exceptions.Exit(FAILED)


def _findings(given: dict[str, Any]) -> Iterator[Finding]:
    try:
        settings = read_settings(given)
    except ConnmgrError as error:
        yield Finding("settings", PROBLEM, error.message, "Correct it there; docs/OPERATIONS.md lists all settings.")
        return
    yield Finding("settings", OK, "can be read")
    named = is_address_named() or any(given[name] is not None for name in ("host", "port"))
    url = click.get_current_context().find_root().params["url"] or address(settings, named=named)
    examined = Examined(settings, url, _status(url, settings))
    for check in CHECKS:
        yield from check(examined)


def _status(url: str, settings: Settings) -> dict[str, Any] | None:
    try:
        client = Client(url, settings.auth_file, timeout=ANSWER_SECONDS)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if not os.path.lexists(settings.auth_file):
        return None
    with client, suppress(ClientError):
        answer: dict[str, Any] = client.post("/daemon/status")
        return answer
    return None


CHECKS: tuple[Callable[[Examined], Iterator[Finding]], ...] = (
    files.data_directory,
    files.config,
    vault.vault,
    surroundings.plugins,
    surroundings.programs,
    surroundings.agent,
    files.clock,
    daemon.daemon,
    leftovers.orphans,
)
