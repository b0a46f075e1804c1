"""The two shapes of errors, strict JSON, and the statuses of HTTP itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from connmgr.daemon.parser import SMALL_BODY_BYTES
from connmgr.errors import VaultUnavailable
from tests.api.wire import LOCAL, NOBODY, Answer, bearer, send
from tests.conftest import StartDaemon
from tests.daemon import Daemon


@pytest.fixture(scope="module")
def headers(daemon: Daemon) -> dict[str, str]:
    return bearer(daemon)


def assert_request_error(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/json")
    assert set(answer.json) == {"message", "code"}
    assert answer.code == code
    assert answer.message


def test_a_request_at_fault_has_the_flat_shape(daemon: Daemon, headers: dict[str, str]) -> None:
    answer = send(daemon.url, "/shell/exec", {"connection": NOBODY, "command": "true"}, headers)
    assert_request_error(answer, 400, "unknown_connection")
    assert answer.message == f"Unknown connection: {NOBODY}"


def test_a_name_in_place_of_a_uuid_is_told_what_to_do(daemon: Daemon, headers: dict[str, str]) -> None:
    answer = send(daemon.url, "/shell/exec", {"connection": "web1", "command": "true"}, headers)
    assert_request_error(answer, 400, "unknown_connection")
    assert answer.message == (
        "Unknown connection: web1. A connection is named by its uuid, which /connection/query finds."
    )


def test_a_failed_operation_has_the_nested_shape(daemon: Daemon, headers: dict[str, str]) -> None:
    send(daemon.url, "/shell/start", {"connection": LOCAL}, headers)
    answer = send(daemon.url, "/shell/exec", {"connection": LOCAL, "command": "sleep 60", "timeout": 0.2}, headers)
    assert answer.status == 500
    assert set(answer.json) == {"error"}
    error = answer.json["error"]
    always = {"message", "localizedMessage", "cause", "stackTrace", "suppressed", "code"}
    assert always <= set(error)
    assert (error["code"], error["cause"], error["stackTrace"], error["suppressed"]) == ("command_timeout", {}, [], [])
    assert error["message"] == error["localizedMessage"]


def test_with_debug_a_failed_operation_shows_its_traceback(start_daemon: StartDaemon) -> None:
    daemon = start_daemon("--debug")
    headers = bearer(daemon)
    send(daemon.url, "/shell/start", {"connection": LOCAL}, headers)
    answer = send(daemon.url, "/shell/exec", {"connection": LOCAL, "command": "sleep 60", "timeout": 0.2}, headers)
    assert any("CommandTimeout" in line for line in answer.json["error"]["stackTrace"])


DEEP = b'{"filter":' + b"[" * 40 + b"]" * 40 + b"}"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"filter":"*"} x', "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"filter":"*","filter":"x"}', "filter: This name occurs more than once"),
        (b'{"filter":"*","a":{"b":1,"b":2}}', "b: This name occurs more than once"),
        (b'{"filter":"*","a":[0,{"b":{"c":0}},{"b":{"c":1,"c":2}}]}', "a.2.b.c: This name occurs more than once"),
        (b'{"filter":"*","\\"{[":{"a":"NaN","b":NaN}}', '"{[.b: NaN is not a JSON number'),
        (b'{"filter":"*","a":[1,[2],{"b":-1e999}]}', "a.2.b: The number is too large"),
        (b'{"filter":"*","a":{"b":' + b"9" * 401 + b"}}", "a.b: A number may have at most 400 digits"),
        (b'{"filter":"*","a":{"b":' + b"[" * 31 + b"]" * 31 + b"}}", "a.b" + 30 * ".0" + ": This is nested deeper"),
        (b'{"filter":"*","a":[' + b'{"b":' * 40_000, "a.0" + 30 * ".b" + ": This is nested deeper"),
        (b'{"filter":NaN}', "NaN"),
        (b'{"filter":NaNx}}', "filter: NaN"),
        (b'{"a":[1,-Infinitya]]]]', "a.1: -Infinity"),
        (b'{"a":1e999.},1', "a: The number is too large"),
        # Too deep and too far for the message to name the place.
        (b'{"a":' * 900 + b'{"b":1,"b":2}' + b"}" * 900, "b: This name occurs more than once"),
        (b'{"filter":"' + b"x" * 70_000 + b'","a":NaN}', "The request body: NaN"),
        (b'{"filter":"' + b"x" * 70_000 + b'","a":' + b"[" * 40 + b"]" * 40 + b"}", "The request body: This is nested"),
        (b'{"filter":Infinity}', "Infinity"),
        (b'{"filter":-Infinity}', "-Infinity"),
        (b'{"filter":1e999}', "too large"),
        (b'{"filter":' + b"9" * 5000 + b"}", "digits"),
        (DEEP, "nested deeper than 32"),
        (b'{"filter":' + b"[" * 30_000, "nested deeper than 32"),
        (b'{"a":' * 30_000, "nested deeper than 32"),
        (b'{"filter":"\xff"}', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (json.dumps({"filter": "*"}).encode("utf-16"), "not UTF-8"),
        (b'{"filter":"\\ud800"}', "filter: Not a valid string: it holds a lone surrogate"),
        (b'{"filter":"a\\u0000b"}', "filter: A NUL character"),
        (b'{"filter":true}', "filter: Not a valid string"),
        (b'{"filter":null}', "filter: Field may not be null"),
        (b'{"filter":"*","more":1}', "more: Unknown field"),
        (b'{"\\ud800":1,"filter":"*"}', "Unknown field"),
        (b"{}", "filter: Missing data"),
        (b'{"filter":"[a"}', "filter: The filter has a [ without"),
    ],
)
def test_bad_json_is_refused_and_says_where(daemon: Daemon, headers: dict[str, str], body: bytes, says: str) -> None:
    takes_content = "/secret/decrypt"
    answer = send(daemon.url, takes_content if len(body) > SMALL_BODY_BYTES else "/category/query", body, headers)
    assert_request_error(answer, 400, "invalid_request")
    assert says in answer.message


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/connection/query", {"categoryFilter": "[", "connectionFilter": "*", "typeFilter": "*"}, "categoryFilter"),
        ("/connection/query", {"categoryFilter": "*", "connectionFilter": "{", "typeFilter": "*"}, "connectionFilter"),
        ("/connection/query", {"categoryFilter": "*", "connectionFilter": "*", "typeFilter": "x" * 1001}, "typeFilter"),
        ("/store/query", {"categoryFilter": "*", "storeFilter": "[", "typeFilter": "*"}, "storeFilter"),
        ("/connection/add", {"name": "x", "data": {"\ud800": 1}}, "data."),
        ("/vault/user/add", {"user": "a", "passphrase": "short"}, "passphrase"),
        ("/vault/user/passphrase", {"user": "a", "passphrase": "x", "newPassphrase": "short"}, "newPassphrase"),
    ],
)
def test_a_field_among_others_of_its_kind_is_named(
    daemon: Daemon, headers: dict[str, str], path: str, body: dict[str, Any], named: str
) -> None:
    answer = send(daemon.url, path, body, headers)
    assert_request_error(answer, 400, "invalid_request")
    assert answer.message.startswith(named)


def test_32_levels_are_accepted_and_33_are_not(daemon: Daemon, headers: dict[str, str]) -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)

    assert "Unknown field" in send(daemon.url, "/category/query", nested(32), headers).message
    assert "nested deeper" in send(daemon.url, "/category/query", nested(33), headers).message


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": 86401}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": 10**300}, "timeout"),
        ({"cwd": ""}, "cwd"),
        ({"cwd": "a\0b"}, "cwd"),
        ({"env": {"A B": "x"}}, "env.A B"),
        ({"env": {"A\n": "x"}}, "env.A\n"),
        ({"env": {"": "x"}}, "env."),
        ({"env": {"A": 1}}, "env.A"),
        ({"env": {"A": "a\0b"}}, "env.A"),
        ({"env": []}, "env"),
        ({"encoding": "latin-1"}, "encoding"),
        ({"encoding": "base64", "stdin": "a"}, "stdin"),
        ({"encoding": "base64", "stdin": "YQ==\n"}, "stdin"),
        ({"stdin": 1}, "stdin"),
        ({"command": "a\0b"}, "command"),
        ({"command": None}, "command"),
        ({"connection": "x" * 200}, "connection"),
        ({"connection": [LOCAL]}, "connection"),
        ({"user": "root"}, "user"),
    ],
)
def test_a_bad_field_of_a_command_is_named(
    daemon: Daemon, headers: dict[str, str], fields: dict[str, Any], named: str
) -> None:
    answer = send(daemon.url, "/shell/exec", {"connection": LOCAL, "command": "true", **fields}, headers)
    assert_request_error(answer, 400, "invalid_request")
    assert answer.message.startswith(f"{named}: ")


def test_an_endpoint_that_takes_nothing_accepts_nothing_and_an_empty_object(
    daemon: Daemon, headers: dict[str, str]
) -> None:
    assert send(daemon.url, "/daemon/version", None, {**headers, "Content-Type": ""}).status == 200
    assert send(daemon.url, "/daemon/version", {}, headers).status == 200
    assert_request_error(send(daemon.url, "/daemon/version", {"a": 1}, headers), 400, "invalid_request")
    assert_request_error(send(daemon.url, "/daemon/version", b"x", headers), 400, "invalid_request")


@pytest.mark.parametrize(
    "content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin-1", "x"]
)
def test_another_media_type_is_refused(daemon: Daemon, headers: dict[str, str], content_type: str) -> None:
    answer = send(daemon.url, "/category/query", {"filter": "*"}, {**headers, "Content-Type": content_type})
    assert_request_error(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("path", ["/category/query", "/fs/blob", f"/fs/upload?connection={LOCAL}&path=/none/x"])
def test_a_compressed_body_is_refused_also_where_it_is_the_content_of_a_file(
    daemon: Daemon, headers: dict[str, str], path: str
) -> None:
    answer = send(daemon.url, path, {"filter": "*"}, {**headers, "Content-Encoding": "gzip"})
    assert_request_error(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"'],
)
def test_json_may_be_declared_in_every_way(daemon: Daemon, headers: dict[str, str], content_type: str) -> None:
    assert send(daemon.url, "/category/query", {"filter": "*"}, {**headers, "Content-Type": content_type}).status == 200


@pytest.mark.parametrize(
    "path", ["/nothing", "/shell", "/shell/", "/shell/exec/", "/../etc/passwd", "/%00", "/SHELL/EXEC"]
)
def test_another_path_is_not_found(daemon: Daemon, headers: dict[str, str], path: str) -> None:
    assert_request_error(send(daemon.url, path, {}, headers), 404, "not_found")
    assert_request_error(send(daemon.url, path, {}), 404, "not_found")


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_another_method_is_not_allowed(daemon: Daemon, headers: dict[str, str], method: str) -> None:
    answer = send(daemon.url, "/shell/exec", None, headers, method=method)
    assert (answer.status, answer.headers["Allow"]) == (405, "POST")
    if method != "HEAD":
        assert_request_error(answer, 405, "method_not_allowed")


@pytest.mark.parametrize("method", ["POST", "PUT", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json"])
def test_the_documentation_is_only_read(daemon: Daemon, headers: dict[str, str], path: str, method: str) -> None:
    assert_request_error(send(daemon.url, path, None, headers, method=method), 405, "method_not_allowed")


def test_every_answer_carries_the_headers_that_keep_it_out_of_caches_and_pages(
    daemon: Daemon, headers: dict[str, str]
) -> None:
    answers = [
        send(daemon.url, "/daemon/version", {}, headers),
        send(daemon.url, "/nothing", {}),
        send(daemon.url, "/vault/lock", {}, headers),
        send(daemon.url, "/", method="GET"),
        send(daemon.url, "/daemon/version", {}, {"Host": "evil.example"}),
    ]
    assert [answer.status for answer in answers] == [200, 404, 200, 200, 421]
    for answer in answers:
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert not {"Server", "Set-Cookie", "Access-Control-Allow-Origin", "Via"} & set(answer.headers)
    assert {answer.headers["Content-Type"] for answer in answers[:3]} == {"application/json"}


def test_an_answer_without_content_has_an_empty_body(daemon: Daemon, headers: dict[str, str]) -> None:
    answer = send(daemon.url, "/vault/lock", {}, headers)
    assert (answer.status, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")


def test_what_a_token_is_not_told_leaves_the_kind_of_the_error() -> None:
    error = VaultUnavailable("The vault at db.example does not answer.", place="db.example")
    error.for_tokens = "The vault does not answer."
    veiled = error.veiled(error.for_tokens)
    # By its class a client is told when to try again.
    assert (type(veiled), veiled.code, veiled.status) == (VaultUnavailable, "vault_unavailable", 503)
    assert (veiled.message, str(veiled), veiled.details) == (error.for_tokens, error.for_tokens, {})
    assert error.message == "The vault at db.example does not answer."
