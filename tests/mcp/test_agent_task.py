"""A whole task of an agent by tools: five machines, one with a broken unit file."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.daemon import Daemon
from tests.plugins.machine import Machine
from tests.plugins.places import Places, ssh_fields
from tests.rights import wire

pytestmark = [pytest.mark.needs("machine", "sshd", "sudo", "linux"), pytest.mark.slow]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "agent.py"
HOSTS = ("web1", "web2", "web3", "web4", "web5")
BROKEN = "web4"
UNIT = "/etc/systemd/system/web.service"
TEXT = "[Unit]\nDescription=The site\n\n[Service]\nExecStart=/bin/sleep 120\nRestart=always\n"
TYPO = TEXT.replace("/bin/sleep", "/bin/slep")

SYSTEMCTL = """\
#!/bin/sh
# systemd itself needs a machine that it has booted.
unit=$2 pid=/run/$2.pid log=/run/$2.log
words=$(sed -n 's/^ExecStart=//p' "/etc/systemd/system/$unit")
active() { [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2>/dev/null; }
case $1 in
is-active) if active; then echo active; else echo failed; exit 3; fi ;;
restart)
  if active; then kill "$(cat "$pid")"; fi
  program=${words%% *}
  if ! [ -x "$program" ]; then echo "Unable to locate executable '$program'" | tee -a "$log" >&2; exit 1; fi
  setsid $words </dev/null >>"$log" 2>&1 &
  echo $! >"$pid"
  echo "Started $unit." >>"$log" ;;
esac
"""
JOURNALCTL = '#!/bin/sh\nexec tail -n "$4" "/run/$2.log"\n'

RULES = [
    {"effect": "allow", "argv": ["systemctl", "is-active", "web.service"]},
    {"effect": "allow", "argv": ["journalctl", "-u", "web.service", "-n", {"integer": {"min": 1, "max": 1000}}]},
    {"effect": "ask", "name": "restart", "argv": ["systemctl", "restart", "web.service"]},
    {"effect": "allow", "path": "/etc/systemd/system/**", "action": "fs.read"},
    {"effect": "ask", "name": "units", "path": "/etc/systemd/system/**", "action": "fs.write"},
]


@pytest.fixture
def machines() -> Iterator[dict[str, Machine]]:
    """Test machines with one service each; one service is down, because its unit file names no program."""
    with ExitStack() as stack:
        found = {name: stack.enter_context(closing(Machine())) for name in HOSTS}
        for name, machine in found.items():
            machine.run("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/usr/local/bin")
            machine.write("/usr/local/bin/systemctl", SYSTEMCTL, 0o755)
            machine.write("/usr/local/bin/journalctl", JOURNALCTL, 0o755)
            machine.write(UNIT, TYPO if name == BROKEN else TEXT)
            machine.run("sh", "-c", "/usr/local/bin/systemctl restart web.service || :")
            stack.callback(machine.run, "sh", "-c", "kill $(cat /run/web.service.pid) || :")
        yield found


@pytest.fixture
def systems(own_daemon: Daemon, machines: dict[str, Machine]) -> Iterator[dict[str, str]]:
    """Root shells on each machine, over SSH by sudo with a password, by name."""
    roots = {}
    with ExitStack() as stack:
        for name, machine in machines.items():
            user = machine.add_user()
            machine.allow(f"{user.name} ALL=(ALL) ALL")
            places = stack.enter_context(closing(Places(machine)))
            add = own_daemon.client.connection.add
            over = add(name, {"type": "ssh", **ssh_fields(places.sshd, user.name)})
            data = {"type": "shellEnvironment", "host": over, "elevated": True, "password": user.password}
            roots[name] = add("root", data)
        yield roots


def test_an_agent_finds_the_broken_unit_repairs_it_and_shows_that_it_runs(
    own_daemon: Daemon, machines: dict[str, Machine], systems: dict[str, str], tmp_path: Path
) -> None:
    scopes = ("connection.read", "shell.argv", "job", "fs.read", "fs.write")
    agent = wire.create(own_daemon, *scopes, name="repairer", connections=["web*/root"], rules=RULES)
    approver = tmp_path / "approver.token"
    approver.write_text(wire.create(own_daemon, "approval.decide", name="ada").secret)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "web.service", "--approver-token-file", str(approver)],
        env={
            **own_daemon.environment,
            "PATH": f"{Path(sys.executable).parent}:{own_daemon.environment['PATH']}",
            "CONNMGR_TOKEN": agent.secret,
            "CONNMGR_PORT": own_daemon.url.rpartition(":")[2],
            "CONNMGR_AUTH_FILE": str(own_daemon.auth_file),
        },
        input="once\nonce\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert f"down: {BROKEN}/root\n" in done.stdout
    assert "-ExecStart=/bin/slep 120" in done.stdout
    assert "+ExecStart=/bin/sleep 120" in done.stdout
    assert done.stdout.endswith("Unable to locate executable '/bin/slep'\nStarted web.service.\n")
    assert {name: machine.path(UNIT).read_text() for name, machine in machines.items()} == dict.fromkeys(HOSTS, TEXT)

    entries = list(own_daemon.client.audit.query())[::-1]
    done_by_it = [one for one in entries if one.get("token") == agent.id and one["status"] == 200]
    steps = [(one["action"], one["connectionName"], one["rule"]) for one in done_by_it if "rule" in one]
    assert [step for step, _ in itertools.groupby(steps)] == [
        *(("job.start", f"{name}/root", 0) for name in HOSTS),
        ("fs.read", f"{BROKEN}/root", 3),
        ("fs.read", "web1/root", 3),
        ("fs.read", f"{BROKEN}/root", 3),
        ("fs.write", f"{BROKEN}/root", "units"),
        ("job.start", f"{BROKEN}/root", "restart"),
        ("job.start", f"{BROKEN}/root", 1),
    ]
    assert {one["tokenName"] for one in done_by_it} == {"repairer"}
    decided = [one for one in entries if one["action"] == "approval.decide"]
    assert [(one["tokenName"], one["ofToken"]) for one in decided] == [("ada", agent.id)] * 2
    assert [one["approval"] for one in done_by_it if "approval" in one] == [one["approval"] for one in decided]
