"""``connmgr mcp``: an MCP server, by which an agent uses what a token allows."""

from __future__ import annotations

import gc

import click

from connmgr.cli.daemon import clients_by_token, connect, shown_token
from connmgr.cli.exits import Failure
from connmgr.cli.mcp_install import install, uninstall

PORT = 21722
ANSWER_SECONDS = 60.0


@click.group(invoke_without_command=True)
@click.option("--owner", is_flag=True, help="Let the agent do everything that you may, without a token.")
@click.option(
    "--http", "by_http", is_flag=True, help="Serve many agents by streamable HTTP; each shows a token as its bearer."
)
@click.option(
    "--port",
    metavar="NUMBER",
    type=click.IntRange(0, 65535),
    help=f"With --http, the port of 127.0.0.1 to listen on; 0 takes a free one.  [default: {PORT}]",
)
@click.pass_context
def mcp(context: click.Context, *, owner: bool, by_http: bool, port: int | None) -> None:
    """Serve an agent on standard input and output.

    The agent may do what the token allows that --token-file or CONNMGR_TOKEN shows. With --http there are many agents,
    each with its own token; none but this one where it is shown. Needs connmgr[mcp].
    """
    if context.invoked_subcommand is not None:
        return
    if by_http:
        if owner:
            raise click.UsageError("With --http each agent shows a token of its own, and none is served without one.")
        _serve_http(PORT if port is None else port)
        return
    if port is not None:
        raise click.UsageError("--port is for --http.")
    if not owner and not shown_token():
        raise Failure(
            "An agent gets a token, never your own rights: `connmgr token create` makes one, --token-file shows it. "
            "--owner lets the agent do everything."
        )
    _load()
    import anyio

    from connmgr.mcp.bridge import Bridge
    from connmgr.mcp.server import build

    bridge = Bridge(connect(offers_start=False, timeout=ANSWER_SECONDS))
    context.call_on_close(bridge.close)
    anyio.run(build(bridge).run_stdio_async)


mcp.add_command(install)
mcp.add_command(uninstall)


def _serve_http(port: int) -> None:
    client, only = clients_by_token(ANSWER_SECONDS), shown_token()
    _load()
    import anyio

    from connmgr.mcp.http import listen, serve, url_of

    try:
        listening = listen(port)
    except OSError as error:
        raise Failure(f"Port {port} of 127.0.0.1 cannot be listened on: {error.strerror}.") from error
    with listening:
        anyio.run(serve, listening, client, lambda: click.echo(f"connmgr mcp listening on {url_of(listening)}"), only)


def _load() -> None:
    """Load the SDK; the collector would walk the thousands of classes that it makes several times.

    :raises Failure: it is not installed.
    """
    gc.disable()
    try:
        import connmgr.mcp.server  # noqa: F401 - loaded for its callers
    except ImportError as error:
        raise Failure(f"The MCP server is not installed ({error.name} is missing): install connmgr[mcp].") from error
    finally:
        gc.freeze()
        gc.enable()
