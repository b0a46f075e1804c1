"""``connmgr info``: the hosts that would be dialled, with ~/.ssh/config applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.program import CommandLine

CONFIG = """
Host web
  HostName 192.0.2.7
  Port 2222
  User deploy
  IdentityFile ~/.ssh/web
  ProxyJump me@bastion:2022
Host bastion
  HostName bastion.example
  IdentityFile {home}/.ssh/gate
Host proxied
  ProxyCommand nc %h %p
"""


@pytest.fixture
def connmgr(clean_connmgr: CommandLine) -> CommandLine:
    home = Path(clean_connmgr.daemon.environment["HOME"])
    (home / ".ssh").mkdir(mode=0o700)
    config = home / ".ssh" / "config"
    config.write_text(CONFIG.format(home=home))
    config.chmod(0o600)
    return clean_connmgr


def shown(connmgr: CommandLine, name: str) -> list[tuple[str, str]]:
    """Return the rows of ``connmgr info`` about dialled hosts."""
    rows = [line.split("  ", 1) for line in connmgr("info", name).output.splitlines()]
    return [(row[0], row[1].strip()) for row in rows if row[0] in ("dials", "through", "offers")]


def test_an_alias_is_shown_as_the_configuration_has_it(connmgr: CommandLine) -> None:
    connmgr("add", "ssh", "web", "host=web", "agent=no")
    assert shown(connmgr, "web") == [
        ("dials", "deploy@192.0.2.7:2222"),
        ("through", "me@bastion.example:2022"),
        ("offers", "~/.ssh/web"),
    ]
    assert connmgr("info", "web", "--json").json["dialled"]["hosts"][0] == {
        "host": "bastion.example",
        "port": 2022,
        "user": "me",
        "identities": ["~/.ssh/gate"],
        "agent": False,
    }


def test_fields_of_the_connection_go_before_the_configuration(connmgr: CommandLine) -> None:
    connmgr("add", "ssh", "gate", "host=gate.example", "user=me", "--secret", "password", stdin="hunter2")
    connmgr("add", "ssh", "inner", "host=web", "port=2200", "user=root", "gateway=gate", "identity.file=/keys/inner")
    connmgr("add", "shellEnvironment", "sub", "host=inner")
    for name in ("inner", "inner/sub"):
        assert shown(connmgr, name) == [
            ("dials", "root@192.0.2.7:2200"),
            ("through", "me@gate.example:22"),
            ("offers", "/keys/inner"),
        ]
    assert shown(connmgr, "gate")[-1] == ("offers", "no key")
    assert "hunter2" not in connmgr("info", "gate", "--json").output


def test_info_says_why_a_host_cannot_be_dialled(connmgr: CommandLine) -> None:
    connmgr("add", "ssh", "proxied", "host=proxied")
    ((name, why),) = shown(connmgr, "proxied")
    assert name == "dials"
    assert "has a ProxyCommand for proxied" in why


def test_nothing_is_dialled_for_this_machine(connmgr: CommandLine) -> None:
    assert shown(connmgr, "local") == []


def test_a_request_asks_it_of_few(connmgr: CommandLine) -> None:
    from connmgr.client import LOCAL_MACHINE, ClientError

    client = connmgr.daemon.client
    assert "dialled" not in client.post("/connection/info", connections=[LOCAL_MACHINE])["infos"][0]
    with pytest.raises(ClientError, match="dialled: Only for at most 100"):
        client.post("/connection/info", connections=[LOCAL_MACHINE] * 101, dialled=True)


def test_an_address_is_shown_as_what_it_would_dial(connmgr: CommandLine) -> None:
    rows = dict(shown(connmgr, "ssh://me@192.0.2.9:2200"))
    assert rows["dials"] == "me@192.0.2.9:2200"
    assert dict(shown(connmgr, "other@web"))["dials"] == "other@192.0.2.7:2222"
    assert connmgr("ls").output.count("192.0.2") == 0
