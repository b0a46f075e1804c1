"""``connmgr import-ssh-config``: hosts are shown, added or left unchanged, and then work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import StartSshd
from tests.cli.program import CommandLine
from tests.plugins.sshd import Sshd

HOSTS = """
Host web db
  User deploy
Host web
  HostName web.example.org
  Port 2200
  IdentityFile ~/.ssh/id_web
  IdentityFile ~/.ssh/id_other
Host db
  ProxyJump joe@hop.example:99,web
Host odd
  ProxyCommand nc %h %p
Host *.internal !not.internal
  User nobody
"""


def usual(connmgr: CommandLine, text: str) -> Path:
    directory = connmgr.daemon.home / ".ssh"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / "config").write_text(text)
    (directory / "config").chmod(0o600)
    return directory


def outcomes(connmgr: CommandLine, *arguments: str) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in connmgr("import-ssh-config", *arguments, "--json").json}


def names(connmgr: CommandLine) -> set[str]:
    return {info["name"][0] for info in connmgr("ls", "--type", "ssh", "--json").json}


def test_hosts_of_the_usual_file_are_shown_then_added_by_their_alias_once(clean_connmgr: CommandLine) -> None:
    directory = usual(clean_connmgr, f"Include more\n{HOSTS}")
    (directory / "more").write_text("Host extra\n  HostName extra.example\n")
    (directory / "more").chmod(0o600)
    expected = {"extra": "new", "web": "new", "db": "new", "odd": "left out"}
    assert outcomes(clean_connmgr) == expected
    assert names(clean_connmgr) == set()
    shown = clean_connmgr("import-ssh-config")
    assert "deploy@web.example.org:2200" in shown.output
    assert "ProxyCommand" in shown.output
    assert "--apply" in shown.errors
    clean_connmgr("category", "add", "imported")
    added = clean_connmgr("import-ssh-config", "--apply", "--category", "imported").output
    assert added.splitlines()[0].split()[:2] == ["added", "extra"]
    assert names(clean_connmgr) == {"extra", "web", "db"}
    assert clean_connmgr("info", "web", "--json").json["category"] == ["imported"]
    assert clean_connmgr("info", "web", "--json").json["rawData"]["host"] == "web"
    for again in ((), ("--apply",)):
        assert outcomes(clean_connmgr, *again) == dict.fromkeys(expected, "there already") | {"odd": "left out"}
    assert names(clean_connmgr) == {"extra", "web", "db"}


def test_hosts_of_another_file_are_added_with_what_it_says(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(HOSTS)
    new = {"web": "new", "joe@hop.example:99": "new", "db": "new", "odd": "left out"}
    assert outcomes(clean_connmgr, str(file)) == new
    assert outcomes(clean_connmgr, str(file), "--apply") == {**new, "web": "added", "joe@hop.example:99": "added"} | {
        "db": "added"
    }
    web = clean_connmgr("info", "web", "--json").json
    data = web["rawData"]
    assert (data["host"], data["port"], data["user"]) == ("web.example.org", 2200, "deploy")
    assert data["identity"]["file"].endswith("/.ssh/id_web")
    hop = clean_connmgr("info", "joe@hop.example:99", "--json").json
    assert (hop["rawData"]["host"], hop["rawData"]["port"], hop["rawData"]["user"]) == ("hop.example", 99, "joe")
    assert clean_connmgr("info", "db", "--json").json["rawData"]["gateway"] == web["connection"]
    kept = dict.fromkeys(new, "there already") | {"odd": "left out"}
    assert outcomes(clean_connmgr, str(file), "--apply") == kept
    file.write_text(HOSTS.replace("2200", "2201"))
    assert outcomes(clean_connmgr, str(file), "--apply")["web"] == "name taken"
    assert clean_connmgr("info", "web", "--json").json["rawData"]["port"] == 2200


def test_update_changes_what_is_stored_with_other_data_and_says_in_what(
    clean_connmgr: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(HOSTS)
    clean_connmgr("import-ssh-config", "--apply", str(file))
    before = clean_connmgr("info", "web", "--json").json["connection"]
    file.write_text(HOSTS.replace("2200", "2201").replace("deploy", "admin"))
    assert "stored with another port, user" in clean_connmgr("import-ssh-config", "--apply", str(file)).output
    planned = {"web": "changes", "joe@hop.example:99": "there already", "db": "changes", "odd": "left out"}
    assert outcomes(clean_connmgr, str(file), "--update") == planned
    assert clean_connmgr("info", "web", "--json").json["rawData"]["port"] == 2200
    done = {**planned, "web": "changed", "db": "changed"}
    assert outcomes(clean_connmgr, str(file), "--update", "--apply") == done
    web = clean_connmgr("info", "web", "--json").json
    assert (web["connection"], web["rawData"]["port"], web["rawData"]["user"]) == (before, 2201, "admin")
    assert outcomes(clean_connmgr, str(file), "--update")["web"] == "there already"


@pytest.mark.parametrize("update", [(), ("--update",)], ids=["new ones", "update"])
def test_fields_that_the_configuration_cannot_express_stay(clean_connmgr: CommandLine, update: tuple[str, ...]) -> None:
    usual(clean_connmgr, HOSTS)
    clean_connmgr("add", "ssh", "web", "host=web", "port=2222", "--secret", "password", stdin="canary")
    before = clean_connmgr("info", "web", "--json").json["rawData"]
    assert outcomes(clean_connmgr, "--apply", *update)["web"] == "there already"
    assert clean_connmgr("info", "web", "--json").json["rawData"] == before


def test_an_update_changes_what_the_configuration_says_and_nothing_else(
    clean_connmgr: CommandLine, tmp_path: Path
) -> None:
    file = tmp_path / "config"
    file.write_text(HOSTS)
    stored = {
        "web": (
            ["host=web.example.org", "port=2200", "user=root", "identity.file=~/.ssh/id_old"],
            "identity.passphrase",
        ),
        "db": (["host=db", "user=deploy"], "identity.key"),
    }
    for name, (fields, secret) in stored.items():
        clean_connmgr("add", "ssh", name, *fields, "hostKeyChecking=strict", "--secret", secret, stdin="canary")
    before = {name: clean_connmgr("info", name, "--json").json["rawData"] for name in stored}
    assert "stored with another identity, user;" in clean_connmgr("import-ssh-config", str(file)).output
    assert outcomes(clean_connmgr, str(file), "--update", "--apply")["web"] == "changed"
    after = {name: clean_connmgr("info", name, "--json").json["rawData"] for name in stored}
    passphrase = before["web"]["identity"]["passphrase"]
    assert after["web"] == {
        **before["web"],
        "user": "deploy",
        "identity": {"file": str(clean_connmgr.daemon.home / ".ssh/id_web"), "passphrase": passphrase},
    }
    gateway = clean_connmgr("info", "joe@hop.example:99", "--json").json["connection"]
    assert after["db"]["identity"] == before["db"]["identity"]
    assert after["db"] == {**before["db"], "gateway": after["db"]["gateway"]}
    assert gateway
    # What the configuration says no more goes; what it cannot say stays.
    file.write_text("Host web\n  HostName web.example.org\n  IdentityFile ~/.ssh/id_web\n")
    assert outcomes(clean_connmgr, str(file), "--update", "--apply")["web"] == "changed"
    last = clean_connmgr("info", "web", "--json").json["rawData"]
    assert "user" not in last
    assert (last["port"], last["identity"]["passphrase"]) == (22, passphrase)


def test_a_host_that_the_daemon_refuses_is_named_and_none_is_added(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host good\nHost bad\n  User a b\nHost worse\n  HostName a,b\n")
    refused = clean_connmgr("import-ssh-config", "--apply", str(file), code=1).errors
    assert "worse: data.host: " in refused
    assert names(clean_connmgr) == set()


def test_thousands_of_hosts_are_added_in_one_step(own_connmgr: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "config"
    hosts = [f"Host h{number}\n  HostName h{number}.example\n  ProxyJump hop\n" for number in range(2000)]
    file.write_text("Host hop\n" + "".join(hosts))
    assert set(outcomes(own_connmgr, str(file), "--apply").values()) == {"added"}
    log = own_connmgr.daemon.stderr()
    assert (log.count("/connection/apply"), log.count("/connection/add")) == (1, 0)
    assert set(outcomes(own_connmgr, str(file), "--apply").values()) == {"there already"}


def test_a_circle_of_jumps_comes_to_an_end(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host a\n  ProxyJump b\nHost b\n  ProxyJump a\n")
    assert outcomes(clean_connmgr, str(file), "--apply")["a"] == "left out"


def test_a_file_that_others_may_write_to_is_refused(clean_connmgr: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host a\n")
    (tmp_path / "config").chmod(0o666)
    assert "others may write to it" in clean_connmgr("import-ssh-config", str(tmp_path / "config"), code=1).errors
    clean_connmgr("import-ssh-config", str(tmp_path / "nowhere"), code=2)


@pytest.mark.needs("sshd")
@pytest.mark.parametrize("which", ["usual", "other"])
def test_imported_hosts_work_through_their_jumps(
    clean_connmgr: CommandLine, start_sshd: StartSshd, tmp_path: Path, which: str
) -> None:
    server: Sshd = start_sshd()
    text = (
        f"Host near far\n  HostName 127.0.0.1\n  Port {server.port}\n  User {server.user}\n"
        f"  IdentityFile {server.client_key}\nHost far\n  ProxyJump near\n"
    )
    directory = usual(clean_connmgr, text if which == "usual" else "")
    (directory / "known_hosts").write_text(server.known_hosts())
    (tmp_path / "other").write_text(text)
    clean_connmgr("import-ssh-config", "--apply", *([] if which == "usual" else [str(tmp_path / "other")]))
    before = server.log().count("Accepted publickey")
    assert clean_connmgr("exec", "far", "--", "echo $SSH_CONNECTION").output.startswith("127.0.0.1 ")
    assert server.log().count("Accepted publickey") == before + 2


UNHEEDED = """
Host plain
  HostName plain.example
  Compression yes
  ForwardX11 no
