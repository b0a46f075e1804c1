"""The ways to a user of the test machine: from this machine, over SSH, or over SSH through a gateway."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from connmgr.engine.session import Session
from connmgr.engine.start import start_supervisor
from connmgr.links.login import WrappedTransport
from connmgr.plugin import Schema, Transport, Wrapper
from connmgr_elevated import ShellEnvironment
from connmgr_local.transport import LocalTransport
from connmgr_ssh import Ssh
from tests.plugins.machine import Inhabitant, Machine
from tests.plugins.sshd import Sshd

LOCAL, SSH, GATEWAY = "local", "ssh", "ssh through a gateway"
PLACES = (LOCAL, SSH, GATEWAY)
OPEN_SECONDS = 60.0
ATTEMPT_SECONDS = 9.0
MAX_OUTPUT = 16 << 20


def here_and_afar(cases: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test with each ``case`` on this machine and over SSH, alternately directly and through a gateway."""
    afar = zip(cases, itertools.cycle((SSH, GATEWAY)), strict=False)
    return pytest.mark.parametrize(("case", "place"), [(case, place) for case, far in afar for place in (LOCAL, far)])


class Inside(Wrapper):
    """Runs programs as a user of a machine, with the transports of a daemon of that user."""

    name = "inside"
    description = "Programs on the tests' machine."
    schema = Schema

    def __init__(self, machine: Machine, user: Inhabitant, environment: Mapping[str, str]) -> None:
        self._words = [*machine.inside(user), "env", *(f"{name}={value}" for name, value in environment.items())]

    def wrap(self, argv: Sequence[str], data: Mapping[str, Any], prompt: str, *, pty: bool) -> list[str]:
        return [*self._words, *argv]


class Places:
    """Opens transports to users of ``machine``, and starts an sshd there at the first need."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._sshd: Sshd | None = None
        self._links = ExitStack()
        self._kept: dict[tuple[str, str], Transport] = {}

    @property
    def sshd(self) -> Sshd:
        """The machine's sshd, which is also its own gateway."""
        if self._sshd is None:
            self._sshd = Sshd({"SetEnv": "LANG=C.UTF-8"}, inside=self.machine.inside())
        return self._sshd

    @contextmanager
    def reach(self, place: str, user: Inhabitant, environment: Mapping[str, str] | None = None) -> Iterator[Transport]:
        """Open a transport to ``user``; ``environment`` is added to that of local processes."""
        if place == LOCAL:
            local = LocalTransport()
            try:
                yield WrappedTransport(Inside(self.machine, user, environment or {}), {}, local)
            finally:
                local.close()
            return
        links = [self._link(user, None)]
        try:
            if place == GATEWAY:
                links.append(self._link(user, links[0]))
            yield links[-1]
        finally:
            for link in reversed(links):
                link.close()

    def keep(self, place: str, user: Inhabitant) -> Transport:
        """Return a transport to ``user`` that stays open, so that tests share its SSH login."""
        key = place, user.name
        if key not in self._kept:
            self._kept[key] = self._links.enter_context(self.reach(place, user))
        return self._kept[key]

    def _link(self, user: Inhabitant, via: Transport | None) -> Transport:
        return Ssh().open(ssh_data(self.sshd, user.name), via, timeout=20)

    def close(self) -> None:
        self._links.close()
        if self._sshd:
            self._sshd.close()


def ssh_data(server: Sshd, user: str) -> dict[str, Any]:
    """Return validated data of a connection to the user of that name."""
    return Ssh.schema().load(ssh_fields(server, user))  # type: ignore[no-any-return]


def ssh_fields(server: Sshd, user: str, **fields: Any) -> dict[str, Any]:
    """Return the fields of a connection to ``user``, as a client gives them."""
    key = server.host_keys[0].with_suffix(".pub").read_text()
    return {
        "host": "127.0.0.1",
        "port": server.port,
        "user": user,
        "identity": {"file": str(server.client_key)},
        "hostKey": " ".join(key.split()[:2]),
        **fields,
    }


def elevate(inner: Transport, **fields: Any) -> Transport:
    """Return the transport of an elevated shell environment in ``inner``."""
    data = ShellEnvironment.schema().load({"host": str(uuid.UUID(int=0)), "elevated": True, **fields})
    return WrappedTransport(ShellEnvironment(), data, inner)


@contextmanager
def session_on(
    transport: Transport, shell: str | None = None, max_output: int = MAX_OUTPUT, seconds: float = OPEN_SECONDS
) -> Iterator[Session]:
    """Open a session as the daemon does, within ``seconds``, and stop it at the end."""
    session = Session(start_supervisor(transport, shell, seconds), transport, max_output)
    try:
        yield session
    finally:
        session.stop(5)


def attempt(transport: Transport, seconds: float = ATTEMPT_SECONDS) -> None:
    """Open a session and stop it, in tests of failing starts."""
    with session_on(transport, seconds=seconds):
        pass
