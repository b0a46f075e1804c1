"""Every kind of credential is tried at every endpoint; a table by hand says which are allowed.

A new endpoint or scope fails here until the table has a line or a column for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from connmgr.api.app import endpoints
from connmgr.api.endpoint import Endpoint
from connmgr.api.stream_endpoint import StreamEndpoint
from connmgr.client import Client
from connmgr.mcp.tools import TOOLS as BRIDGE_TOOLS
from connmgr.rights.scopes import SCOPES
from tests.api.wire import LOCAL, send
from tests.cli.program import run
from tests.daemon import Daemon
from tests.deadlines import eventually_equal
from tests.mcp.agent import refused
from tests.mcp.agent import run as run_async
from tests.mcp.bridge import INITIALIZE, HttpBridge
from tests.rights.test_scopes import tried
from tests.rights.wire import Holder, create
from tests.streams.wire import NotUpgradedError, Stream

# owner, apikey, user: sessions of the owner by the auth file or the API key, and with an unlocked vault user. bare: a
# token without scopes. The next eighteen: a token with that scope alone; approval.decide is an approver's.
# child: a token with connection.read below one with more. agent, shell: tokens with several scopes (COMBINED), as
# agents show them to the MCP bridge. metrics: the static token of metrics-token-file. ticket: that of a terminal, as a
# bearer token. orphan: a child of a revoked token. unknown: a token that was never issued.
TABLE = """
                                    c
                                   co           a
                                   onc         sp
                                   nna         ep
                                   net         cr t m
                                   ece         rovo e
                                   ctgs        evakat
                                   tioh s     staueur
                                   iore h t f s.llndi
                                   onylee efs hd.t.ic     m  er u
                              a    n..lll rs.t.ed.cts     e txeon
                             op    .ww.el m.wuacear.. cas t ipvrk
                             wiu b rrrav. irrngrcderr hgh r ciopnn
                             nks a eiiraajneineyimaee iee i krkhoo
                             eee r attgtnoaatenpditaa lnl c eeeawn
                             ryr e deeveybldelttenedd dtl s tddnne