Host busy
  HostName busy.example
  LocalForward 8080 localhost:80
  Ciphers aes256-ctr
  Bogus yes
  ForwardAgent yes
Match host later exec "test -e /tmp/x"
  User other
Host later
  HostName later.example
  SendEnv WORK_*
  SetEnv A=1
  StrictHostKeyChecking accept-new
  IdentityFile /one
  IdentityFile /two
"""


@pytest.mark.parametrize("usual_file", [True, False], ids=["the usual file", "another file"])
def test_ignored_options_are_listed_beside_their_host(
    clean_connmgr: CommandLine, tmp_path: Path, usual_file: bool
) -> None:
    if usual_file:
        usual(clean_connmgr, UNHEEDED)
        arguments = ()
    else:
        file = tmp_path / "config"
        file.write_text(UNHEEDED)
        arguments = (str(file),)
    lines = {line.split()[1]: line for line in clean_connmgr("import-ssh-config", *arguments).output.splitlines()}
    assert "(" not in lines["plain"]
    assert "ignored: LocalForward, Ciphers, bogus; ForwardAgent is left to forwardAgent=true" in lines["busy"]
    assert ("the first IdentityFile alone" in lines["later"]) is not usual_file
    assert "ignored: Match exec)" in lines["later"]
    clean_connmgr("import-ssh-config", "--apply", *arguments)
    assert "forwardAgent" not in clean_connmgr("info", "busy", "--json").json["rawData"]
    data = clean_connmgr("info", "later", "--json").json["rawData"]
    if not usual_file:
        assert (data["sendEnv"], data["setEnv"], data["hostKeyChecking"]) == (["WORK_*"], ["A=1"], "acceptNew")


def test_a_block_that_depends_on_a_program_is_told(clean_connmgr: CommandLine) -> None:
    usual(clean_connmgr, 'Host web\n  HostName web.example\nMatch host web.example exec "true"\n  User other\n')
    assert "ignored: Match exec" in clean_connmgr("import-ssh-config").output
