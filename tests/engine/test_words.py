"""The scripts of the remote host and the engine use the same words, and every placeholder is filled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connmgr.engine import dialects
from connmgr.engine.dialects import DIALECTS, Interpreter
from connmgr.engine.envelope import Command, build_envelope, build_plain_envelope
from connmgr.engine.start import boot_script, greeting

ENGINE = Path(dialects.__file__).parent
NONCE = "N" * 22
BLANK = re.compile(rb"@\w+@")
FUNCTION = re.compile(rb"(_cm_\w+)\(\)")
CALLED = {value for value in vars(dialects).values() if isinstance(value, bytes)}
SUPERVISING = [dialect for dialect in DIALECTS if not dialect.interpreter]


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("dialect", SUPERVISING, ids=lambda dialect: dialect.names[0])
def test_a_greeting_defines_what_envelopes_call(dialect: object, merged: bool) -> None:
    text = greeting(dialect, NONCE, merged=merged)  # type: ignore[arg-type]
    missing = CALLED - set(FUNCTION.findall(text))
    assert missing <= ({dialects.HOLD, dialects.FREE} if not dialect.hold else set()), missing  # type: ignore[attr-defined]
    assert not BLANK.search(text), "a blank of the greeting is not filled in"


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.names[0])
def test_an_envelope_calls_what_a_greeting_defines(dialect: object) -> None:
    language = dialect.interpreter  # type: ignore[attr-defined]
    interpreter = Interpreter("/bin/shell", language) if language else None
    command = Command(b"echo", b"input", directory=b"/", environment={"A": "b"})
    envelopes = [
        build_envelope(dialect, command, NONCE, "c.1", interpreter),  # type: ignore[arg-type]
        build_envelope(dialect, Command(b"echo"), NONCE, "c.1", interpreter),  # type: ignore[arg-type]
        build_envelope(dialect, Command(argv=(b"-x",)), NONCE, "c.1", interpreter),  # type: ignore[arg-type]
        build_plain_envelope(Command(b"echo a; echo b"), NONCE, "c.1") or b"",
    ]
    for envelope in envelopes:
        assert set(re.findall(rb"(?<!_)_cm_(?!streams|limit|[qrs]\b)\w+", envelope)) <= CALLED
        assert not BLANK.search(envelope), "a blank of the envelope is not filled in"


def test_no_function_is_defined_twice_under_another_name() -> None:
    defined = {name for file in (ENGINE / "scripts").glob("*.sh") for name in FUNCTION.findall(file.read_bytes())}
    own = {b"_cm_raw", b"_cm_say"}
    assert defined == CALLED | own, "dialects.py names each function that an envelope may call"


def test_the_boot_script_stands_within_single_quotes() -> None:
    text = boot_script()
    assert not set("'\n!") & set(text)
    assert not BLANK.search(text.encode())
