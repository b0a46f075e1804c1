"""How plugins are found; broken and rival plugins are reported and do not stop the daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from connmgr import registry as registry_module
from connmgr.client import ClientError
from connmgr.errors import UnknownType
from connmgr.registry import Registered, Registry
from connmgr.testing import InMemory
from tests.conftest import StartDaemon
from tests.daemon import clean_environment
from tests.plugins.strangers import SOUND, install

BUNDLED = {
    *("local", "shellEnvironment", "ssh"),
    *("customService", "sshDynamicTunnel", "sshLocalTunnel", "sshRemoteTunnel"),
    *("chroot", "docker", "incus", "kubernetes", "lxc", "lxd", "nspawn", "podman"),
    *("dockerHost", "incusHost", "kubernetesCluster", "lxcHost", "lxdHost", "nspawnHost", "podmanHost"),
}


def without(statement: str, replacement: str = "") -> str:
    """Return the source of a valid plugin with one statement replaced."""
    assert statement in SOUND
    return SOUND.replace(statement, replacement)


def with_field(field: str) -> str:
    """Return the source of a valid plugin whose only field is ``odd``."""
    imports = "from marshmallow import fields\nfrom connmgr.plugin import List, Nested, Secret\n"
    return imports + without("schema = Schema", f"schema = Schema.from_dict({{'odd': {field}}})")


BROKEN = {
    "no such module": (None, "ModuleNotFoundError"),
    "syntax error": ("def (:", "SyntaxError"),
    "raises when imported": ("1 / 0", "ZeroDivisionError: division by zero"),
    "exits when imported": ("import sys; sys.exit('enough')", "SystemExit: enough"),
    "raises what is no Exception": ("raise type('Panic', (BaseException,), {})('lost')", "Panic: lost"),
    "has no hook": ("", "implements no hook"),
    "hook without mark": (without("@hookimpl\n"), "its connmgr_connection_types lacks @hookimpl"),
    "a further hook without mark": (
        SOUND + "\n\ndef connmgr_authorise(caller, action, subjects):\n    raise RuntimeError\n",
        "its connmgr_authorise lacks @hookimpl, so connmgr would never call it",
    ),
    "a further hook of another name": (
        SOUND + "\n\n@hookimpl\ndef connmgr_authorize(caller, action, subjects):\n    raise RuntimeError\n",
        "connmgr_authorize",
    ),
    "hook of another name": (SOUND.replace("connmgr_connection_types", "connmgr_types"), "connmgr_types"),
    "hook with parameters": (SOUND.replace("_types():", "_types(registry):"), "registry"),
    "hook raises": (without("[Sound()]", "1 / 0"), "ZeroDivisionError"),
    "hook returns nothing": (without("return [Sound()]", "return"), "offers no types"),
    "hook returns no list": (without("[Sound()]", "Sound()"), "not iterable"),
    "a class for a type": (without("[Sound()]", "[Sound]"), "not an instance of ConnectionType, Wrapper or Tunnel"),
    "a string for a type": (
        without("[Sound()]", "['sound']"),
        "not an instance of ConnectionType, Wrapper or Tunnel: 'sound'",
    ),
    "no open": (without("def open", "def opens"), "open"),
    "no name": (without('name = "NAME"'), "Sound.name is None"),
    "a number for a name": (without('name = "NAME"', "name = 7"), "Sound.name is 7"),
    "no description": (without('description = "A sound type."'), "Sound.description is None"),
    "no schema": (without("schema = Schema"), "Sound.schema is None"),
    "an instance for a schema": (without("schema = Schema", "schema = Schema()"), "Sound.schema"),
    "via names no field": (without("schema = Schema", "schema = Schema\n    via = 'host'"), "Sound.via is 'host'"),
    "a secret for a key": (
        with_field("fields.Dict(keys=Secret())"),
        "Sound.schema: odd has keys that are secrets",
    ),
    "a secret stored under another name": (
        with_field("List(Nested(Schema.from_dict({'pin': Secret(attribute='pins')})))"),
        "Sound.schema: odd[].pin is stored under another name",
    ),
    "a name with blanks": (without('"NAME"', '"two words"'), "Sound.name is 'two words', not made of letters"),
    "a name beyond ASCII": (without('"NAME"', '"na\u00efve"'), "Sound.name is 'na\u00efve', not made of letters"),
    "an unknown usage": (
        without("schema = Schema", "schema = Schema\n    usage_category = 'odd'"),
        "Sound.usage_category is 'odd', not one of shell, tunnel",
    ),
    "a field that is connmgr's": (
        without("schema = Schema", "schema = Schema.from_dict({'type': Reference()})"),
        "Sound.schema has a field `type`, which is connmgr's",
    ),
    "a schema that cannot be made": (
        "def fail(self):\n    raise OSError('no schema')\n"
        + without("schema = Schema", "schema = type('Failing', (Schema,), {'__init__': fail})"),
        "OSError: no schema",
    ),
    "a schema that holds itself": (
        with_field("Nested(lambda: Sound.schema())"),
        "RecursionError",
    ),
    "a default that is not JSON": (with_field("fields.Raw(load_default=object())"), "the JSON Schema is not JSON"),
    "a default that is not a number": (
        with_field("fields.Raw(load_default=float('nan'))"),
        "the JSON Schema is not JSON",
    ),
    "a list for an example": (
        without("schema = Schema", "schema = Schema\n    example = ['x']"),
        "Sound.example is ['x'], not a mapping",
    ),
    "an example that is not JSON": (
        with_field("fields.Raw()").replace("def open", "example = {'odd': object()}\n\n    def open"),
        "the JSON Schema is not JSON",
    ),
    "an example of another type": (
        without("schema = Schema", "schema = Schema\n    example = {'port': 22}"),
        "Sound.example is refused by its schema: {'port': ['Unknown field.']}",
    ),
    "data that cannot be stored": (
        with_field("fields.Time()").replace("def open", "example = {'odd': '12:00'}\n\n    def open"),
        "the example as the schema loads it is not JSON",
    ),
    "a wrapper without via": (
        SOUND.replace("Sound(ConnectionType)", "Sound(Wrapper)").replace("def open", "def wrap"),
        "Sound.via is None",
    ),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on Python's search path."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    return directory


def types(registry: Registry) -> dict[str, str]:
    return {entry.type.name: entry.distribution for entry in registry}


def test_the_bundled_types_are_found_through_their_entry_points() -> None:
    registry = Registry.load()
    assert types(registry) == dict.fromkeys(BUNDLED, "connmgr")
    assert registry.problems == []


def test_a_stranger_s_type_is_found_with_its_distribution_and_version(site: Path) -> None:
    install(site, SOUND.replace("NAME", "sound"), "connmgr-sound", "3.4")
    registry = Registry.load()
    assert registry.problems == []
    assert registry.get("sound").description == "A sound type."
    assert [(entry.distribution, entry.version) for entry in registry if entry.type.name == "sound"] == [
        ("connmgr-sound", "3.4")
    ]


def test_a_type_needs_no_example(site: Path) -> None:
    install(site, with_field("fields.Raw(required=True)").replace("NAME", "sound_1.x"), "connmgr-sound")
    registry = Registry.load()
    assert registry.problems == []
    assert set(types(registry)) == {*BUNDLED, "sound_1.x"}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_plugin_is_reported_and_the_others_work(site: Path, fault: str) -> None:
    source, reason = BROKEN[fault]
    install(site, source and source.replace("NAME", "sound"), "connmgr-broken", entry="broken")
    registry = Registry.load()
    assert set(types(registry)) == BUNDLED
    assert [(problem.plugin, problem.distribution) for problem in registry.problems] == [("broken", "connmgr-broken")]
    assert reason in registry.problems[0].reason


def test_a_distribution_without_metadata_is_reported(site: Path) -> None:
    install(site, SOUND.replace("NAME", "sound"), "connmgr-broken")
    (site / "connmgr_broken-1.2.dist-info" / "METADATA").write_text("")
    registry = Registry.load()
    assert set(types(registry)) == BUNDLED
    assert ["damaged" in problem.reason for problem in registry.problems] == [True]


def test_one_bad_type_disables_its_whole_plugin(site: Path) -> None:
    # Half a plugin would fail later, far from the cause.
    install(site, without("[Sound()]", "[Sound(), None]").replace("NAME", "sound"), "connmgr-broken")
    registry = Registry.load()
    assert set(types(registry)) == BUNDLED
    assert "None" in registry.problems[0].reason


def test_two_owners_of_a_name_are_both_refused(site: Path) -> None:
    for owner in ("connmgr-one", "connmgr-two"):
        install(site, SOUND.replace("NAME", "contested"), owner)
    registry = Registry.load()
    assert set(types(registry)) == BUNDLED
    assert {problem.distribution: problem.reason for problem in registry.problems} == {
        "connmgr-one": "refused: the connection type 'contested' is also offered by connmgr-two",
        "connmgr-two": "refused: the connection type 'contested' is also offered by connmgr-one",
    }
    with pytest.raises(UnknownType, match="contested"):
        registry.get("contested")


def test_a_bundled_name_stays_with_connmgr(site: Path) -> None:
    install(site, SOUND.replace("NAME", "ssh"), "connmgr-rival")
    registry = Registry.load()
    assert types(registry) == dict.fromkeys(BUNDLED, "connmgr")
    assert [(problem.distribution, problem.reason) for problem in registry.problems] == [
        ("connmgr-rival", "refused: the connection type 'ssh' is also offered by connmgr")
    ]


def test_a_name_taken_twice_by_one_distribution_is_refused(site: Path) -> None:
    install(site, without("[Sound()]", "[Sound(), Sound()]").replace("NAME", "twice"), "connmgr-twice")
    registry = Registry.load()
    assert set(types(registry)) == BUNDLED
    assert [(problem.distribution, problem.reason) for problem in registry.problems] == [
        ("connmgr-twice", "refused: the connection type 'twice' is offered twice by this distribution")
    ] * 2


def test_names_that_differ_only_in_case_are_equal(site: Path) -> None:
    for number, name in enumerate(("SSH", "Contested", "contested")):
        install(site, SOUND.replace("NAME", name), f"connmgr-{number}")
    registry = Registry.load()
    assert types(registry) == dict.fromkeys(BUNDLED, "connmgr")
    refused = "refused: the connection type {!r} is also offered by {}, as {!r}; case makes no difference"
    assert {problem.distribution: problem.reason for problem in registry.problems} == {
        "connmgr-0": refused.format("SSH", "connmgr", "ssh"),
        "connmgr-1": refused.format("Contested", "connmgr-2", "contested"),
        "connmgr-2": refused.format("contested", "connmgr-1", "Contested"),
    }


def test_an_unknown_type_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(UnknownType, match=r"nonesuch \(installed: chroot, .*, ssh, .*\)"):
        Registry.load().get("nonesuch")


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one valid plugin, every broken one, and two rivals."""
    site = tmp_path_factory.mktemp("crowded")
    install(site, SOUND.replace("NAME", "sound"), "connmgr-sound")
    for number, (source, _) in enumerate(BROKEN.values()):
        install(site, source and source.replace("NAME", f"broken{number}"), f"connmgr-broken{number}")
    for owner in ("connmgr-one", "connmgr-two"):
        install(site, SOUND.replace("NAME", "contested"), owner)
    return site


