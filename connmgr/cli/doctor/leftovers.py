"""Files of jobs on machines that the vault does not know."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from connmgr.cli.doctor.finding import OK, WARNING, Examined, Finding
from connmgr.cli.orphans import orphans_of_open
from connmgr.cli.output import counted


def orphans(examined: Examined) -> Iterator[Finding]:
    """Ask the machines that the daemon has shells on."""
    if examined.status is None:
        return
    numbers, asked, passed_over = orphans_of_open(examined.url, examined.settings.auth_file)
    for path, number in numbers.items():
        message = f"{path} keeps {counted(number, 'job')} that the vault does not know"
        name = shlex.quote(path)
        advice = (
            f"`connmgr job orphans {name}` lists them; `connmgr job orphans {name} --remove` clears what has ended."
        )
        yield Finding("jobs", WARNING, message, advice)
    if passed_over:
        yield Finding("jobs", OK, f"{counted(passed_over, 'connection')} could not be asked what is left there")
    if asked and not numbers:
        yield Finding("jobs", OK, f"none is left behind on {counted(asked, 'connection')} with a running shell")
