"""Durations: one syntax for options, settings, environment and file."""

from __future__ import annotations

from pathlib import Path

import pytest

from connmgr.durations import parse_duration
from connmgr.errors import StartupError
from connmgr.settings import load
from tests.cli.program import CommandLine


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        (".5", 0.5),
        ("30s", 30),
        ("0.5s", 0.5),
        ("5m", 300),
        ("5min", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("1d2h3m4s", 93784),
        ("2w", 1209600),
        (" 5m ", 300),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", " ", "5x", "m", "5 m", "-5", "1e3", "5m1h", "5m5m", "nan", "inf", "٣s", "1_0", "0x5", "5S"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give seconds, or a time such as 30s, 5m, 1h30m or 2d"):
        parse_duration(text)


@pytest.mark.parametrize(("written", "seconds"), [("'90s'", 90), ("'1h30m'", 5400), ("90", 90), ("1.5", 1.5)])
def test_settings_take_durations_everywhere(tmp_path: Path, written: str, seconds: float) -> None:
    (tmp_path / "config.toml").write_text(f"idle-timeout = {written}")
    text = written.strip("'")
    assert load({}, {}, tmp_path / "config.toml").idle_timeout == seconds
    (tmp_path / "config.toml").write_text("")
    assert load({}, {"CONNMGR_IDLE_TIMEOUT": text}, tmp_path / "config.toml").idle_timeout == seconds
    assert load({"idle_timeout": text}, {}, tmp_path / "config.toml").idle_timeout == seconds


def test_a_number_of_days_may_have_a_unit(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    days = [load({"recording_days": text}, {}, tmp_path / "config.toml").recording_days for text in ("30", "2w", "12h")]
    assert days == [30, 14, 0.5]


def test_a_bad_setting_is_named_with_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("idle-timeout = '5x'")
    with pytest.raises(StartupError) as refused:
        load({}, {}, tmp_path / "config.toml")
    assert "'5x' (not a duration: give seconds, or a time such as 30s, 5m, 1h30m or 2d)" in refused.value.message


def test_options_take_them_and_say_what_they_refuse(connmgr: CommandLine) -> None:
    killed = connmgr("exec", "--timeout", "0.2s", "local", "--", "sleep", "100", code=124)
    assert "0.2 s" in killed.errors
    assert connmgr("exec", "--timeout", "1h30m", "local", "--", "echo", "done").output == "done\n"
    for text, reason in (("5x", "is not a duration: give seconds, or a time such as"), ("0", "more than 0s")):
        refused = connmgr("exec", "--timeout", text, "local", "--", "true", code=125).errors
        assert reason in refused
    assert "at most 90d" in connmgr("token", "create", "--for", "x", "--expires", "91d", code=2).errors
