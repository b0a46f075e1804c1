"""``connmgr serve``, ``plugins`` and ``api-key``: commands that load the server's code, and need no daemon."""

from __future__ import annotations

import dataclasses
import gc
import json
from pathlib import Path
from typing import Any

import click

from connmgr.cli.options import read_settings, setting_options
from connmgr.cli.output import check_new, json_option, print_table, write_private
from connmgr.printable import visible


@click.command()
@setting_options()
def serve(**flags: Any) -> None:
    """Run the daemon until it is stopped.

    SIGTERM, Ctrl-C, `connmgr stop` and POST /daemon/stop stop it. It prints one line when it is ready.
    Each option is also the environment variable CONNMGR_<OPTION> and a key of config.toml. An option on the command
    line wins.
    """
    settings = read_settings(flags)
    # Garbage collection takes a third of the time of the imports.
    gc.disable()
    from connmgr.daemon.main import serve as run

    run(settings)


@click.command()
@json_option
def plugins(*, as_json: bool) -> None:
    """List connection types, secret sources, problems."""
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
    sources = [{"source": source.name, "description": source.description} for source in registry.sources]
    if as_json:
        problems = [dataclasses.asdict(problem) for problem in registry.problems]
        click.echo(json.dumps({"types": types, "sources": sources, "problems": problems}, indent=2))
        return
    rows = [("TYPE", "DISTRIBUTION", "VERSION", "DESCRIPTION")]
    rows += [(kind["type"], kind["distribution"], kind["version"], kind["description"]) for kind in types]
    print_table(rows)
    if sources:
        click.echo()
        print_table(
            [("SECRET SOURCE", "DESCRIPTION"), *((source["source"], source["description"]) for source in sources)]
        )
    for problem in registry.problems:
        click.echo(visible(f"not used: {problem.plugin} of {problem.distribution}: {problem.reason}"), err=True)


@click.command(name="api-key")
@click.option("--rotate", is_flag=True, help="Replace it. A running daemon accepts the new key at once.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write it into the new FILE, which only you can read, instead of standard output.",
)
@click.option("--force", is_flag=True, help="Let --output overwrite FILE if it exists.")
@setting_options("data_dir")
def api_key(output: Path | None, *, rotate: bool, force: bool, **flags: Any) -> None:
    """Print the API key, or write it into a file. The first call creates it."""
    settings = read_settings(flags)
    if force and output is None:
        raise click.UsageError("--force needs --output.")
    if output is not None:
        check_new(output, force=force)
    from connmgr.daemon.files import make_api_key

    key = make_api_key(settings.data_dir, rotate=rotate)
    if output is None:
        click.echo(key)
    else:
        write_private(output, f"{key}\n", replaces=force)
        click.echo(f"The API key is in {visible(str(output))}.", err=True)