/handshake                   xxx x xxxxxxxxxxxxxxxxxx xxx x xxxxxx
/category/info               xxx . x................. xx. . ......
/category/query              xxx . x................. xx. . ......
/category/add                xxx . ..x............... ... . ......
/category/remove             xxx . ..x............... ... . ......
/connection/query            xxx . x................. xx. . ......
/connection/info             xxx . x................. xx. . ......
/connection/add              xxx . .x................ ... . ......
/connection/elevate          xxx . ....x............. ... . ......
/connection/update           xxx . .x................ ... . ......
/connection/label            xxx . .x................ ... . ......
/connection/remove           xxx . .x................ ... . ......
/connection/refresh          xxx . .x................ ... . ......
/connection/environment      xxx . ...x.xxxxx........ .xx . ......
/connection/login            xxx . ...x.xxxxx........ .xx . ......
/connection/types            xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/connection/toggle           xxx . .....x....x....... ..x . ......
/connection/browse           xxx . x................. xx. . ......
/connection/terminal         xxx . x................. xx. . ......
/connection/apply            xxx . .x................ ... . ......
/shell/start                 xxx . ...x.xxxxx........ .xx . ......
/shell/exec                  xxx . .....x............ ..x . ......
/shell/list                  xxx . ...x.xxxxx........ .xx . ......
/shell/stop                  xxx . ...x.xxxxx........ .xx . ......
/shell/broadcast             xxx . .....x............ ..x . ......
/shell/pipe                  xxx . .....x............ ..x . ......
/multiplex/open              xxx . ...x.x....x....... .xx . ......
/multiplex/close             xxx . ...x.x....x....... .xx . ......
/multiplex/query             xxx . ...x.x....x....... .xx . ......
/multiplex/config            xxx . ...x.x....x....... .xx . ......
/multiplex/keep              xxx . .................. ... . ......
/multiplex/forget            xxx . .................. ... . ......
/multiplex/forward           xxx . ..........x....... ... . ......
/multiplex/cancel            xxx . ..........x....... ... . ......
/multiplex/renew             xxx . .....x............ ..x . ......
/terminal/open               xxx . .................. ..x . ......
/terminal/attach/<terminal>  xxx . .......x.......... ..x . ......
/terminal/ticket             xxx . .......x.......... ..x . ......
/terminal/query              xxx . .......x.......... ..x . ......
/terminal/input              xxx . .......x.......... ..x . ......
/terminal/output             xxx . .......x.......... ..x . ......
/terminal/screen             xxx . .......x.......... ..x . ......
/terminal/resize             xxx . .......x.......... ..x . ......
/terminal/close              xxx . .......x.......... ..x . ......
/tunnel/query                xxx . x.........x....... xx. . ......
/job/start                   xxx . .................. .xx . ......
/job/output                  xxx . ......x........... .xx . ......
/job/wait                    xxx . ......x........... .xx . ......
/job/info                    xxx . ......x........... .xx . ......
/job/query                   xxx . ......x........... .xx . ......
/job/input                   xxx . ......x........... .xx . ......
/job/kill                    xxx . ......x........... .xx . ......
/job/remove                  xxx . ......x........... .xx . ......
/job/orphans                 xxx . .................. ..x . ......
/fact/gather                 xxx . .x................ ... . ......
/fact/query                  xxx . x................. xx. . ......
/schedule/add                xxx . ...x.x............ .xx . ......
/schedule/update             xxx . ...x.x............ .xx . ......
/schedule/query              xxx . ...x.x............ .xx . ......
/schedule/remove             xxx . ...x.x............ .xx . ......
/schedule/pause              xxx . ...x.x............ .xx . ......
/schedule/resume             xxx . ...x.x............ .xx . ......
/schedule/trigger            xxx . ...x.x............ .xx . ......
/schedule/next               xxx . ...x.x............ .xx . ......
/command/save                xxx . ..............x... ... . ......
/command/query               xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/command/remove              xxx . ..............x... ... . ......
/fs/blob                     xxx . .........x........ ... . ......
/fs/write                    xxx . .........x........ ... . ......
/fs/read                     xxx . ........x......... .x. . ......
/fs/script                   xxx . .........x........ ... . ......
/fs/list                     xxx . ........x......... .x. . ......
/fs/glob                     xxx . ........x......... .x. . ......
/fs/stat                     xxx . ........x......... .x. . ......
/fs/remove                   xxx . .........x........ ... . ......
/fs/mkdir                    xxx . .........x........ ... . ......
/fs/move                     xxx . .........x........ ... . ......
/fs/archive                  xxx . ........x......... .x. . ......
/fs/checksum                 xxx . ........x......... .x. . ......
/fs/extract                  xxx . .........x........ ... . ......
/fs/upload                   xxx . .........x........ ... . ......
/secret/encrypt              xxx . .x................ ... . ......
/secret/decrypt              xxx . ............x..... ... . ......
/secret/sudo                 xxx . .x................ ... . ......
/hostkey/trust               xxx . .x................ ... . ......
/hostkey/forget              xxx . .x................ ... . ......
/token/create                xxx . ...............x.. ... . ......
/token/lend                  xxx . ...............x.. ... . ......
/token/info                  xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/token/query                 xxx . ...............x.. ... . ......
/token/revoke                xxx . ...............x.. ... . ......
/token/renew                 xxx . ...............x.. ... . ......
/token/check                 xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/approval/query              xxx . .............x.... ... . ......
/approval/decide             xxx . .............x.... ... . ......
/vault/status                xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/vault/unlock                xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/vault/lock                  xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/vault/user/add              xxx . ..............x... ... . ......
/vault/user/passphrase       xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/vault/user/remove           xxx . ..............x... ... . ......
/audit/query                 xxx . ................x. ... . ......
/audit/verify                xxx . ................x. ... . ......
/audit/forget                xxx . ..............x... ... . ......
/event/stream                xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/event/ticket                xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/web/ticket                  xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/web/login                   xxx x xxxxxxxxxxxxxxxxxx xxx x xxxxxx
/web/confirm                 xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/web/logout                  xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/daemon/version              xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/daemon/status               xxx . .................x ... . ......
/daemon/stop                 xxx . ..............x... ... . ......
/metrics                     xxx . .................x ... x ......
/store/query                 xxx . x................. xx. . ......
/store/info                  xxx . x................. xx. . ......
/store/add                   xxx . .x................ ... . ......
/store/elevate               xxx . ....x............. ... . ......
/store/update                xxx . .x................ ... . ......
/store/label                 xxx . .x................ ... . ......
/store/remove                xxx . .x................ ... . ......
/store/refresh               xxx . .x................ ... . ......
/store/environment           xxx . ...x.xxxxx........ .xx . ......
/store/login                 xxx . ...x.xxxxx........ .xx . ......
/store/types                 xxx x xxxxxxxxxxxxxxxxxx xxx . ......
/store/toggle                xxx . .....x....x....... ..x . ......
/store/browse                xxx . x................. xx. . ......
/store/terminal              xxx . x................. xx. . ......
/openapi.json                xxx x xxxxxxxxxxxxxxxxxx xxx x xxxxxx
/docs                        xxx x xxxxxxxxxxxxxxxxxx xxx x xxxxxx
/                            xxx x xxxxxxxxxxxxxxxxxx xxx x xxxxxx
/page/<path:file>            xxx x xxxxxxxxxxxxxxxxxx xxx x xxxxxx
"""
"""x: allowed; the request may fail for another reason than its credential."""

BRIDGE = """
                      c
                     co           a
                     onc         sp
                     nna         ep
                     net         cr t m
                     ece         rovo e
                     ctgs        evakat
                     tioh s     staueur
                     iore h t f s.llndi
                     onylee efs hd.t.ic
                     n..lll rs.t.ed.cts
                     .ww.el m.wuacear.. cas
                   b rrrav. irrngrcderr hgh
                   a eiiraajneineyimaee iee
                   r attgtnoaatenpditaa lnl
                   e deeveybldelttenedd dtl
