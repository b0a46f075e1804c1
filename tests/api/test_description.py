"""The description of the API, as data and as a page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import runpy
import subprocess
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.api.wire import LOCAL, bearer, send
from tests.daemon import Daemon

ROOT = Path(__file__).parent.parent.parent
TOKENLESS = {"/handshake", "/web/login", "/fs/download"}


@pytest.fixture(scope="module")
def description(daemon: Daemon) -> dict[str, Any]:
    answer = send(daemon.url, "/openapi.json", method="GET")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    described: dict[str, Any] = answer.json
    return described


def operations(description: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, methods in description["paths"].items() for operation in methods.values()]


def validator(description: dict[str, Any], schema: dict[str, Any]) -> Any:
    """Return what validates by ``schema``, with the schemas to which it leads: all of them take long to compile."""
    reached: dict[str, Any] = {}
    rest = [schema]
    while rest:
        for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(rest.pop())):
            if name not in reached:
                reached[name] = description["components"]["schemas"][name]
                rest.append(reached[name])
    return jsonschema_rs.Draft202012Validator({**schema, "components": {"schemas": reached}})


def test_every_operation_is_described_with_what_it_takes_and_answers(description: dict[str, Any]) -> None:
    assert description["openapi"] == "3.1.0"
    for path, operation in operations(description):
        assert operation["summary"], path
        statuses = set(operation["responses"])
        assert {"101" if "426" in statuses else "200", "400", "403", "421", "431", "500", "503"} <= statuses, path
        assert ("401" in statuses) == (path not in TOKENLESS)
        assert (operation.get("security") == []) == (path in TOKENLESS)


def test_every_schema_is_one_that_generators_of_clients_accept(description: dict[str, Any]) -> None:
    def parts(schema: Any) -> Iterator[dict[str, Any]]:
        if isinstance(schema, dict):
            yield schema
        for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
            yield from parts(part)

    for name, schema in description["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        for part in parts(schema):
            kinds = part.get("type")
            assert isinstance(kinds, dict) or "array" not in (kinds or ()) or "items" in part, name


def test_what_rules_and_step_ups_refuse_is_described(description: dict[str, Any]) -> None:
    def refusals(path: str) -> set[str]:
        (operation,) = description["paths"][path].values()
        return set(re.findall(r"`(\w+)`", operation["responses"]["403"]["description"]))

    asked = {"approval_required", "approval_denied"}
    for path in ("/shell/exec", "/run/start", "/job/start", "/fs/read", "/fs/write", "/fs/move"):
        assert refusals(path) >= asked | {"step_up_required"}, path
    assert refusals("/undo/restore") & asked == {"approval_required"}
    for path in ("/connection/add", "/shell/list", "/fs/extract"):
        assert not refusals(path) & asked, path


def test_every_schema_and_field_of_a_request_is_described(description: dict[str, Any]) -> None:
    for path, operation in operations(description):
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content:
            schema = resolved(description, content["schema"])
            assert schema["additionalProperties"] is False, path
            assert undescribed(description, schema, path) == []


def resolved(description: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref") or next((part["$ref"] for part in schema.get("allOf", ()) if "$ref" in part), "")
    found: dict[str, Any] = description["components"]["schemas"].get(reference.rpartition("/")[2], schema)
    return found


def undescribed(description: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
    """Return the fields of ``schema`` without a description, nested ones included."""
    missing = []
    for name, field in schema.get("properties", {}).items():
        if not field.get("description"):
            missing.append(f"{path} {name}")
        missing += undescribed(description, resolved(description, field), f"{path} {name}")
    return missing


def test_every_example_satisfies_its_schema(description: dict[str, Any]) -> None:
    seen = 0
    for _, operation in operations(description):
        bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
        for content in (body.get("content", {}).get("application/json", {}) for body in bodies):
            if "example" in content:
                validator(description, content["schema"]).validate(content["example"])
                seen += 1
    assert seen > 100


def test_what_runs_by_its_words_is_answered_as_described(daemon: Daemon, description: dict[str, Any]) -> None:
    client, schemas = daemon.client, description["components"]["schemas"]
    client.shell.start(LOCAL)
    job = client.post("/job/start", connection=LOCAL, argv=["true"])["job"]
    terminal = client.post("/terminal/open", connection=LOCAL, argv=["true"])
    for name, answer in (("JobInfo", client.post("/job/info", job=job)), ("TerminalInfo", terminal)):
        assert answer["command"] == ["true"]
        validator(description, schemas[name]).validate(answer)


def test_an_operation_with_fields_has_an_example_of_its_request_and_its_answer(description: dict[str, Any]) -> None:
    schemas = description["components"]["schemas"]
    for path, operation in operations(description):
        request = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        response = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
        for content in (request, response):
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            if schemas.get(name, {}).get("properties"):
                assert content.get("example") is not None, path


def test_the_codes_of_an_answer_are_named(description: dict[str, Any]) -> None:
    start = description["paths"]["/shell/start"]["post"]["responses"]
    assert "`host_refused`" in start["500"]["description"]
    assert "`busy`" in start["503"]["description"]


class Page(HTMLParser):
    """The references and elements of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.anchors: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert name != "style"
            if name in {"src", "href", "action", "data"}:
                self.references.append(value or "")
            if name == "id":
                self.anchors.add(value or "")


