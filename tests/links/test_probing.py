"""A chain of connections that cannot be opened: the client learns which link failed, and why."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connmgr.client import Client, ClientError
from tests.daemon import Daemon
from tests.plugins.machine import Machine
from tests.plugins.oneself import ssh_server
from tests.plugins.places import Places, ssh_fields
from tests.plugins.sshd import Sshd, keygen

pytestmark = pytest.mark.needs("sshd", "bash")

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def probing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    running = Daemon(tmp_path_factory.mktemp("probing"))
    yield running.client
    running.stop()


@dataclass(frozen=True)
class Ports:
    """A port on which nothing listens, and one that accepts connections and never answers."""

    closed: int
    silent: int


@pytest.fixture(scope="module")
def ports(closed_port: int) -> Iterator[Ports]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Ports(closed_port, server.getsockname()[1])


class Links:
    """Connections of a daemon, some to a user and some that cannot be opened."""

    def __init__(self, client: Client, server: Sshd, user: str, nobody: Fields, directory: Path, ports: Ports):
        """Connect to ``user`` of ``server``; the fields ``nobody`` lead to a user without a shell."""
        self.client = client
        self.user = user
        self._ports = ports
        self._server = server
        self._nobody = nobody
        self._strange_key = keygen(directory / "strange")
        self._numbers = iter(range(1000))

    def data(self, case: str) -> Fields:
        """Return the data of a link with the fault, or without one."""
        good: Fields = {"type": "ssh", **ssh_fields(self._server, self.user)}
        strange = " ".join(self._strange_key.with_suffix(".pub").read_text().split()[:2])
        faults: dict[str, Fields] = {
            "none": {},
            "host_unresolved": {"host": "no-such-host.invalid"},
            "host_refused": {"port": self._ports.closed},
            "host_unreachable": {"host": "224.0.0.1"},
            "connect_timeout": {"port": self._ports.silent, "connectTimeout": 1},
            "host_key_unknown": {"hostKey": None},
            "host_key_changed": {"hostKey": strange},
            "auth_failed": {"identity": {"file": str(self._strange_key)}},
            "unsupported_shell": self._nobody,
        }
        return {name: value for name, value in {**good, **faults[case]}.items() if value is not None}

    def add(self, data: Fields, validate: bool = False) -> tuple[str, str]:
        """Add a connection with ``data``, unless an equal one exists; return its name and id."""
        name = f"link {next(self._numbers)}"
        id = self.client.post("/connection/add", name=name, data=data, validate=validate)["connection"]
        return str(self._info(id)["name"][-1]), id

    def _info(self, connection: str) -> Fields:
        return dict(self.client.post("/connection/info", connections=[connection])["infos"][0])

    def count(self) -> int:
        everything = {"categoryFilter": "*", "connectionFilter": "*", "typeFilter": "*"}
        return len(self.client.post("/connection/query", **everything)["found"])

    def state(self, connection: str) -> Fields:
        return dict(self._info(connection)["state"])


@pytest.fixture(scope="module")
def links(
    probing: Client, home_of_the_daemon: Path, ports: Ports, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Links]:
    """Links to the user who runs the tests."""
    barred = tmp_path_factory.mktemp("barred")
    with ssh_server(home_of_the_daemon) as server, ssh_server(barred, "/usr/sbin/nologin") as without_shell:
        nobody = ssh_fields(without_shell, without_shell.user)
        yield Links(probing, server, server.user, nobody, tmp_path_factory.mktemp("keys"), ports)


@pytest.fixture(scope="module")
def links_to_inhabitants(
    probing: Client,
    running_machine: Machine,
    places: Places,
    ports: Ports,
    tmp_path_factory: pytest.TempPathFactory,
) -> Links:
    """Links to a user of the machine whom sudo may elevate."""
    nobody = {"user": running_machine.add_user("/usr/sbin/nologin").name}
    user = running_machine.add_user().name
    return Links(probing, places.sshd, user, nobody, tmp_path_factory.mktemp("keys"), ports)


def refused(request: Callable[[], object]) -> ClientError:
    started = time.monotonic()
    with pytest.raises(ClientError) as caught:
        request()
    assert time.monotonic() - started < 25, "a person waited longer than promised"
    return caught.value


FAULTS = [
    "host_unresolved",
    "host_refused",
    "host_unreachable",
    "connect_timeout",
    "host_key_unknown",
    "host_key_changed",
    "auth_failed",
    "unsupported_shell",
]


@pytest.mark.parametrize("code", FAULTS)
def test_a_link_that_cannot_be_opened(links: Links, code: str) -> None:
    before = links.count()
    error = refused(lambda: links.add(links.data(code), validate=True))
    assert (error.status, error.code) == (400, code), error.message
    assert links.count() == before, "a connection that failed its validation was added"
    _, id = links.add(links.data(code))
    error = refused(lambda: links.client.post("/connection/refresh", connection=id))
    assert (error.status, error.code) == (500, code)
    assert links.state(id) == {"error": code}
    assert refused(lambda: links.client.post("/shell/start", connection=id)).code == code


@pytest.mark.parametrize("code", [code for code in FAULTS if code != "unsupported_shell"])
def test_a_gateway_that_cannot_be_opened_is_named(links: Links, code: str) -> None:
    gateway, id = links.add(links.data(code))
    error = refused(lambda: links.add({**links.data("none"), "gateway": id}, validate=True))
    assert (error.status, error.code) == (400, code)
    assert error.message.startswith(f"{gateway}: "), error.message


@pytest.mark.parametrize("code", ["host_refused", "connect_timeout", "host_key_changed", "auth_failed"])
def test_a_target_behind_a_gateway(links: Links, code: str) -> None:
    gateway, id = links.add(links.data("none"))
    error = refused(lambda: links.add({**links.data(code), "gateway": id}, validate=True))
    assert (error.status, error.code) == (400, code)
    assert not error.message.startswith(f"{gateway}: "), "the gateway is not at fault"


@pytest.mark.parametrize("code", FAULTS)
def test_the_host_of_an_elevated_shell_is_named(links: Links, code: str) -> None:
    host, id = links.add(links.data(code))
    data = {"type": "shellEnvironment", "host": id, "elevated": True, "password": "x"}
    error = refused(lambda: links.add(data, validate=True))
    assert (error.status, error.code) == (400, "elevation_failed" if code == "unsupported_shell" else code)
    assert error.message.startswith(f"{host}: ") or code == "unsupported_shell", error.message


@pytest.mark.needs("machine", "sudo")
@pytest.mark.parametrize(
    ("rule", "password", "code"),
    [("", "correct horse battery", "elevation_failed"), ("{user} ALL=(ALL) ALL", "wrong", "auth_failed")],
)
def test_an_elevation_that_is_refused(
    links_to_inhabitants: Links, running_machine: Machine, rule: str, password: str, code: str
) -> None:
    links = links_to_inhabitants
    running_machine.allow(rule.format(user=links.user))
    host, id = links.add(links.data("none"))
    data = {"type": "shellEnvironment", "host": id, "elevated": True, "password": password}
    error = refused(lambda: links.add(data, validate=True))
    assert (error.status, error.code) == (400, code)
    assert "sudo" in error.message or "sudoers" in error.message
    assert not error.message.startswith(f"{host}: ")
    _, elevated = links.add(data)
    assert refused(lambda: links.client.post("/connection/refresh", connection=elevated)).code == code
    assert links.state(elevated) == {"error": code}


@pytest.mark.needs("machine", "sudo")
def test_a_chain_that_opens(links_to_inhabitants: Links, running_machine: Machine) -> None:
    links = links_to_inhabitants
    running_machine.allow(f"{links.user} ALL=(ALL) ALL")
    _, gateway = links.add(links.data("none"), validate=True)
    _, target = links.add({**links.data("none"), "gateway": gateway}, validate=True)
    data = {"type": "shellEnvironment", "host": target, "elevated": True, "password": "correct horse battery"}
    _, elevated = links.add({**data, "commands": ["cd /usr", "export A=b"]}, validate=True)
    links.client.post("/connection/refresh", connection=elevated)
    state = links.state(elevated)
    assert (state["osType"], state["ttyState"]) == ("linux", "none")
    links.client.post("/shell/start", connection=elevated)
    result = links.client.post("/shell/exec", connection=elevated, command='id -un; pwd; echo "$A"')
    assert result == {"exitCode": 0, "stdout": "root\n/usr\nb", "stderr": ""}
    links.client.post("/shell/stop", connection=elevated)


def test_init_commands(links: Links) -> None:
    _, host = links.add(links.data("none"))
    plain = {"type": "shellEnvironment", "host": host, "shell": "dash"}
    for commands in (None, [], ["true", ": second"]):
        _, id = links.add({**plain, "commands": commands}, validate=True)
        assert links.client.post("/shell/start", connection=id)["shellDialect"] == 2
        links.client.post("/shell/stop", connection=id)
    error = refused(lambda: links.add({**plain, "commands": ["true", "echo why >&2; exit 7"]}, validate=True))
    assert (error.status, error.code) == (400, "shell_start_failed")
    assert "exited with 7" in error.message
    assert "why" in error.message


def test_output_of_a_remote_host_is_quoted_without_control_characters(links: Links) -> None:
    _, host = links.add(links.data("none"))
    commands = [r"printf 'why\033]0;owned\007\302\233 not\n' >&2; exit 7"]
    data = {"type": "shellEnvironment", "host": host, "shell": "dash", "commands": commands}
    error = refused(lambda: links.add(data, validate=True))
    assert error.message.endswith("exited with 7. why ]0;owned not")
