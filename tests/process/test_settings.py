"""Settings: which source takes precedence, and that each bad value is named with its source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import connmgr
from connmgr.client.credentials import from_environment
from connmgr.errors import StartupError
from connmgr.paths import CLIENT_VARIABLES, CREDENTIAL_VARIABLES
from connmgr.settings import Settings, load, options

ROOT = Path(connmgr.__file__).parent


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(config: Path) -> None:
    config.write_text('port = 1\nthreads = 1\nlog-level = "error"\n')
    environment = {"CONNMGR_CONFIG": str(config), "CONNMGR_PORT": "2", "CONNMGR_THREADS": "2"}
    settings = load({"port": "3", "threads": None}, environment)
    assert (settings.port, settings.threads, settings.log_level, settings.host) == (3, 2, "error", "127.0.0.1")


def test_every_option_can_be_set_in_every_source(config: Path) -> None:
    values: dict[str, tuple[str, str, Any]] = {}
    for option in options():
        match str(option.type):
            case "int" | "float":
                values[option.name] = ("2048", "2048", 2048)
            case "bool":
                values[option.name] = ("true", "true", True)
            case "Path" | "Path | None":
                values[option.name] = ("/srv/x", '"/srv/x"', Path("/srv/x"))
            case "tuple[str, ...]":
                values[option.name] = ("a, b:1", '["a", "b:1"]', ("a", "b:1"))
            case _:
                text = (
                    option.metadata["choices"][-1] if option.metadata["choices"] else f"{option.metadata['start']}text"
                )
                values[option.name] = (text, f'"{text}"', text)
    at_most = {option.name: option.metadata["at_most"] for option in options()}
    for name, (text, toml, expected) in values.items():
        if at_most[name] is not None and isinstance(expected, int) and expected > at_most[name]:
            text, toml, expected = "1", "1", 1
        for spelt in (name, name.replace("_", "-")):
            config.write_text(f"{spelt} = {toml}\n")
            assert getattr(load({}, {}, config), name) == expected
        config.write_text("")
        assert getattr(load({}, {f"CONNMGR_{name.upper()}": text}, config), name) == expected
        assert getattr(load({name: text}, {}, config), name) == expected


@pytest.mark.parametrize("value", ["", " "])
def test_an_empty_value_does_not_mean_the_default(config: Path, value: str) -> None:
    config.write_text("")
    for option in options():
        variable = f"CONNMGR_{option.name.upper()}"
        with pytest.raises(StartupError, match=f"{variable} is empty"):
            load({}, {variable: value}, config)
        if str(option.type) in ("str", "Path", "Path | None"):
            with pytest.raises(StartupError, match="it is empty"):
                load({option.name: value}, {}, config)
    with pytest.raises(StartupError, match="CONNMGR_CONFIG is empty"):
        load({}, {"CONNMGR_CONFIG": value})


def test_a_misspelt_variable_is_refused_as_an_unknown_key_is(config: Path) -> None:
    for name, meant in (("CONNMGR_MAX_OUPUT", "MAX_OUTPUT"), ("CONNMGR_DATADIR", "DATA_DIR"), ("connmgr_port", "PORT")):
        with pytest.raises(StartupError, match=f"{name} is unknown. Is CONNMGR_{meant} meant"):
            load({}, {"CONNMGR_CONFIG": str(config), name: "1"})


def test_a_variable_of_others_is_none_of_the_settings(config: Path) -> None:
    config.touch()
    own = {name for path in ROOT.rglob("*.py") for name in re.findall(r"\bCONNMGR_[A-Z_]*[A-Z]\b", path.read_text())}
    assert {"CONNMGR_JOB", "CONNMGR_SESSION", "CONNMGR_APPROVER_TOKEN_FILE"} <= own
    known = {f"CONNMGR_{option.name.upper()}" for option in options()} | set(CLIENT_VARIABLES)
    others = dict.fromkeys([*(own - known), "CONNMGR_CI_TOKEN", "CONNMGR_HOME", "CONNMGR_URL"], "x")
    load({}, others | {"CONNMGR_CONFIG": str(config)})
    assert from_environment(others | dict.fromkeys(known - set(CREDENTIAL_VARIABLES), "x")) is None


def test_every_option_says_what_it_does() -> None:
    for option in options():
        assert len(option.metadata["help"]) > 10, option.name
        assert option.metadata["help"].rstrip("]").endswith((".", "directory")), option.name


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("port = ", "not valid TOML"),
        ("port = 1\nport = 2", "not valid TOML"),
        ("log-level = 'info'\nlog_level = 'info'", "unknown or repeated key: log-level"),
        ("[server]\nport = 1", "unknown or repeated key: server"),
        ("port = '1x'", "key port in"),
        ("port = true", "key port in"),
        ("port = 1.0", "key port in"),
        ("threads = -1", "at least 1"),
        ("debug = 1", "true or false"),
        ("debug = 'yes'", "true or false"),
        ("host = 1", "not a text"),
        ("idle-timeout = nan", "at least 0"),
        ("idle-timeout = inf", "not a finite number"),
        ("allowed-hosts = [1]", "not a list of texts"),
        ("data-dir = ''", "it is empty"),
        ("database-url = ''", "it is empty"),
        ("host = ' '", "it is empty"),
        ("key-store = 'paper'", "one of file, systemd-creds, keyring"),
        ("database-url = 'sqlite:///x'", "begins with postgresql"),
        ("\ufeffport = 1", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_and_says_why(config: Path, content: str, says: str) -> None:
    config.write_text(content)
    with pytest.raises(StartupError) as caught:
        load({}, {}, config)
    assert says in caught.value.message
    assert str(config) in caught.value.message


def test_a_named_file_must_exist_and_the_default_one_need_not(tmp_path: Path, config: Path) -> None:
    for named in (lambda: load({}, {}, config), lambda: load({}, {"CONNMGR_CONFIG": str(config)})):
        with pytest.raises(StartupError, match="does not exist"):
            named()
    config.mkdir()
    with pytest.raises(StartupError, match="cannot be read"):
        load({}, {}, config)


def test_a_password_in_a_url_is_never_printed(config: Path) -> None:
    for url in ("postgresql://u:hunter2@h/\0", "mysql://u:hunter2@h/x"):
        with pytest.raises(StartupError) as caught:
            load({}, {"CONNMGR_DATABASE_URL": url}, _empty(config))
        assert "hunter2" not in caught.value.message
        assert "CONNMGR_DATABASE_URL" in caught.value.message


def test_paths_are_absolute_and_know_the_home_directory(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir("/")
    settings = load({"data_dir": "vault"}, {"CONNMGR_AUTH_FILE": "~/auth"}, _empty(config))
    assert (settings.data_dir, settings.auth_file) == (Path("/vault"), Path("/home/someone/auth"))


def test_the_auth_file_is_in_the_runtime_directory_or_the_state_directory(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert load({}, {"XDG_RUNTIME_DIR": "/run/user/7"}, _empty(config)).auth_file == Path("/run/user/7/connmgr/auth")
    for runtime in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}):
        assert load({}, {"XDG_STATE_HOME": "/state", **runtime}, config).auth_file == Path("/state/connmgr/auth")


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Settings().port = 1  # type: ignore[misc]


def _empty(config: Path) -> Path:
    config.write_text("")
    return config
