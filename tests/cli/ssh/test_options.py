"""The command line of ``ssh`` as other programs call it."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from connmgr.cli.ssh import options
from connmgr.cli.ssh.options import FORCE, NO, YES, parse

PAGE = Path(__file__).parents[3] / "docs" / "TOOLS.md"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("web uname -a", {"host": "web", "command": ["uname", "-a"]}),
        ("-p2222 -l me web", {"port": 2222, "user": "me", "host": "web"}),
        ("web -p 22 -- -x y", {"port": 22, "command": ["-x", "y"]}),
        (
            "-- web -l me rsync --server -e.LsfxCIvu . /x",
            {"user": "me", "command": ["rsync", "--server", "-e.LsfxCIvu", ".", "/x"]},
        ),
        ("web rsync -l me", {"user": None, "command": ["rsync", "-l", "me"]}),
        ("-Tnq web", {"tty": NO, "no_input": True, "quiet": True}),
        ("-t web", {"tty": YES}),
        ("-tt web", {"tty": FORCE}),
        ("-ttp2222 web", {"tty": FORCE, "port": 2222}),
        ("-l one -l two web", {"user": "one"}),
        ("-oUser=one -o Port=7 -oPort=8 web", {"user": "one", "port": 7}),
        ("-oRequestTTY=force -oBatchMode=yes web", {"tty": FORCE, "batch": True}),
        ("-o BatchMode=no web", {"batch": False}),
        (
            "-N -L 1:a:2 -D 3 -oLocalForward=4:b:5 web",
            {"no_command": True, "local": ["1:a:2", "4:b:5"], "dynamic": ["3"]},
        ),
        ("-L 1:a:2 -oClearAllForwardings=yes web", {"local": []}),
        ("-W h:22 web", {"stdio_to": "h:22"}),
        ("-e none web", {"escape": None}),
        ("-e ^B web", {"escape": "\x02"}),
        ("-oEscapeChar=% web", {"escape": "%"}),
        ("-f -oSessionType=none web", {"background": True, "no_command": True}),
        ("-oRemoteCommand=uptime web", {"command": ["uptime"]}),
        ("-s web sftp", {"subsystem": True, "command": ["sftp"]}),
        ("-V", {"version": True, "host": None}),
        ("-G web", {"describe": True}),
        ("-O check web", {"control": "check"}),
        # The command lines of scp, sftp, git and Ansible.
        (
            "-x -oPermitLocalCommand=no -oClearAllForwardings=yes -oRemoteCommand=none -oRequestTTY=no "
            "-oForwardAgent=no -l me -s -- web sftp",
            {"user": "me", "subsystem": True, "tty": NO, "command": ["sftp"], "host": "web"},
        ),
        ("-o SendEnv=GIT_PROTOCOL -p 2222 git@web git-upload-pack", {"host": "git@web", "port": 2222}),
        (
            "-C -o ControlMaster=auto -o ControlPersist=60s -o StrictHostKeyChecking=no "
            "-o KbdInteractiveAuthentication=no -o PreferredAuthentications=publickey "
            "-o ConnectTimeout=10 -o ControlPath=/x -tt web sh",
            {"tty": FORCE, "command": ["sh"]},
        ),
    ],
)
def test_a_command_line_says_what_it_says_to_ssh(line: str, told: dict[str, object]) -> None:
    found = parse(line.split())
    assert {name: getattr(found, name) for name in told} == told


def test_a_keyword_may_have_a_blank_before_its_value() -> None:
    assert parse(["-o", "User me", "-o", "LocalForward 1 a:2", "-o", 'Port = "7"', "web"]).user == "me"
    assert parse(["-o", "LocalForward 1 a:2", "web"]).local == ["1:a:2"]
    assert parse(["-o", 'Port = "7"', "web"]).port == 7


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("-Z web", "no option -Z"),
        ("-p web", "is not a port"),
        ("-p 0 web", "is not a port"),
        ("-p 65536 web", "is not a port"),
        ("-l", "lacks its value"),
        ("-J gate web", "gateway"),
        ("-R 1:a:2 web", "not forwarded"),
        ("-w 0 web", "tunnels"),
        ("-1 web", "SSH 1"),
        ("-b 127.0.0.1 web", "daemon opens the link"),
        ("-g -L 1:a:2 web", "loopback"),
        ("-oProxyCommand=nc web", "-o ProxyCommand is not possible"),
        ("-oProxyJump=gate web", "-o ProxyJump"),
        ("-oHostName=other web", "-o HostName"),
        ("-oPermitLocalCommand=yes web", "-o PermitLocalCommand"),
        ("-oNonsense=1 web", "'Nonsense'"),
        ("-oRequestTTY=perhaps web", "RequestTTY"),
        ("-o = web", "no option ''"),
        ("-e xx web", "not an escape character"),
        ("-oRemoteCommand=uptime web ls", "cannot both"),
        ("--verbose web", "no option --"),
    ],
)
def test_options_with_another_meaning_are_refused(line: str, why: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        parse(line.split())
    assert why in refused.value.message


def test_each_option_of_ssh_is_known_and_documented() -> None:
    ignored = "".join(options.IGNORED.values())
    acting = set(options.ACTING)
    every = sorted(letter for letter in options.OPTIONS if letter != ":")
    assert sorted([*acting, *ignored, *options.REFUSED]) == every
    documented = set(re.findall(r"`-(\w)`", PAGE.read_text()))
    assert documented == set(every)


def test_parsing_lists_the_ignored_options() -> None:
    assert parse(["-C", "-i", "key", "-oIdentityFile=key", "web"]).ignored == ["-C", "-i", "IdentityFile"]