list_systems       . x................. xx.
run_command        . .................. .xx
read_job           . ......x........... .xx
write_stdin        . .................. .xx
stop_job           . ......x........... .xx
list_jobs          . .................. .x.
read_file          . ........x......... .x.
write_file         . .........x........ ...
edit_file          . .................. ...
list_files         . ........x......... .x.
find_file          . ........x......... .x.
get_file_info      . ........x......... .x.
create_directory   . .........x........ ...
toggle_state       . .................. ...
list_commands      x xxxxxxxxxxxxxxxxxx xxx
run_saved_command  . .................. .xx
open_terminal      . .................. ...
read_screen        . .......x.......... ..x
send_keys          . .................. ..x
close_terminal     . .......x.......... ..x
"""
"""x: the MCP bridge offers the tool, and the daemon refuses none of its requests for their credential.

It serves no other kinds: neither the owner, who needs no bridge, nor what is not a valid token.
"""

TOOLS: Mapping[str, Mapping[str, object]] = {
    "list_systems": {},
    "run_command": {"system": LOCAL, "argv": ["true"]},
    "read_job": {"job": LOCAL},
    "write_stdin": {"job": LOCAL, "text": "x"},
    "stop_job": {"job": LOCAL},
    "list_jobs": {},
    "read_file": {"system": LOCAL, "path": "/etc/hostname"},
    "write_file": {"system": LOCAL, "path": "/nowhere/file", "content": "x"},
    "edit_file": {"system": LOCAL, "path": "/nowhere/file", "old": "x", "new": "y"},
    "list_files": {"system": LOCAL, "path": "/"},
    "find_file": {"system": LOCAL, "pattern": "/etc/host*"},
    "get_file_info": {"system": LOCAL, "path": "/"},
    "create_directory": {"system": LOCAL, "path": "/"},
    "toggle_state": {"system": LOCAL, "state": True},
    "list_commands": {},
    "run_saved_command": {"system": LOCAL, "name": "none"},
    "open_terminal": {"system": LOCAL, "argv": ["true"], "wait": 0},
    "read_screen": {"terminal": LOCAL},
    "send_keys": {"terminal": LOCAL, "text": "x"},
    "close_terminal": {"terminal": LOCAL},
}
"""Each tool with arguments that are acceptable, though not all of them name something that exists."""

COMBINED: Mapping[str, tuple[str, ...]] = {
    "agent": ("connection.read", "shell.argv", "job", "fs.read"),
    "shell": ("shell.any", "terminal", "job"),
}
PASSPHRASE = "a passphrase of some length"
STOPS = "/daemon/stop"
REFUSED = {"not_authenticated", "invalid_token", "token_expired", "token_revoked", "scope_denied"}


def read_table(table: str) -> tuple[list[str], dict[str, list[bool]]]:
    """Return the kinds of credentials, and for each path or tool whether each kind is allowed."""
    lines = table.strip("\n").splitlines()
    heads = [line for line in lines if line.startswith(" ")]
    rows = {name: "".join(cells) for name, *cells in (line.split() for line in lines if not line.startswith(" "))}
    # The heads stand upright, each above its column.
    first = next(line for line in lines if not line.startswith(" "))
    columns = [at for at in range(len(first.split()[0]), len(first)) if first[at] != " "]
    kinds = ["".join(head.ljust(len(first))[at] for head in heads).strip() for at in columns]
    assert all(set(cells) <= {"x", "."} and len(cells) == len(kinds) for cells in rows.values())
    return kinds, {name: [cell == "x" for cell in cells] for name, cells in rows.items()}


KINDS, ROWS = read_table(TABLE)
SERVED, OFFERS = read_table(BRIDGE)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose metrics have a static token."""
    file = tmp_path_factory.mktemp("static") / "token"
    file.write_text("m" * 40 + "\n")
    file.chmod(0o600)
    running = Daemon(tmp_path_factory.mktemp("credentials"), "--metrics-token-file", str(file))
    yield running
    running.stop()


