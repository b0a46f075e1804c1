"""``connmgr mcp``: an MCP server, by which an agent uses what a token allows, and its entry in the agent's client."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from connmgr import __version__, paths
from connmgr.cli.commands.mcp_clients import Entry, McpClient, NotMergeableError, mcp_clients
from connmgr.cli.commands.rights import DAY, report_unmatched, token_members, token_options
from connmgr.cli.connect import clients_by_token, connect, named_credential, program, way_to_daemon
from connmgr.cli.exits import Failure
from connmgr.cli.output import Duration, write_private
from connmgr.client import AccessDenied, Client, ClientError
from connmgr.client.credentials import TOKEN_PREFIX, is_token, read_token
from connmgr.contract.token import MAX_DAYS
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.mcp.approval import Approver


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
        raise click.UsageError("--port needs --http.")
    credential = named_credential()
    if owner and is_token(credential):
        raise click.UsageError("--owner and a token contradict each other: give one of them.")
    if not owner and not is_token(credential):
        raise Failure(
            "No token is given for the agent: `connmgr token create` creates one, and --token-file names its file. "
            "With --owner the agent may do everything that you may."
        )
    _load()
    import anyio

    from connmgr.mcp.bridge import Bridge
    from connmgr.mcp.server import BridgeServer
    from connmgr.mcp.stdio import serve

    bridge = Bridge(connect(offers_start=False, timeout=ANSWER_SECONDS))
    context.call_on_close(bridge.close)
    anyio.run(serve, BridgeServer(bridge, _approver(approver_token_file)), bridge.close)


def _serve_http(port: int, approver_token_file: str | None) -> None:
    client, only = clients_by_token(ANSWER_SECONDS), named_credential()
    if only is not None and not is_token(only):
        raise click.UsageError(
            "With --http each agent shows a token of its own; the API key is not a token, and no agent may have it."
        )
    _load()
    import anyio

    from connmgr.mcp.http import listen, serve, url_of
    from connmgr.mcp.server import BridgeServer

    try:
        listening = listen(port)
    except OSError as error:
        raise Failure(f"Port {port} of 127.0.0.1 cannot be listened on: {error.strerror}.") from error
    with listening:
        built = partial(BridgeServer, approver=_approver(approver_token_file))
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
        from connmgr.mcp.stdio import log_to_stderr

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
    file = os.environ.get(APPROVER_VARIABLE) if path is None else path
    if file is None:
        return None
    from connmgr.mcp.approval import Approver

    client = clients_by_token(DECIDE_SECONDS)(read_token(file, "" if path is not None else APPROVER_VARIABLE))
    click.get_current_context().call_on_close(client.close)
    return Approver(client)


SERVER = "connmgr"
LOOKS = {"connection.read"}
DEFAULT = {"shell.any", "fs.read", "fs.write"}
DECIDES = "approval.decide"
RUNS = {"shell.any", "shell.argv"}
BACKUP = ".before-connmgr"
TOKEN_SECONDS = 30.0
START_SECONDS = 60.0
MAX_SAID = 2000

PROTOCOL = "2025-06-18"
"""A version of the protocol whose handshake every server understands."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")
Command = TypeVar("Command", bound=Callable[..., Any])


def _check_name(_: click.Context, __: click.Parameter, name: str) -> str:
    if not _NAME.fullmatch(name):
        raise click.BadParameter("A name has letters, digits, - and _, at most 50 of them.")
    return name


def _place_options(command: Command) -> Command:
    file = click.option(
        "--file",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The file of the client's configuration, such as .mcp.json of a project.  [default: the user's]",
    )
    name = click.option(
        "--name",
        metavar="NAME",
        default=SERVER,
        callback=_check_name,
        help=f"The server's name there.  [default: {SERVER}]",
    )
    client = click.argument("client", type=click.Choice(sorted(mcp_clients(Path(), {}))))
    return client(file(name(command)))


