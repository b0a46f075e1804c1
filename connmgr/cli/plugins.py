"""``connmgr plugins``: which connection types are installed, and who brings them."""

from __future__ import annotations

import dataclasses
import json

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plugins(*, as_json: bool) -> None:
    """List the connection types, and the plugins that cannot be used."""
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
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        click.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]))
    for problem in registry.problems:
        click.echo(f"not used: {problem.plugin} of {problem.distribution}: {problem.reason}", err=True)
