"""Messages: their declaration, their JSON, and the schemas that are derived from them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Annotated, ClassVar

import pytest
from marshmallow import Schema, ValidationError

from connmgr.api.app import endpoints
from connmgr.api.schema import MessageSchema, schema_of
from connmgr.contract.common import AwaitsApproval, ShellNamed
from connmgr.contract.job import JobInfo, JobInputRequest
from connmgr.contract.message import (
    ABSENT,
    ID,
    MODE,
    NULLABLE,
    PATH,
    SECRET,
    Absent,
    Json,
    Length,
    Message,
    OneOf,
    Range,
    Wrong,
    fields_of,
    from_json,
    replace,
    to_json,
)

NOON = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


class Inner(Message):
    count: Annotated[int, Range(0, 9), "How many."]


class Everything(Message):
    limit: ClassVar[int] = 3

    id: Annotated[str, Json("thing"), ID, "Its uuid."]
    max_bytes: Annotated[int, Range(1, 100), "Most bytes."] = 50
    kind: Annotated[str, OneOf(("a", "b")), "Its kind."] = "a"
    path: Annotated[bytes | None, PATH, "A path."] = None
    mode: Annotated[int | None, MODE, "Permissions."] = None
    since: Annotated[str | None, "Since when."]
    at: Annotated[datetime | None, "When."] = None
    inner: Annotated[tuple[Inner, ...], Length(max=2), "Some of them."] = ()
    by_name: Annotated[Mapping[str, int] | None, "By name."] = None
    lines: Annotated[int | None, NULLABLE, "Lines."] = None
    log: Annotated[str | Absent | None, "A log."] = ABSENT
    password: Annotated[str | None, SECRET, "A secret."] = None

    def check(self) -> None:
        super().check()
        if self.kind == "b" and self.path is None:
            raise Wrong("Needs path.", "kind")


WHOLE = {
    "thing": "f0ec68aa-63f5-405c-b178-9a4454556d6b",
    "maxBytes": 7,
    "kind": "b",
    "path": {"base64": "/w=="},
    "mode": "0640",
    "since": None,
    "inner": [{"count": 1}, {"count": 2}],
    "byName": {"x": 1},
    "lines": 3,
    "log": None,
    "password": "hush",
}


def test_json_becomes_a_message_and_the_same_json_again() -> None:
    sent = {**WHOLE, "at": "2026-01-31T12:00:00.000000Z"}
    read = from_json(Everything, sent)
    assert (read.path, read.mode, read.at, read.inner[1].count) == (b"\xff", 0o640, NOON, 2)
    assert to_json(read) == sent


def test_the_schema_loads_the_same_message_that_a_client_reads() -> None:
    loaded = schema_of(Everything)().load(WHOLE)
    assert to_json(loaded) == to_json(from_json(Everything, WHOLE)) == WHOLE


WITH_EXAMPLES = {one.path: one for one in endpoints() if one.described and one.example is not None and one.request}


@pytest.mark.parametrize("path", WITH_EXAMPLES)
def test_a_request_is_loaded_as_marshmallow_itself_loads_it(path: str) -> None:
    schema, example = WITH_EXAMPLES[path].request, dict(WITH_EXAMPLES[path].example or {})
    assert schema is not None
    assert schema.load(example) == Schema.load(schema, example)


def test_what_is_absent_is_left_out_and_null_is_not() -> None:
    message = Everything(id="x", since=None)
    assert to_json(message) == {"thing": "x", "maxBytes": 50, "kind": "a", "since": None, "inner": [], "lines": None}
    assert from_json(Everything, {"thing": "x", "since": None}) == message
    assert from_json(Everything, {"thing": "x", "since": None, "log": None}).log is None
    assert not message.log


@pytest.mark.parametrize(
    ("change", "errors"),
    [
        ({"maxBytes": 0}, {"maxBytes"}),
        ({"maxBytes": True}, {"maxBytes"}),
        ({"maxBytes": None}, {"maxBytes"}),
        ({"max_bytes": 5}, {"max_bytes"}),
        ({"kind": "c"}, {"kind"}),
        ({"kind": "b", "path": None}, {"path"}),
        ({"path": ""}, {"path"}),
        ({"mode": "9"}, {"mode"}),
        ({"inner": [{"count": 10}]}, {"inner"}),
        ({"inner": [{"count": 1}] * 3}, {"inner"}),
        ({"inner": [{"count": 1, "more": 1}]}, {"inner"}),
        ({"byName": {"x": "1"}}, {"byName"}),
        ({"thing": "a\ud800"}, {"thing"}),
        ({"unknown": 1}, {"unknown"}),
    ],
)
def test_the_schema_refuses_and_names_the_field_as_in_json(change: Mapping[str, object], errors: set[str]) -> None:
    with pytest.raises(ValidationError) as refused:
        schema_of(Everything)().load({**WHOLE, **change})
    assert set(refused.value.normalized_messages()) == errors


def test_fields_that_contradict_each_other_are_refused_by_the_check_of_each_class() -> None:
    with pytest.raises(ValidationError) as refused:
        schema_of(Everything)().load({"thing": "x", "since": None, "kind": "b"})
    assert refused.value.normalized_messages() == {"kind": ["Needs path."]}
    with pytest.raises(ValidationError) as refused:
        schema_of(JobInputRequest)().load({"job": "x", "data": "*", "encoding": "base64"})
    assert refused.value.normalized_messages() == {"data": ["Not valid base64."]}


def test_a_message_does_not_change_and_a_changed_one_is_another() -> None:
    message = Everything(id="x", since=None)
    with pytest.raises(AttributeError, match="do not change"):
        message.kind = "b"  # type: ignore[misc]
    assert replace(message, kind="b").kind == "b"
    assert replace(message, max_bytes=3) == Everything(id="x", since=None, max_bytes=3)
    assert message == Everything(id="x", since=None)
    assert message != Everything(id="y", since=None)
    assert hash(Inner(count=1)) == hash(Inner(count=1))


def test_a_message_names_missing_and_unknown_fields() -> None:
    with pytest.raises(TypeError, match="Everything: missing or unknown: colour, since"):
        Everything(id="x", colour="red")  # type: ignore[call-arg]


def test_a_repr_does_not_show_secrets() -> None:
    assert "hush" not in repr(from_json(Everything, WHOLE))


class Child(ShellNamed, AwaitsApproval):
    connection: Annotated[str, ID, "Another."] = "none"


def test_a_child_declares_a_field_anew() -> None:
    assert Child().connection == "none"
    descriptions = {field.name: field.description for field in fields_of(Child)}
    assert descriptions["connection"] == "Another."
    assert schema_of(Child)().load({"session": "s", "wait": 2}) == Child(connection="none", session="s", wait=2.0)


def test_a_command_that_is_not_shown_has_a_sentence_in_its_place() -> None:
    info = {
        "job": "3f0e4f0a-8f3c-4b5e-9c55-0a51c0f8d0b7",
        "connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b",
        "session": None,
        "name": None,
        "key": None,
        "command": None,
        "locked": True,
        "state": "running",
        "exitCode": None,
        "stdinOpen": False,
        "created": "2026-01-31T12:00:00.000000Z",
        "ended": None,
        "keep": 60,
        "stale": False,
    }
    assert JobInfo.read(info).text == "(not shown: the secrets of its connection are locked)"
    assert JobInfo.read({**info, "command": ["echo", "a b"]}).text == "echo 'a b'"


def _messages() -> Iterator[type[Message]]:
    for endpoint in endpoints():
        for schema in (endpoint.request, endpoint.response, endpoint.lines):
            if isinstance(schema, MessageSchema):
                yield schema.made_of


@pytest.mark.parametrize(
    "kind", sorted(set(_messages()), key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__
)
def test_every_field_of_a_message_is_described(kind: type[Message]) -> None:
    nested = ("cursor", "stdout", "stderr", "keys", "encrypted", "decrypted", "auth", "client")
    assert [field.name for field in fields_of(kind) if not field.description and field.name not in nested] == []


def test_every_endpoint_declares_its_messages_in_the_contract() -> None:
    for endpoint in endpoints():
        for schema in (endpoint.request, endpoint.response, endpoint.lines):
            assert schema is None or isinstance(schema, MessageSchema), endpoint.path


def test_the_contract_loads_no_heavy_module() -> None:
    code = "import sys, connmgr.contract.shell, connmgr.contract.connection; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"dataclasses", "inspect", "marshmallow", "json"}.isdisjoint(loaded)