@mcp.command()
@_place_options
@click.option("--write", is_flag=True, help=f"Put it into the file; the previous content is kept as FILE{BACKUP}.")
@click.option(
    "--expires",
    metavar="TIME",
    default="7d",
    type=Duration(MAX_DAYS * DAY),
    help="When the token expires, from now; at most 90d.  [default: 7d]",
)
@click.option(
    "--approve-here",
    is_flag=True,
    help="Create a second token, which decides as you answer in the client; without it `connmgr approve` decides.",
)
@token_options
def install(
    client: str, file: Path | None, name: str, *, write: bool, expires: float, approve_here: bool, **flags: Any
) -> None:
    """Create a token for an agent, and print the configuration of its client.

    --only or --category must say which connections the agent sees: --only '*' means all. Without a scope or rule it may
    run anything on them, and read and write files. Repeat the command for a new token; the old one is revoked. The
    server is started once as the client will start it; if it does not answer, nothing is configured.
    """
    if not (flags["only"] or flags["category"]):
        raise click.UsageError("Say which connections the agent sees: --only 'web*', or --only '*' for all.")
    rights = _rights(flags)
    if approve_here and not any("ask" in rule.values() for rule in rights["rules"] if isinstance(rule, dict)):
        raise click.UsageError("--approve-here decides about what rules ask: add --ask, or --rules with such rules.")
    mcp_client = _client(client)
    target = file or mcp_client.file
    token_file = _token_file(client, name)
    options, environment = way_to_daemon()
    words = program()
    decider = _approver_file(client, name)
    decides = ["--approver-token-file", str(decider)] if approve_here else []
    entry = Entry(words[0], [*words[1:], "mcp", *options, "--token-file", str(token_file), *decides], environment)
    _require_sdk()
    content = _content(target) if write else ""
    # The order matters: nothing that exists is touched before the new server has answered. First the file is merged in
    # memory, so that one that cannot be changed is reported before a token is created.
    changed = _merge(mcp_client, target, content, name, entry)
    daemon = connect()
    tokens = {token_file: daemon.post("/token/create", name=_title(client, name), expires=expires, **rights)}
    created = tokens[token_file]
    report_unmatched(daemon, rights)
    try:
        if approve_here:
            approver = {"name": f"{_title(client, name)}-approver", "expires": expires, "scopes": [DECIDES]}
            sight = {kind: rights[kind] for kind in ("connections", "categories")}
            tokens[decider] = daemon.post("/token/create", **approver, **sight)
        for file, token in tokens.items():
            write_private(_draft(file), f"{token['token']}\n")
        _try(entry, {str(file): str(_draft(file)) for file in tokens})
    except BaseException:
        # Nothing was changed, neither the former tokens nor the configuration.
        for file, token in tokens.items():
            _draft(file).unlink(missing_ok=True)
            _revoke(daemon, token["id"])
        raise
    # Now nothing can fail that would leave the client without a working token.
    for file in tokens:
        _replace_token(daemon, file)
    if not approve_here:
        _withdraw(decider)
    place = f"Its token {created['id'][:8]} is in {token_file}, until {created['expires']}."
    if not write:
        click.echo(mcp_client.form.render(name, entry), nl=False)
        click.echo(f"{mcp_client.title} reads this from {target}; --write puts it there. {place}", err=True)
        return
    _replace(target, content, changed)
    click.echo(f"{target} has the server {name}: start {mcp_client.title} anew. {place}")


@mcp.command()
@_place_options
def uninstall(client: str, file: Path | None, name: str) -> None:
    """Revoke the token that was created for an agent, and remove the server from its client's configuration."""
    mcp_client = _client(client)
    target = file or mcp_client.file
    token_file = _token_file(client, name)
    for token in (token_file, _approver_file(client, name)):
        if former := _withdraw(token):
            click.echo(f"The token {former[:8]} is revoked.")
    content = _content(target)
    changed = _merge(mcp_client, target, content, name, None)
    if changed != content:
        _replace(target, content, changed)
        click.echo(f"{target} no longer has the server {name}.")


def _client(name: str) -> McpClient:
    return mcp_clients(Path.home(), os.environ)[name]


def _title(client: str, name: str) -> str:
    return client if name == SERVER else f"{client}-{name}"


def _token_file(client: str, name: str) -> Path:
    return paths.state_directory(os.environ).absolute() / "mcp" / f"{_title(client, name)}.token"


def _approver_file(client: str, name: str) -> Path:
    return _token_file(client, name).with_suffix(".approver.token")


