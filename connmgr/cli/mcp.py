"""``connmgr mcp``: an MCP server, by which an agent uses what a token allows."""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import TYPE_CHECKING

import click

from connmgr.cli.daemon import clients_by_token, connect, named_credential
from connmgr.cli.exits import Failure
from connmgr.cli.mcp_install import install, uninstall
from connmgr.client.credentials import is_token, read_token

if TYPE_CHECKING:
    from connmgr.mcp.approver import Approver

PORT = 21722
APPROVER_VARIABLE = "CONNMGR_APPROVER_TOKEN_FILE"
ANSWER_SECONDS = 60.0
DECIDE_SECONDS = 5.0
"""Limit for decisions about approvals, which are sent while a tool's call waits."""


@click.group(invoke_without_command=True, subcommand_metavar="[COMMAND] [ARGS]...")
@click.option("--owner", is_flag=True, help="Let the agent do everything that you may, without a token.")
@click.option(
    "--http", "by_http", is_flag=True, help="Serve many agents by streamable HTTP; each sends a bearer token."
)
@click.option(
    "--port",
    metavar="NUMBER",
    type=click.IntRange(0, 65535),
    help=f"With --http, the port of 127.0.0.1 to listen on; 0 takes a free one.  [default: {PORT}]",
)
@click.option(
    "--approver-token-file",
    metavar="FILE",
    help="A second token, which decides about approvals as the person in front of the agent's client answers; "
    f"{APPROVER_VARIABLE} names one too.",
)
@click.pass_context
def mcp(
    context: click.Context, *, owner: bool, by_http: bool, port: int | None, approver_token_file: str | None
) -> None:
    """Serve an agent on standard input and output.

    The agent has the rights of the token in --token-file or CONNMGR_TOKEN. With --http there are many agents, each with
    its own token; if a token is given here, only agents with this token are served. Needs connmgr[mcp].
    """
    if context.invoked_subcommand is not None:
        return
    if by_http:
        if owner:
            raise click.UsageError("With --http each agent shows a token of its own, and none is served without one.")
        _serve_http(PORT if port is None else port, approver_token_file)
        return
    if port is not None:
        raise click.UsageError("--port is for --http.")
    credential = named_credential()
    if owner and is_token(credential):
        raise click.UsageError("--owner and a token contradict each other: give one of them.")
    if not owner and not is_token(credential):
        raise Failure(
            "An agent gets a token, never your own rights: `connmgr token create` makes one, --token-file shows it. "
            "--owner lets the agent do everything."
        )
    _load()
    import anyio

    from connmgr.mcp.bridge import Bridge
    from connmgr.mcp.server import build
    from connmgr.mcp.stdio import serve

    bridge = Bridge(connect(offers_start=False, timeout=ANSWER_SECONDS))
    context.call_on_close(bridge.close)
    anyio.run(serve, build(bridge, _approver(approver_token_file)), bridge.close)


mcp.add_command(install)
mcp.add_command(uninstall)


def _serve_http(port: int, approver_token_file: str | None) -> None:
    client, only = clients_by_token(ANSWER_SECONDS), named_credential()
    if only is not None and not is_token(only):
        raise click.UsageError(
            "With --http each agent shows a token of its own; the API key is not a token, and no agent may have it."
        )
    _load()
    import anyio

    from connmgr.mcp.http import listen, serve, url_of
    from connmgr.mcp.server import build

    try:
        listening = listen(port)
    except OSError as error:
        raise Failure(f"Port {port} of 127.0.0.1 cannot be listened on: {error.strerror}.") from error
    with listening:
        built = partial(build, approver=_approver(approver_token_file))
        ready = partial(click.echo, f"connmgr mcp listening on {url_of(listening)}")
        anyio.run(serve, listening, client, ready, only, built)


def _load() -> None:
    """Import the SDK, and set up logging; without garbage collection, which would walk thousands of new classes.

    :raises Failure: the SDK is not installed.
    """
    gc.disable()
    # Otherwise Pydantic would look for plugins in every installed distribution.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    try:
        import connmgr.mcp.server  # noqa: F401 - loaded for its callers
        from connmgr.mcp.log import log_to_stderr

        log_to_stderr()
    except ImportError as error:
        raise Failure(
            f"The MCP server is not installed ({error.name} is missing): install connmgr[mcp], in a clone by "
            "`pip install '.[mcp]'`."
        ) from error
    finally:
        gc.freeze()
        gc.enable()


def _approver(path: str | None) -> Approver | None:
    # click takes an empty variable for one that is not set.
    named = os.environ.get(APPROVER_VARIABLE) if path is None else path
    if named is None:
        return None
    from connmgr.mcp.approver import Approver

    client = clients_by_token(DECIDE_SECONDS)(read_token(named, "" if path is not None else APPROVER_VARIABLE))
    click.get_current_context().call_on_close(client.close)
    return Approver(client)
