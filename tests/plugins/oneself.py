"""The user who runs the tests as the user of a remote host, by a separate sshd; this needs no root."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from connmgr.plugin import Transport
from connmgr_ssh import Ssh
from tests.plugins.places import ssh_data
from tests.plugins.sshd import Sshd, privilege_separation


@contextmanager
def ssh_server(home: Path, shell: str | None = None, **options: str) -> Iterator[Sshd]:
    """Run an sshd that admits the user who runs the tests, with ``home`` for a home directory.

    :param shell: the path of a login shell to run in place of the user's own, which hands over to it.
    :param options: lines of sshd_config.
    """
    lines = {"SetEnv": f"LANG=C.UTF-8 HOME={home}", **options}
    if shell is not None:
        before = home.parent / f"{home.name}-before-login"
        before.mkdir()
        login = before / "login"
        # The user's own shell has no start-up files and no SHLVL: bash reads ~/.bashrc only at the first level.
        words = shlex.join(["env", "-u", "SHLVL", f"HOME={home}", f"SHELL={shell}", shell, "-c"])
        login.write_text(f'#!/bin/sh\ncd {shlex.quote(str(home))}\nexec {words} "$SSH_ORIGINAL_COMMAND"\n')
        login.chmod(0o755)
        lines |= {"SetEnv": f"LANG=C.UTF-8 HOME={before}", "ForceCommand": f"exec {login}"}
    with privilege_separation(), closing(Sshd(lines)) as server:
        yield server


@contextmanager
def ssh_link(server: Sshd, hops: int = 1) -> Iterator[Transport]:
    """Open a transport to the user who runs the tests; further hops lead through the same server."""
    with ExitStack() as links:
        link: Transport | None = None
        for _ in range(hops):
            link = links.enter_context(closing(Ssh().open(ssh_data(server, server.user), link, timeout=20)))
        assert link
        yield link
