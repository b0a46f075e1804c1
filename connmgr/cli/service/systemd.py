"""systemd's user unit of the daemon."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from connmgr.cli.exits import Failure
from connmgr.cli.service.manager import Manager, State, attempt, run

UNIT = "connmgr.service"
MARK = "# `connmgr service install` writes this file.\n"
INSTEAD = (
    "Instead, let whatever starts programs here start `connmgr serve`, such as the entry point of a container. "
    "`connmgr service install --dry-run` prints the unit for another machine."
)
_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")

_TEXT = """\
[Unit]
Description=connmgr, connections to machines over an HTTP API
Documentation=man:connmgr(1)

[Service]
Type=notify
ExecStart={command}
{environment}Restart=on-failure
RestartSec=2
# 0 is a clean end; 1 a refusal to start, which repeating does not mend.
RestartPreventExitStatus=1
TimeoutStopSec=15
# The daemon ends its shells. Jobs, and what commands left in the background, live on as they do without systemd.
KillMode=process
UMask=0077
LimitCORE=0
LimitNOFILE=8192

# Only what leaves the shells of this machine what their user has: sudo and su must work in them, and so NoNewPrivileges
# and all that implies it (SystemCallFilter, RestrictAddressFamilies, ProtectKernel…) stay off. Where nothing is
# elevated on this machine itself, `systemctl --user edit connmgr` can set NoNewPrivileges=yes.
KeyringMode=private
OOMScoreAdjust=200
OOMPolicy=continue
TasksMax=4096

[Install]
WantedBy=default.target
"""


class Systemd(Manager):
    """The user's own systemd, by ``systemctl --user``."""

    NAME = "systemd"
    HINT = "`journalctl --user -u connmgr` shows its log; `loginctl enable-linger` lets it run without a login."

    def __init__(self) -> None:
        config = os.environ.get("XDG_CONFIG_HOME")
        self.file = (Path(config) if config else Path.home() / ".config") / "systemd" / "user" / UNIT

    def text(self, argv: Sequence[str], variables: Mapping[str, str]) -> str:
        # systemd expands variables in the words, but not in the program's path.
        words = [_quoted(argv[0]), *(_quoted(word.replace("$", "$$")) for word in argv[1:])]
        environment = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in variables.items())
        return MARK + _TEXT.format(command=" ".join(words), environment=environment)

    def require(self) -> None:
        if shutil.which("systemctl") is None:
            raise Failure(f"This system has no systemd. {INSTEAD}")
        answer = attempt("systemctl", "--user", "show-environment")
        if answer.returncode != 0:
            raise Failure(f"systemd does not run for this user: {answer.stderr.strip()}. {INSTEAD}")

    def write(self, text: str) -> None:
        if self.file.exists() and not self.file.read_text(errors="replace").startswith(MARK):
            raise Failure(f"{self.file} was not written by `connmgr service install`; move it away, then repeat this.")
        super().write(text)

    def start(self) -> None:
        run("systemctl", "--user", "daemon-reload")
        run("systemctl", "--user", "enable", UNIT)
        # The unit is of the type notify: this waits until the daemon is ready, or fails if it does not start.
        run("systemctl", "--user", "restart", UNIT)

    def remove(self) -> None:
        run("systemctl", "--user", "disable", "--now", UNIT)
        self.file.unlink()
        run("systemctl", "--user", "daemon-reload")

    def state(self) -> State:
        return State(enabled=self._is("enabled"), active=self._is("active"))

    @staticmethod
    def _is(state: str) -> bool:
        return attempt("systemctl", "--user", f"is-{state}", "--quiet", UNIT).returncode == 0


def _quoted(word: str) -> str:
    if not word.isprintable():
        raise Failure(f"A unit of systemd cannot hold {word!r}.")
    if _PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'