def credential(daemon: Daemon, kind: str) -> str:
    """Return a bearer token of a kind in the table; empty for none."""
    if kind in ("owner", "apikey", "user"):
        return session(daemon, kind)
    if kind in SCOPES:
        return create(daemon, kind).secret
    if kind in COMBINED:
        return create(daemon, *COMBINED[kind]).secret
    return {
        "bare": lambda: create(daemon).secret,
        "child": lambda: create(daemon, "token.create", "connection.read").create("connection.read").secret,
        "metrics": lambda: "m" * 40,
        "ticket": lambda: ticket(daemon),
        "expired": lambda: expired(daemon),
        "revoked": lambda: revoked(daemon, create(daemon, *SCOPES)).secret,
        "orphan": lambda: orphan(daemon),
        "unknown": lambda: "cmgr_" + "x" * 43,
        "none": lambda: "",
    }[kind]()


def session(daemon: Daemon, kind: str) -> str:
    if kind == "apikey":
        client = Client(daemon.url, api_key=run("api-key", environment=daemon.environment).output.strip())
    else:
        client = Client(daemon.url, auth_file=daemon.auth_file)
    with client:
        has_users = client.vault.status().has_users
        if kind == "user":
            if not has_users:
                client.post("/vault/user/add", user="ada", passphrase=PASSPHRASE)
            client.post("/vault/unlock", user="ada", passphrase=PASSPHRASE)
        return str(client.session_token)


def ticket(daemon: Daemon) -> str:
    daemon.client.shell.start(LOCAL)
    terminal = daemon.client.post("/terminal/open", connection=LOCAL, command="cat")["terminal"]
    return str(daemon.client.post("/terminal/ticket", terminal=terminal)["ticket"])


def expired(daemon: Daemon) -> str:
    holder = create(daemon, *SCOPES, expires=1)
    eventually_equal(lambda: holder.send("/token/info").status, 403, "a token of one second does not expire")
    return holder.secret


def revoked(daemon: Daemon, holder: Holder) -> Holder:
    daemon.client.post("/token/revoke", id=holder.id)
    return holder


def orphan(daemon: Daemon) -> str:
    parent = create(daemon, *SCOPES)
    child = parent.create(*SCOPES, expires=500)
    revoked(daemon, parent)
    return child.secret


def code_of(holder: Holder, endpoint: Endpoint) -> str:
    """Send a request, without a header if there is no credential, and return the code of the error, or ``ok``."""
    if not holder.secret and not isinstance(endpoint, StreamEndpoint):
        method = "POST" if "POST" in endpoint.methods else endpoint.methods[0]
        answer = send(holder.url, endpoint.path, {} if method == "POST" else None, {}, method)
        return "ok" if answer.status < 400 else answer.code
    try:
        return tried(holder, endpoint)
    except NotUpgradedError as error:
        return error.answer.code


