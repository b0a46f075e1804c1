"""The scripts of the far side and the engine use the same words, and every placeholder is filled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connmgr.engine import words
from connmgr.engine.boot import boot_script
from connmgr.engine.dialects import DIALECTS
from connmgr.engine.frame import Command, Interpreter, build_frame, build_plain_frame
from connmgr.engine.greeting import greeting

ENGINE = Path(words.__file__).parent
NONCE = "N" * 22
BLANK = re.compile(rb"@\w+@")
FUNCTION = re.compile(rb"(_cm_\w+)\(\)")
CALLED = {value for value in vars(words).values() if isinstance(value, bytes)}
SUPERVISING = [dialect for dialect in DIALECTS if not dialect.interpreter]


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("dialect", SUPERVISING, ids=lambda dialect: dialect.names[0])
def test_a_greeting_defines_what_frames_call(dialect: object, merged: bool) -> None:
    text = greeting(dialect, NONCE, merged=merged)  # type: ignore[arg-type]
    missing = CALLED - set(FUNCTION.findall(text))
    assert missing <= ({words.HOLD, words.FREE} if not dialect.hold else set()), missing  # type: ignore[attr-defined]
    assert not BLANK.search(text), "a blank of the greeting is not filled in"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])
def test_a_frame_calls_what_a_greeting_defines(dialect: object) -> None:
    language = dialect.interpreter  # type: ignore[attr-defined]
    interpreter = Interpreter("/bin/shell", language) if language else None
    command = Command(b"echo", b"input", directory=b"/", environment={"A": "b"})
    frames = [
        build_frame(dialect, command, NONCE, "c.1", interpreter),  # type: ignore[arg-type]
        build_frame(dialect, Command(b"echo"), NONCE, "c.1", interpreter),  # type: ignore[arg-type]
        build_frame(dialect, Command(argv=(b"-x",)), NONCE, "c.1", interpreter),  # type: ignore[arg-type]
        build_plain_frame(Command(b"echo a; echo b"), NONCE, "c.1") or b"",
    ]
    for frame in frames:
        assert set(re.findall(rb"(?<!_)_cm_(?!streams|limit|[qrs]\b)\w+", frame)) <= CALLED
        assert not BLANK.search(frame), "a blank of the frame is not filled in"


def test_no_function_is_defined_twice_under_another_name() -> None:
    defined = {name for file in (ENGINE / "far").glob("*.sh") for name in FUNCTION.findall(file.read_bytes())}
    own = {b"_cm_raw", b"_cm_say"}
    assert defined == CALLED | own, "words.py names each function that a frame may call"


def test_the_boot_script_stands_within_single_quotes() -> None:
    text = boot_script()
    assert not set("'\n!") & set(text)
    assert not BLANK.search(text.encode())
