"""Take the pictures of the page in docs/screenshots: of a daemon with the machines of the documentation's examples.

make screenshots

The machines are names of one sshd on this machine, known only within a mount namespace of this program.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Page

from connmgr.client import LOCAL_MACHINE
from tests.api.wire import send
from tests.daemon import Daemon
from tests.deadlines import eventually
from tests.page.browser import DESKTOP, GO, PHONE, Visitor, chromium
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd, privilege_separation
from tests.rights.wire import create

PICTURES = Path(__file__).parent.parent / "docs" / "screenshots"
COLOURS = 64
GROUNDS = 14
GROUND_DISTANCE, EDGE_DISTANCE = 3, 22
WINDOWS = {"desktop": DESKTOP, "phone": PHONE}
SCHEMES = ("light", "dark")
MACHINES = {
    "fleet/eu": ("web1", "web2", "web3", "db1", "cache10"),
    "fleet/us": ("web4", "web5", "db2"),
    "lab": ("build1", "old"),
}
LABELS = {"web": "front", "db": "back", "cache": "back"}
PASSPHRASE = "correct horse battery"  # noqa: S105 - of a daemon that lives for a minute
CELLS = 96
"""Further targets of a run, without machines of their own."""

CONFIGURATION = """\
server {
    listen 8080;
    server_name web1.example;
    root /srv/site;

    # Whoever was at the old address comes here.
    location /old/ {
        return 301 /new/;
    }
    location / {
        try_files $uri $uri/ =404;
    }
}
"""


def main() -> None:
    """Take all pictures."""
    # The first process of its namespace is that script.
    if b"isolated" not in Path("/proc/1/cmdline").read_bytes():
        sys.exit("The machines' names need a mount namespace, which this system does not allow: see scripts/isolated.")
    with tempfile.TemporaryDirectory() as directory, privilege_separation(), _sshd(Path(directory)) as server:
        daemon = Daemon(Path(directory) / "daemon")
        try:
            ids = _filled(daemon, server)
            _take(daemon, ids, _work(daemon, ids))
        finally:
            daemon.stop()


@contextmanager
def _sshd(directory: Path) -> Iterator[Sshd]:
    """Run an sshd to which the names of all machines lead, and in whose home there are a few files."""
    names = [f"127.0.0.1 {name}.example\n" for some in MACHINES.values() for name in some if name != "old"]
    hosts = directory / "hosts"
    hosts.write_text("".join(["127.0.0.1 localhost\n", *names]))
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True, timeout=60)  # noqa: S603, S607
    far = directory / "far"
    for path in ("site/css", "site/img", "logs"):
        (far / path).mkdir(parents=True)
    for path, size in {
        "site/index.html": 8213,
        "site/css/site.css": 2210,
        "logs/access.log": 1_204_388,
        "notes.txt": 310,
    }.items():
        (far / path).write_text("x" * size)
    (far / "nginx.conf").write_text(CONFIGURATION)
    (far / "check-site.sh").write_text(_SESSION)
    (far / ".vimrc").write_text("syntax on\nset number background=dark\n")
    with closing(Sshd({"SetEnv": f"LANG=C.UTF-8 HOME={far}", "ForceCommand": _at_home(directory, far)})) as server:
        yield server
    subprocess.run(["umount", "/etc/hosts"], check=True, timeout=60)  # noqa: S607


def _at_home(directory: Path, far: Path) -> str:
    """Return the path of a login shell that begins in the directory ``far``."""
    login = directory / "login"
    login.write_text(f'#!/bin/sh\ncd {far}\nexport HOME={far} PS1="$ "\nexec /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')
    login.chmod(0o755)
    return f"exec {login}"


def _filled(daemon: Daemon, server: Sshd) -> dict[str, str]:
    """Add the machines and what they do; return their ids by name."""
    client, ids = daemon.client, {}
    for category, names in MACHINES.items():
        for name in names:
            data = {"type": "ssh", **ssh_fields(server, server.user, host=f"{name}.example")}
            kind = LABELS.get(name.rstrip("0123456789"))
            labels = {"env": "lab" if category == "lab" else "prod", **({"tier": kind} if kind else {})}
            entry = {"name": name, "data": data, "category": category.split("/"), "labels": labels}
            ids[name] = client.post("/connection/apply", add=[entry])["added"][0]["connection"]
    machines = [ids[name] for some in MACHINES.values() for name in some if name != "old"]
    client.post("/fact/gather", connections=[*machines, LOCAL_MACHINE])
    for name, port in (("intranet", 8080), ("database", 5432)):
        data = {"type": "sshLocalTunnel", "host": ids["web1"], "remoteHost": "127.0.0.1", "remotePort": port}
        tunnel = client.connection.add(name, data)
        client.post("/connection/toggle", connection=tunnel, state=name == "intranet")
    racks = server.directory / "racks"
    for listed in ("rack[1:4]", "rack[1:3]"):
        racks.write_text(f"[storage]\n{listed}\n")
        client.post("/inventory/add", name="racks", file=str(racks), every=900, defaults={"user": "ops"}, replace=True)
    _runs(daemon, ids, machines)
    for name, times, run in (
        ("nightly backup", {"cron": "30 2 * * *"}, {"where": "tier=back", "command": "backup --all"}),
        ("certificates", {"cron": "0 6 * * mon"}, {"connectionFilter": "**/web*", "command": "renew-certificates"}),
        ("health", {"every": 900}, {"where": "env=prod", "command": "curl -fs localhost/health"}),
        (
            "patch night",
            {"cron": "0 22 * * wed,thu"},
            {"where": "env=prod", "command": "apt-get -y upgrade", "waves": [1, "10%", "100%"]},
        ),
    ):
        zone = {"timezone": "Europe/Vienna"} if "cron" in times else {}
        client.post("/schedule/add", name=name, run=run, **times, **zone)
    asking = create(daemon, "shell.any", name="deploy bot", rules=[{"effect": "ask", "text": "."}])
    command = "systemctl restart nginx"
    send(
        daemon.url,
        "/shell/exec",
        {"connection": ids["web2"], "command": command, "start": True},
        {"Authorization": f"Bearer {asking.secret}"},
    )
    return ids


def _runs(daemon: Daemon, ids: dict[str, str], machines: list[str]) -> None:
    """Begin a run that ends, with failures, and one that waits after its second wave."""
    client = daemon.client
    more = [
        {
            "name": f"node{number:03}",
            "data": {"type": "shellEnvironment", "host": LOCAL_MACHINE, "commands": [f"export N={number}"]},
            "category": ["swarm"],
        }
        for number in range(CELLS)
    ]
    nodes = [one["connection"] for one in client.post("/connection/apply", add=more)["added"]]
    first = client.runs.start(connections=machines, command="uname -sr", name="kernels").run
    unknown = "{ echo 'config.yaml: unknown key: lisen' >&2; exit 2; }"
    check = f"test ${{N:-0}} -ne 17 -a ${{N:-0}} -ne 40 || {unknown}; echo 'configuration ok'"
    targets = [*machines, ids["old"], *nodes]
    second = client.runs.start(
        connections=targets,
        command=check,
        name="check configuration",
        waves=[1, "10%", "70%", "100%"],
        wave_approval=True,
        stop_after="10%",
    ).run
    if not (first and second):
        sys.exit("A run was not begun.")
    client.runs.wait(first, 60)
    for _ in range(2):
        eventually(lambda: client.runs.info(second).state == "waiting", "the wave has ended")
        client.runs.resume(second)
    eventually(lambda: client.runs.info(second).state == "waiting", "the third wave has ended")


def _work(daemon: Daemon, ids: dict[str, str]) -> dict[str, str]:
    """Begin jobs and terminals, and make what the other views show; return the uuids that views have as addresses."""
    client = daemon.client
    for name, connection, command, more in (
        ("rebuild search index", "build1", "for n in 1 2 3; do echo shard $n of 9; done; exec sleep 900", {}),
        ("nightly report", "db1", "echo 1,284 rows", {}),
        ("certificate check", "web4", "echo 'web4.example: expires in 6 days' >&2; exit 2", {}),
        ("upgrade postgresql", "db2", _ASKS, {"stdin": "open"}),
    ):
        client.post("/shell/start", connection=ids[connection])
        client.post("/job/start", connection=ids[connection], command=command, name=name, **more)
    eventually(
        lambda: any(one.get("waiting") for one in client.post("/job/query")["jobs"]), "the job waits for its answer"
    )
    vim = client.post("/terminal/open", connection=ids["web1"], argv=["vim", "nginx.conf"], columns=120, rows=40)
    recorded = client.post("/terminal/open", connection=ids["web2"], command="sh check-site.sh", record=True)
    client.post("/terminal/open", connection=ids["build1"], command="exec sleep 900", record=True)
    eventually(
        lambda: any(not one["active"] for one in client.post("/recording/query")["recordings"]), "a recording ended"
    )
    for token, scopes, more in (
        ("nightly backup", ("fs.read", "shell.any"), {"connections": ["db*"], "expires": 7_000_000}),
        ("monitoring", ("metrics.read",), {"expires": 6_000_000}),
        ("carol", ("connection.read", "shell.any", "terminal", "audit.read"), {"categories": ["lab"]}),
    ):
        create(daemon, *scopes, name=token, **more)
    runs = {one.name: one.run for one in client.runs.query()}
    _happened(client, ids)
    agent = create(daemon, "connection.read", "shell.any", "fs.read", "fs.write", name="site agent")
    for command in ("nginx -t; du -sh site", "grep -c listen nginx.conf"):
        agent.ok("/shell/exec", connection=ids["web3"], command=command)
    for path, fields in (
        ("/fs/attributes", {"path": "site/index.html", "mode": "0640"}),
        ("/fs/move", {"source": "notes.txt", "target": "site/notes.txt"}),
        ("/fs/remove", {"path": "site/css/site.css"}),
    ):
        agent.ok(path, connection=ids["web3"], **fields)
    changes = client.post("/undo/query")["changes"]
    return {
        "terminal": vim["terminal"],
        "recording": recorded["terminal"],
        "run": runs["check configuration"],
        "schedule": client.post("/schedule/query", name="patch night")["schedules"][0]["schedule"],
        "change": changes[0]["change"],
        "agent": agent.id,
        "approval": client.post("/approval/query")["approvals"][0]["approval"],
        "job": next(one["job"] for one in client.post("/job/query")["jobs"] if one["name"] == "upgrade postgresql"),
        "tunnel": next(one["connection"] for one in client.post("/tunnel/query")["tunnels"] if one["state"] == "open"),
    }


def _happened(client: Any, ids: dict[str, str]) -> None:
    """Run a few commands, so that the plots have something to show, and add a user with a way back in."""
    for name in ("web1", "web2", "db1") * 4:
        client.post("/shell/exec", connection=ids[name], command="true")
    client.post("/vault/user/add", user="alice", passphrase=PASSPHRASE)
    client.post("/vault/recovery/create", user="alice", passphrase=PASSPHRASE, shares=3, threshold=2)


_ASKS = "echo 'Stopping the cluster 15/main'; printf 'Remove the old data directory? [y/N] '; read answer; echo $answer"
_SESSION = "for page in '/ 200' '/old/ 301' '/css/site.css 200'; do sleep 1; echo \"GET $page\"; done\n"


def _take(daemon: Daemon, ids: dict[str, str], work: dict[str, str]) -> None:
    """Take a picture of each view in each look."""
    chosen = "/".join(ids[name] for name in ("web1", "web2", "web3", "db1"))
    views = {
        "hub": "#/hub/fleet/eu/web1",
        "terminal": f"#/terminal/{work['terminal']}",
        "files": f"#/files/{ids['web1']}",
        "run": f"#/run/{chosen}?command=df -h / | tail -n 1",
        "runs": f"#/runs/{work['run']}",
        "schedules": f"#/schedules/{work['schedule']}",
        "inventories": "#/inventories/racks",
        "facts": "#/facts?where=env",
        "jobs": f"#/jobs/{work['job']}",
        "tunnels": f"#/tunnels/{work['tunnel']}",
        "approvals": f"#/approvals/{work['approval']}",
        "recordings": f"#/recordings/{work['recording']}",
        "changes": f"#/changes/{work['change']}",
        "record": f"#/record/{work['agent']}",
        "tokens": "#/tokens",
        "audit": "#/audit",
        "vault": "#/vault",
    }
    PICTURES.mkdir(exist_ok=True)
    with chromium() as browser:
        for window, size in WINDOWS.items():
            for scheme in SCHEMES:
                visitor = Visitor(
                    browser.new_context(
                        viewport=size, color_scheme=scheme, reduced_motion="reduce", timezone_id="Europe/Vienna"
                    )
                )
                page = visitor.opened(daemon)
                for name, address in views.items():
                    # A phone shows one thing at a time: its list is what people see first there.
                    is_list = window == "phone" and name in {"hub", "tunnels", "schedules"}
                    page.evaluate(GO, f"#/{name}" if is_list else address)
                    # The output of a job is asked for without an end.
                    if name != "jobs":
                        visitor.settle(page)
                    _settled(page, name)
                    _store(f"{name}-{window}-{scheme}", page.screenshot())
                if faults := visitor.leave():
                    sys.exit(f"{window}, {scheme}: {faults}")


def _settled(page: Page, name: str) -> None:
    """Do what the picture needs, and wait until the page has it."""
    if name == "run":
        page.get_by_role("button", name="Run on 4 machines").click()
        page.get_by_text("4 machines done, 0 failed").wait_for()
    elif name == "runs":
        page.get_by_role("button", name="Show what they printed so far").click()
        page.locator(".group").first.wait_for()
        page.locator(".details").evaluate("element => element.scrollTo(0, 0)")
    elif name == "facts":
        page.get_by_label("Together by").select_option("tier")
        page.get_by_role("list", name="Machines by tier").wait_for()
    elif name == "jobs":
        page.get_by_label("Output").get_by_text("Stopping the cluster").wait_for()
    elif name == "hub":
        page.get_by_text("root@web1.example").first.wait_for()
        page.get_by_text("1 terminal").first.wait_for()
    elif name in {"terminal", "recordings"}:
        words = {"terminal": "server_name", "recordings": "GET /css/"}
        page.locator(".xterm-rows > div", has_text=words[name]).first.wait_for()
        if name == "recordings":
            page.get_by_role("button", name="Play", exact=True).wait_for()
    page.evaluate("document.activeElement?.blur()")
    page.mouse.move(0, 0)
    # What was asked for is drawn by the second frame.
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _store(name: str, picture: bytes) -> None:
    """Store a picture with few colours: a page needs no more, and the file is a fifth."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in _palette(image) for part in colour])
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(PICTURES / f"{name}.png", optimize=True)


def _palette(image: Image.Image) -> list[tuple[int, int, int]]:
    """Return the colours that stay: those that most pixels have, without such as differ little from one of them."""
    kept: list[tuple[int, int, int]] = []
    # Grounds and lines first; then dots and icons before the edges of letters, which become a neighbour's colour.
    for _, colour in sorted(image.getcolors(image.width * image.height), reverse=True):
        near = GROUND_DISTANCE if len(kept) < GROUNDS else EDGE_DISTANCE
        if all(max(abs(one - other) for one, other in zip(colour, have, strict=True)) >= near for have in kept):
            kept.append(colour)
        if len(kept) == COLOURS:
            break
    return kept


if __name__ == "__main__":
    main()