REFUSED = {f"connmgr-broken{number}" for number in range(len(BROKEN))} | {"connmgr-one", "connmgr-two"}


def connmgr(site: Path, home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(home) | {"PYTHONPATH": str(site)}
    argv = [sys.executable, "-m", "connmgr", *arguments]
    return subprocess.run(argv, env=environment, cwd=home, capture_output=True, text=True, timeout=60, check=True)


def test_the_command_line_lists_types_and_problems(crowded: Path, tmp_path: Path) -> None:
    shown = connmgr(crowded, tmp_path, "plugins")
    types, _, sources = shown.stdout.partition("\n\n")
    assert {line.split()[0] for line in types.splitlines()[1:]} == {*BUNDLED, "sound"}
    assert {line.split()[0] for line in sources.splitlines()[1:]} > {"command", "pass"}
    for distribution in REFUSED:
        assert f" of {distribution}: " in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_command_line_lists_them_as_json(crowded: Path, tmp_path: Path) -> None:
    listed = json.loads(connmgr(crowded, tmp_path, "plugins", "--json").stdout)
    assert {kind["type"] for kind in listed["types"]} == {*BUNDLED, "sound"}
    assert {problem["distribution"] for problem in listed["problems"]} == REFUSED


def test_the_daemon_runs_and_reports_them(crowded: Path, start_daemon: StartDaemon) -> None:
    daemon = start_daemon(environment={"PYTHONPATH": str(crowded)})
    answer: Any = daemon.client.post("/connection/types")
    assert {kind["type"] for kind in answer["types"]} == {*BUNDLED, "sound"}
    assert {problem["distribution"] for problem in answer["problems"]} == REFUSED
    sound = next(kind for kind in answer["types"] if kind["type"] == "sound")
    assert (sound["distribution"], sound["version"]) == ("connmgr-sound", "1.2")
    assert "contested" in daemon.stderr()
    local: Any = daemon.client.post("/connection/query", categoryFilter="*", connectionFilter="*", typeFilter="local")
    daemon.client.post("/shell/start", connection=local["found"][0])
    result: Any = daemon.client.post("/shell/exec", connection=local["found"][0], command="echo works")
    assert result["stdout"] == "works"


LOUD = """
print("imported")

class Loud(Sound):
    name = "loud"

    def prepare(self, directory):
        print("prepared")
        raise SystemExit(3)

@hookimpl
def connmgr_connection_types():
    print("asked")
    return [Loud()]
"""


def test_output_of_plugins_stays_off_stdout_and_their_exit_does_not_end_the_daemon(
    tmp_path: Path, start_daemon: StartDaemon
) -> None:
    install(tmp_path / "site", SOUND + LOUD, "connmgr-loud")
    daemon = start_daemon(environment={"PYTHONPATH": str(tmp_path / "site")})
    assert "imported\nasked\nprepared\n" in daemon.stderr()
    answer: Any = daemon.client.post("/connection/types")
    assert "loud" in {kind["type"] for kind in answer["types"]}
    assert [problem["reason"] for problem in answer["problems"]] == ["prepare: SystemExit: 3"]
    listed = connmgr(tmp_path / "site", tmp_path, "plugins", "--json")
    assert json.loads(listed.stdout)["problems"] == []
    assert "imported\nasked\n" in listed.stderr


def test_a_plugin_s_interrupt_does_not_end_the_daemon(tmp_path: Path, start_daemon: StartDaemon) -> None:
    install(tmp_path / "site", "raise KeyboardInterrupt", "connmgr-interrupting")
    daemon = start_daemon(environment={"PYTHONPATH": str(tmp_path / "site")})
    answer: Any = daemon.client.post("/connection/types")
    assert [problem["reason"] for problem in answer["problems"]] == ["KeyboardInterrupt: "]


def test_a_user_s_interrupt_ends_a_command_that_loads_plugins(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "import os, signal\nos.kill(os.getpid(), signal.SIGINT)", "connmgr-slow", entry="slow")
    with pytest.raises(KeyboardInterrupt):
        Registry.load()
    assert "Interrupted while the plugin slow of connmgr-slow was loaded." in caplog.messages


def test_a_slow_plugin_is_named_while_it_loads(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = tmp_path / "said"
    waiting = f"""
import pathlib, time
deadline = time.monotonic() + 20
while not pathlib.Path({str(said)!r}).exists():
    assert time.monotonic() < deadline, "nothing was said meanwhile"
    time.sleep(0.01)
"""
    install(site, waiting + SOUND.replace("NAME", "sound"), "connmgr-slow", entry="slow")
    monkeypatch.setattr(registry_module, "SLOW_SECONDS", 0.01)
    monkeypatch.setattr(
        registry_module.logger,
        "warning",
        lambda message, *values: "connmgr-slow" in values and said.write_text(message % values),
    )
    registry = Registry.load()
    assert registry.problems == []
    assert said.read_text() == "Plugin slow of connmgr-slow: loading it takes more than 0.01 s."


def test_a_connection_whose_plugin_was_removed_stays_and_names_the_missing_type(
    crowded: Path, start_daemon: StartDaemon
) -> None:
    before = start_daemon(environment={"PYTHONPATH": str(crowded)})
    added: Any = before.client.post("/connection/add", name="kept", data={"type": "sound"}, validate=False)
    before.stop()
    after = start_daemon(home=before.home)
    infos: Any = after.client.post("/connection/info", connections=[added["connection"]])
    assert (infos["infos"][0]["type"], infos["infos"][0]["usageCategory"]) == ("sound", None)
    with pytest.raises(ClientError) as refusal:
        after.client.post("/shell/start", connection=added["connection"])
    assert refusal.value.code == "unknown_type"


def test_a_registry_can_be_made_of_types_for_a_test() -> None:
    registry = Registry([Registered(InMemory({}), "tests", "0")])
    assert types(registry) == {"memory": "tests"}
