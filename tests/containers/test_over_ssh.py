"""The same types on a host over SSH, and by sudo over SSH."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from connmgr.engine.envelope import Command
from connmgr.errors import CommandTimeout
from connmgr.plugin import Pty, Transport, Wrapper
from connmgr.testing import connect, run
from connmgr.testing.conformance import read_until
from connmgr.testing.link import WAIT_SECONDS
from connmgr_containers import Chroot, Docker, Kubernetes, Lxc, Lxd, Nspawn, Podman
from tests.containers.host import NAME, ON, ContainerHost
from tests.deadlines import DEADLINE_SECONDS
from tests.plugins.places import session_on

SLEEP_SECONDS = itertools.count(6000)

pytestmark = pytest.mark.needs("machine", "busybox", "sshd", "sudo")

KINDS = [
    pytest.param(Podman(), marks=pytest.mark.needs("podman"), id="podman"),
    pytest.param(Docker(), marks=pytest.mark.needs("podman", "docker"), id="docker"),
    pytest.param(Lxc(), marks=pytest.mark.needs("lxc"), id="lxc"),
    pytest.param(Lxd(), marks=pytest.mark.needs("lxd"), id="lxd"),
    pytest.param(Nspawn(), marks=pytest.mark.needs("nspawn", "cgroups"), id="nspawn"),
    pytest.param(Kubernetes(), marks=pytest.mark.needs("kubectl"), id="kubernetes"),
    pytest.param(Chroot(), id="chroot"),
]


def reached(host: ContainerHost, kind: Wrapper, far: Transport) -> Transport:
    """Return the machine's container of this kind, over ``far``."""
    host.has(kind.name)
    places: dict[str, Mapping[str, Any]] = {
        "chroot": {"directory": host.jail},
        "kubernetes": {"namespace": "shop", "pod": "web", "container": "nginx"},
    }
    return connect(kind, {"host": ON, **places.get(kind.name, {"containerName": host.name})}, far)


@pytest.mark.parametrize("kind", KINDS)
def test_a_shell_and_its_commands(container_host: ContainerHost, kind: Wrapper, sudo_over_ssh: Transport) -> None:
    inside = reached(container_host, kind, sudo_over_ssh)
    seconds = next(SLEEP_SECONDS)
    with session_on(inside) as session:
        assert session.info.os_name == NAME
        result = session.exec(Command(b"cat /only-here - ; echo err >&2; exit 5", stdin=b"in\n"), DEADLINE_SECONDS)
        assert (bytes(result.stdout), bytes(result.stderr)) == (b"seen from within\nin\n", b"err\n")
        assert result.exit_code == 5
        with pytest.raises(CommandTimeout):
            session.exec(Command(b"sleep %d | cat" % seconds), 1)
        assert b"sleep %d" % seconds not in run(inside, ["ps"]).stdout, "its processes outlive it"


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_gets_words_input_and_a_terminal_where_one_is_asked_for(
    container_host: ContainerHost, kind: Wrapper, over_ssh: Transport
) -> None:
    inside = reached(container_host, kind, over_ssh)
    words = run(inside, ["/bin/sh", "-c", 'printf "<%s>" "$@"; cat', "sh", "a b", "it's", "$HOME", "\udce4", ""], b"in")
    assert words.stdout == b"<a b><it's><$HOME><\xe4><>in"
    assert run(inside, ["/bin/sh", "-c", "test -t 0 || echo none"]).stdout == b"none\n"
    # It stays until it is read: lxc loses what a program on a terminal prints in the moment of its end.
    stays = ["/bin/sh", "-c", 'test -t 1 && stty size; echo "$TERM"; read over']
    with closing(inside.open_channel(stays, pty=Pty("vt220", 99, 33), timeout=WAIT_SECONDS)) as terminal:
        assert read_until(terminal, b"vt220").split() == [b"33", b"99", b"vt220"]