def test_the_table_has_a_line_for_every_endpoint_and_a_column_for_every_scope() -> None:
    paths = [endpoint.path for endpoint in endpoints()]
    assert sorted(ROWS) == sorted(set(paths)), "each endpoint needs a line, by hand"
    assert set(SCOPES) < set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_credential_is_allowed_exactly_what_the_table_says(quiet: Daemon, kind: str) -> None:
    holder, column = Holder(quiet.url, "", credential(quiet, kind)), KINDS.index(kind)
    wrong = {}
    # Logging out last: it ends the session that asks.
    for endpoint in sorted(endpoints(), key=lambda one: one.path == "/web/logout"):
        allowed = ROWS[endpoint.path][column]
        # It would stop the daemon of the other tests.
        if endpoint.path == STOPS and allowed:
            continue
        code = code_of(holder, endpoint)
        if (code not in REFUSED) != allowed:
            wrong[endpoint.path] = code
    assert not wrong


@pytest.fixture(scope="module")
def bridge(quiet: Daemon) -> Iterator[HttpBridge]:
    """The MCP bridge beside that daemon."""
    with HttpBridge(quiet) as running:
        yield running


def test_the_bridge_s_table_has_a_line_for_every_tool() -> None:
    assert [*OFFERS] == [one.name for one in BRIDGE_TOOLS] == [*TOOLS]
    assert set(SERVED) == {"bare", *SCOPES, "child", *COMBINED}


@pytest.mark.parametrize("kind", SERVED)
def test_the_bridge_does_for_a_token_exactly_what_its_table_says(bridge: HttpBridge, quiet: Daemon, kind: str) -> None:
    holder, column = Holder(quiet.url, "", credential(quiet, kind)), SERVED.index(kind)
    wrong = {}

    async def work() -> None:
        async with bridge.agent(holder) as client:
            listed = {one.name for one in (await client.list_tools()).tools}
            for tool, arguments in TOOLS.items():
                result = await client.call_tool(tool, dict(arguments))
                if tool not in listed:
                    code = "not offered" if "Unknown tool" in str(result.content) else "called though not listed"
                else:
                    code = refused(result)["code"] if result.is_error else "ok"
                allowed = OFFERS[tool][column]
                if (code not in REFUSED | {"not offered"}) != allowed:
                    wrong[tool] = code

    run_async(work)
    assert not wrong


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SERVED])
def test_the_bridge_refuses_whoever_shows_no_valid_token(bridge: HttpBridge, quiet: Daemon, kind: str) -> None:
    shown = credential(quiet, kind)
    headers = {"Authorization": f"Bearer {shown}"} if shown else {}
    assert bridge.ask("POST", headers, INITIALIZE).status == 401


@pytest.mark.parametrize("kind", [kind for at, kind in enumerate(KINDS) if ROWS[STOPS][at]])
def test_credentials_with_the_right_stop_the_daemon(own_daemon: Daemon, kind: str) -> None:
    endpoint = next(one for one in endpoints() if one.path == STOPS)
    assert code_of(Holder(own_daemon.url, "", credential(own_daemon, kind)), endpoint) == "ok"
    assert own_daemon.process.wait(60) == 0


def test_a_ticket_opens_the_terminal_it_was_issued_for_and_no_other(quiet: Daemon) -> None:
    client = quiet.client
    client.shell.start(LOCAL)
    one, other = (client.post("/terminal/open", connection=LOCAL, command="cat")["terminal"] for _ in range(2))
    for terminal, allowed in ((other, False), (one, True)):
        shown = client.post("/terminal/ticket", terminal=one)["ticket"]
        path, offered = f"/terminal/attach/{terminal}", [f"connmgr.ticket.{shown}", "connmgr.v1"]
        if allowed:
            Stream(quiet.url, path, None, subprotocols=offered).close()
        else:
            with pytest.raises(NotUpgradedError):
                Stream(quiet.url, path, None, subprotocols=offered)
    for terminal in (one, other):
        client.post("/terminal/close", terminal=terminal)
