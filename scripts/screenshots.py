"""Take the pictures of the page in docs/screenshots: of a daemon with the machines of the documentation's examples.

make screenshots

The machines are names of one sshd on this machine, known only within a mount namespace of this program.
"""

from __future__ import annotations

import io
import os
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
from tests.page.browser import DESKTOP, PHONE, Visitor, chromium
from tests.plugins.places import ssh_fields
from tests.plugins.sshd import Sshd, privilege_separation
from tests.rights.wire import create

PICTURES = Path(__file__).parent.parent / "docs" / "screenshots"
COLOURS = 256
MACHINES = {
    "fleet/eu": ("web1", "web2", "web3", "db1", "cache10"),
    "fleet/us": ("web4", "web5", "db2"),
    "lab": ("build1", "old"),
}
LABELS = {"web": "front", "db": "back", "cache": "back"}
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
    if str(Path("/proc/self/ns/mnt").readlink()) == str(Path(f"/proc/{os.getppid()}/ns/mnt").readlink()):
        sys.exit("The machines' names need a mount namespace, which this system does not allow: see scripts/isolated.")
    with tempfile.TemporaryDirectory() as directory, privilege_separation(), _sshd(Path(directory)) as server:
        daemon = Daemon(Path(directory) / "daemon")
        try:
            _take(daemon, _filled(daemon, server))
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
        client.post("/schedule/add", name=name, timezone="Europe/Vienna", run=run, **times)
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


def _take(daemon: Daemon, ids: dict[str, str]) -> None:
    client = daemon.client
    web1 = ids["web1"]
    terminal = client.post("/terminal/open", connection=web1, argv=["vim", "nginx.conf"], columns=120, rows=40)[
        "terminal"
    ]
    run = next(one.run for one in client.runs.query() if one.name == "check configuration")
    schedule = client.post("/schedule/query", name="patch night")["schedules"][0]["schedule"]
    approval = client.post("/approval/query")["approvals"][0]["approval"]
    command = "?command=" + "df -h / | tail -n 1"
    shots: list[tuple[str, str, str]] = [
        ("hub", "#/hub/fleet/eu/web1", "desktop light"),
        ("terminal", f"#/terminal/{terminal}", "desktop dark"),
        ("files", f"#/files/{web1}", "desktop light"),
        ("run", f"#/run/{'/'.join(ids[name] for name in ('web1', 'web2', 'web3', 'db1'))}{command}", "desktop dark"),
        ("runs", f"#/runs/{run}", "desktop light"),
        ("schedules", f"#/schedules/{schedule}", "desktop light"),
        ("facts", "#/facts?where=env", "desktop dark"),
        ("approval", f"#/approvals/{approval}", "phone dark"),
        ("hub-phone", "#/hub", "phone light"),
        ("runs-phone", f"#/runs/{run}", "phone dark"),
    ]
    PICTURES.mkdir(exist_ok=True)
    with chromium() as browser:
        for name, view, look in shots:
            options: dict[str, Any] = {
                "viewport": PHONE if "phone" in look else DESKTOP,
                "color_scheme": look.split()[1],
                "reduced_motion": "reduce",
                "timezone_id": "Europe/Vienna",
            }
            visitor = Visitor(browser.new_context(**options))
            page = visitor.opened(daemon, view)
            _settled(page, name)
            _store(name, page.screenshot())
            visitor.context.close()
            if visitor.faults:
                sys.exit(f"{name}: {visitor.faults}")


def _settled(page: Page, name: str) -> None:
    """Do what the picture needs, and wait until the page has it."""
    if name == "run":
        page.get_by_label("Machines", exact=True).get_by_role("searchbox").fill("{web,db}*")
        page.get_by_role("button", name="Run on 4 machines").click()
        page.get_by_text("4 machines done, 0 failed").wait_for()
    elif name.startswith("runs"):
        page.get_by_role("button", name="Show what they printed so far").click()
        page.locator(".group").first.wait_for()
    elif name == "facts":
        page.get_by_label("Together by").select_option("tier")
        page.get_by_role("list", name="Machines by tier").wait_for()
    elif name == "terminal":
        page.locator(".xterm").wait_for()
    page.wait_for_load_state("networkidle")
    page.evaluate("document.activeElement?.blur()")
    # What was asked for is drawn by the second frame.
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def _store(name: str, picture: bytes) -> None:
    """Store a picture with few colours: a page needs no more, and the file is a fourth."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    few = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