def _rights(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the rights of the token: by its options, or the default; with the scopes that the tools need for them."""
    members = token_members(flags)
    explicit = set(members["scopes"])
    scopes = explicit or (set() if members["rules"] else DEFAULT)
    return {**members, "scopes": sorted({*scopes, *LOOKS, *({"job"} if scopes & RUNS else ())})}


def _require_sdk() -> None:
    """Refuse to configure a client for a server that is not installed.

    :raises Failure: the extra is missing; the message says how to install it.
    """
    # Importing it would take a second, and starting the server shows the rest.
    for module in ("mcp", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            raise Failure(
                f"The MCP server is not installed ({module} is missing), so that no client could start it. Install "
                "connmgr[mcp], in a clone by `pipx install --force '.[mcp]'` or `pip install '.[mcp]'`, and repeat "
                "this."
            )


def _try(entry: Entry, drafts: Mapping[str, str]) -> None:
    """Start the server as the client will, and wait for its answer; ``drafts`` take the place of words of its call.

    :raises Failure: it does not answer; the message has what it has said.
    """
    # The other commands of this module start nothing.
    import subprocess

    command = [entry.command, *(drafts.get(word, word) for word in entry.arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CONNMGR_")}
    client = {"name": "connmgr mcp install", "version": __version__}
    parameters = {"protocolVersion": PROTOCOL, "capabilities": {}, "clientInfo": client}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters}) + "\n"
    try:
        process = subprocess.run(  # noqa: S603 - this program itself
            command,
            input=request,
            capture_output=True,
            env={**environment, **entry.environment},
            cwd=Path.home(),
            text=True,
            errors="replace",
            timeout=START_SECONDS,
            check=False,
        )
    except OSError as error:
        raise Failure(
            f"The server cannot be started: {command[0]}: {error.strerror}. No client is configured."
        ) from error
    except subprocess.TimeoutExpired:
        raise Failure(
            f"The server did not answer within {START_SECONDS:g} s, so no client is configured: `connmgr doctor` looks "
            "for the reason."
        ) from None
    if not _is_answer(process.stdout):
        output = visible(process.stderr.strip()[-MAX_SAID:] or f"exit code {process.returncode}", lines=True)
        raise Failure(f"The server does not start, so no client is configured. It says: {output}")


def _is_answer(output: str) -> bool:
    try:
        answer = json.loads(output.partition("\n")[0])
    except ValueError:
        return False
    return isinstance(answer, dict) and "serverInfo" in (answer.get("result") or ())


def _draft(file: Path) -> Path:
    return file.with_name(f"{file.name}.new")


def _replace_token(daemon: Client, file: Path) -> None:
    """Put the draft of a token's file in its place, and revoke the token that was there."""
    former = _former(file)
    _draft(file).replace(file)
    if former is not None:
        _revoke(daemon, former)


def _withdraw(file: Path) -> str | None:
    """Revoke the token in a file and remove the file; return the token's uuid if it was valid."""
    former = _former(file)
    if former is not None:
        _revoke(connect(), former)
    file.unlink(missing_ok=True)
    return former


def _former(file: Path) -> str | None:
    """Return the uuid of the token in a file, None if there is no valid one."""
    try:
        token = file.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Failure(f"The token in {file} cannot be read: {error.strerror}") from error
    # Only a token may be sent to the daemon, whatever the file contains.
    if not token.startswith(TOKEN_PREFIX):
        return None
    with contextlib.closing(clients_by_token(TOKEN_SECONDS)(token)) as holder:
        try:
            return holder.token.info().id
        except AccessDenied:
            return None


def _revoke(daemon: Client, id: str) -> None:
    try:
        daemon.token.revoke(id)
    except ClientError as error:
        # The token was revoked meanwhile.
        if error.code != "unknown_token":
            raise


def _content(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeError:
        raise Failure(f"{file} is not in UTF-8, and is left as it is.") from None


def _merge(client: McpClient, file: Path, content: str, name: str, entry: Entry | None) -> str:
    try:
        return client.form.merge(content, name, entry)
    except NotMergeableError as error:
        what = (
            "remove the server from it" if entry is None else "repeat this without --write and put what it prints there"
        )
        raise Failure(f"{file} is left as it is, since {error}: {what} yourself.") from error


def _replace(file: Path, content: str, changed: str) -> None:
    # If the file is a link, for example into a repository of settings, its target is replaced.
    real = file.resolve()
    if content:
        write_private(real.with_name(real.name + BACKUP), content)
    if _content(file) != content:
        raise Failure(f"{file} is being changed by another program: try again.")
    write_private(real, changed)