def test_the_page_shows_every_operation_and_takes_nothing_from_outside(
    daemon: Daemon, description: dict[str, Any]
) -> None:
    answer = send(daemon.url, "/docs", method="GET")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    html = answer.body.decode()
    page = Page(html)
    assert not {"link", "img", "iframe", "object", "form", "base"} & page.tags
    assert all(reference.startswith(("#", "/openapi.json")) or reference == "/" for reference in page.references)
    assert {reference[1:] for reference in page.references if reference.startswith("#")} <= page.anchors
    for each in description["paths"]:
        assert f"</small>{each}</h3>" in html
    for word in ("`", "{{", "{%"):
        assert word not in re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.DOTALL)


def test_the_page_allows_its_own_style_and_script_and_nothing_else(daemon: Daemon) -> None:
    answer = send(daemon.url, "/docs", method="GET")
    own = re.findall(r"<(style|script)>(.*?)</\1>", answer.body.decode(), re.DOTALL)
    assert [kind for kind, _ in own] == ["style", "script"]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for _, text in own]
    assert answer.headers["Content-Security-Policy"] == (
        f"default-src 'none'; style-src 'sha256-{digests[0]}'; script-src 'sha256-{digests[1]}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


@pytest.mark.needs("curl")
@pytest.mark.parametrize("runtime", [True, False])
def test_the_commands_of_the_page_run(daemon: Daemon, tmp_path: Path, runtime: bool) -> None:
    html = send(daemon.url, "/docs", method="GET").body.decode()
    commands = [unescape(text) for text in re.findall(r"<pre>(.*?)</pre>", html, re.DOTALL)]
    handshake, *others = [text for text in commands if "curl" in text]
    # The page names the address that it was asked at, whatever the reader's own settings say.
    assert all(f"curl -sS {daemon.url}/" in text for text in commands if "curl" in text)
    environment = daemon.environment | {"CONNMGR_PORT": "1"}
    if not runtime:
        del environment["XDG_RUNTIME_DIR"]
        place = tmp_path / ".local" / "state" / "connmgr"
        place.mkdir(parents=True)
        (place / "auth").write_text(daemon.auth_file.read_text())
        environment["HOME"] = str(tmp_path)

    def run(command: str) -> str:
        argv = ["sh", "-eu", "-c", command]
        return subprocess.run(
            argv, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
        ).stdout

    assert run(handshake) == ""
    assert (tmp_path / "headers").stat().st_mode & 0o077 == 0
    for path, member in (("/connection/query", "found"), ("/secret/encrypt", "encrypted"), ("/vault/lock", None)):
        (command,) = (text for text in others if f"{path} " in text)
        answer = run(command)
        assert list(json.loads(answer)) == [member] if member else answer == ""


def test_the_reference_in_the_documentation_is_this_description(description: dict[str, Any]) -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "api-reference"))
    written = (ROOT / "docs" / "API.md").read_text().partition(script["BEGIN"])[2]
    assert written == "\n" + script["reference"](description), "run scripts/api-reference"


def test_the_description_has_no_secrets_or_places_of_this_daemon(daemon: Daemon, description: dict[str, Any]) -> None:
    text = json.dumps(description)
    assert str(daemon.home) not in text
    assert daemon.auth_file.read_text().strip() not in text


def test_an_answer_that_is_described_as_json_is_json_for_the_owner_too(
    daemon: Daemon, description: dict[str, Any], tmp_path: Path
) -> None:
    headers = bearer(daemon)
    as_bytes = {**headers, "Content-Type": "application/octet-stream"}
    blob = send(daemon.url, "/fs/blob", b"content", as_bytes).json["blob"]
    send(daemon.url, "/shell/start", {"connection": LOCAL}, headers)
    place = str(tmp_path / "made")
    steps = {
        "/fs/mkdir": {"path": place},
        "/fs/write": {"path": f"{place}/file", "blob": blob},
        "/fs/attributes": {"path": f"{place}/file", "mode": "0600"},
        "/fs/move": {"source": f"{place}/file", "target": f"{place}/other"},
        "/fs/remove": {"path": place, "recursive": True},
    }
    for path, members in steps.items():
        answer = send(daemon.url, path, {"connection": LOCAL, **members}, headers)
        assert answer.json == {}, path
        schema = description["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        validator(description, schema).validate({})
