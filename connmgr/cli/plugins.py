"""``connmgr plugins``: the installed connection types and their plugins."""

from __future__ import annotations

import dataclasses
import json

import click

from connmgr.cli.output import json_option, print_table
from connmgr.printable import visible


@click.command()
@json_option
def plugins(*, as_json: bool) -> None:
    """List connection types, and broken plugins."""
    from connmgr.registry import Registry

    registry = Registry.load()
    types = [
        {
            "type": entry.type.name,
            "usageCategory": entry.type.usage_category,
            "distribution": entry.distribution,
            "version": entry.version,
            "description": entry.type.description,
        }
        for entry in registry
    ]
    if as_json:
        problems = [dataclasses.asdict(problem) for problem in registry.problems]
        click.echo(json.dumps({"types": types, "problems": problems}, indent=2))
        return
    rows = [("TYPE", "DISTRIBUTION", "VERSION", "DESCRIPTION")]
    rows += [(kind["type"], kind["distribution"], kind["version"], kind["description"]) for kind in types]
    print_table(rows)
    for problem in registry.problems:
        click.echo(visible(f"not used: {problem.plugin} of {problem.distribution}: {problem.reason}"), err=True)
