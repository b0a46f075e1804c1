"""``connmgr mcp``: an MCP server, by which an agent uses what a token allows."""

from __future__ import annotations

import click

from connmgr.cli.daemon import connect, shows_token
from connmgr.cli.exits import Failure


@click.group(invoke_without_command=True)
@click.option("--owner", is_flag=True, help="Let the agent do everything that you may, without a token.")
@click.pass_context
def mcp(context: click.Context, *, owner: bool) -> None:
    """Serve an agent on standard input and output.

    The agent may do what the token allows that --token-file or CONNMGR_TOKEN shows. Needs connmgr[mcp].
    """
    if context.invoked_subcommand is not None:
        return
    if not owner and not shows_token():
        raise Failure(
            "An agent gets a token, never your own rights: `connmgr token create` makes one, --token-file shows it. "
            "--owner lets the agent do everything."
        )
    try:
        import anyio

        from connmgr.mcp.bridge import Bridge
        from connmgr.mcp.server import build
    except ImportError as error:
        raise Failure(f"The MCP server is not installed ({error.name} is missing): install connmgr[mcp].") from error
    bridge = Bridge(connect(offers_start=False, timeout=60.0))
    context.call_on_close(bridge.close)
    anyio.run(build(bridge).run_stdio_async)
