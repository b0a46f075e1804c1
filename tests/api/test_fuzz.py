"""Requests made up from the published description, valid ones and broken ones: each answer is one that it announces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core import NotSet
from schemathesis.specs.openapi import checks as openapi_checks

from tests.api.wire import LOCAL, NOBODY, bearer
from tests.daemon import Daemon

GROUPS = [
    "handshake",
    "category",
    "connection",
    "hostkey",
    "shell",
    "terminal",
    "tunnel",
    "job",
    "fs",
    "secret",
    "approval",
    "audit",
    "command",
    "token",
    "vault",
    "daemon",
]
# They change the machine or hold the daemon up: what is made up for them concerns a connection that does not exist.
ON_MACHINES = ("/shell/", "/terminal/", "/job/", "/fs/")
STOPS_THE_DAEMON = "/daemon/stop"
CHECKS = (
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
)
TIMEOUT = 30


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon of its own: what is made up changes its vault, and its handshakes fail too often."""
    daemon = Daemon(tmp_path_factory.mktemp("fuzzed"))
    yield daemon
    assert daemon.running
    assert "Unforeseen" not in daemon.stderr()
    assert "Traceback" not in daemon.stderr()
    daemon.stop()


@pytest.fixture(scope="module")
def session(fuzzed: Daemon) -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.headers.update(bearer(fuzzed))
        yield session


@pytest.fixture(scope="module")
def description(fuzzed: Daemon) -> Any:
    load_all_checks()
    return schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")


def operations(description: Any, group: str) -> list[Any]:
    found = [result.ok() for result in description.get_all_operations()]
    return [each for each in found if each.path.split("/")[1] == group and each.path != STOPS_THE_DAEMON]


def tamed(body: Any, path: str) -> Any:
    if path.startswith(ON_MACHINES) and isinstance(body, dict) and body.get("connection") == LOCAL:
        return {**body, "connection": NOBODY}
    return body


def try_out(operation: Any, mode: GenerationMode, examples: int, check: Callable[[Any], None]) -> None:
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        case.body = tamed(case.body, operation.path)
        check(case)

    run()


@pytest.mark.parametrize("group", GROUPS)
def test_made_up_requests_get_announced_answers(
    fuzzed: Daemon, session: requests.Session, description: Any, group: str
) -> None:
    def conforms(case: Any) -> None:
        response = case.call(base_url=fuzzed.url, session=session, timeout=TIMEOUT)
        case.validate_response(response, checks=list(CHECKS))
        assert not (response.status_code == 500 and response.json()["error"]["code"] == "internal")

    # Each passphrase costs half a second by design.
    examples = 3 if group == "vault" else 8
    for operation in operations(description, group):
        try_out(operation, GenerationMode.POSITIVE, examples, conforms)


@pytest.mark.parametrize("group", GROUPS)
def test_broken_requests_are_refused(fuzzed: Daemon, session: requests.Session, description: Any, group: str) -> None:
    def refused(case: Any) -> None:
        if isinstance(case.body, NotSet) and not case.operation.definition.raw["requestBody"].get("required"):
            # Where a body may be left out, leaving it out breaks nothing.
            return
        response = case.call(base_url=fuzzed.url, session=session, timeout=TIMEOUT)
        case.validate_response(response, checks=[*CHECKS, openapi_checks.negative_data_rejection])

    for operation in operations(description, group):
        # Older versions of schemathesis cannot be asked what a request without a body holds.
        described = operation.definition.raw
        # What a stream takes is its first message, which no request of HTTP carries.
        takes_a_body = "requestBody" in described and "101" not in described["responses"]
        if takes_a_body and "application/json" in operation.get_request_payload_content_types():
            try_out(operation, GenerationMode.NEGATIVE, 8, refused)


def test_every_group_is_tried(description: Any) -> None:
    paths = {result.ok().path for result in description.get_all_operations()}
    tried = {each.path for group in GROUPS for each in operations(description, group)}
    assert paths - tried == {STOPS_THE_DAEMON}
