"""Requests that are made up from the published description, and what their answers are held against.

Tests import it when they run: schemathesis takes most of a second to load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import requests
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core import NotSet
from schemathesis.specs.openapi import checks as openapi_checks

from tests.api.wire import LOCAL, NOBODY
from tests.deadlines import DEADLINE_SECONDS

# They change the machine or hold the daemon up: what is made up for them concerns a connection that does not exist.
ON_MACHINES = ("/shell/", "/terminal/", "/job/", "/fs/")
STOPS_THE_DAEMON = "/daemon/stop"
CHECKS = (
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
)


class Description:
    """The description that the daemon at ``url`` publishes; requests made up from it are sent in ``session``."""

    def __init__(self, url: str, session: requests.Session) -> None:
        load_all_checks()
        self._sending = {"base_url": url, "session": session, "timeout": DEADLINE_SECONDS}
        # None is made up: a request without a token is refused whatever else it holds.
        self._authorization = {"Authorization": session.headers["Authorization"]}
        found = schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()
        self.operations: list[Any] = [result.ok() for result in found]

    def of_group(self, group: str) -> list[Any]:
        """Return the operations of an endpoint group that can be tried out."""
        return [each for each in self.operations if each.path.split("/")[1] == group and each.path != STOPS_THE_DAEMON]

    def try_valid(self, operation: Any, examples: int) -> None:
        """Send valid requests, whose answers must be announced and no fault of the daemon."""

        def conforms(case: Any) -> None:
            response = case.call(**self._sending)
            case.validate_response(response, checks=list(CHECKS))
            assert not (response.status_code == 500 and response.json()["error"]["code"] == "internal")

        self._try_out(operation, GenerationMode.POSITIVE, examples, conforms)

    def try_broken(self, operation: Any, examples: int) -> None:
        """Send requests whose bodies the description forbids, which must be refused."""

        def refused(case: Any) -> None:
            if isinstance(case.body, NotSet) and not case.operation.definition.raw["requestBody"].get("required"):
                # Where a body may be left out, leaving it out breaks nothing.
                return
            response = case.call(**self._sending)
            case.validate_response(response, checks=[*CHECKS, openapi_checks.negative_data_rejection])

        # Older versions of schemathesis cannot be asked what a request without a body holds.
        described = operation.definition.raw
        # What a stream takes is its first message, which no request of HTTP carries.
        takes_a_body = "requestBody" in described and "101" not in described["responses"]
        if takes_a_body and "application/json" in operation.get_request_payload_content_types():
            self._try_out(operation, GenerationMode.NEGATIVE, examples, refused)

    def _try_out(self, operation: Any, mode: GenerationMode, examples: int, check: Callable[[Any], None]) -> None:
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode, headers=self._authorization))
        def run(case: Any) -> None:
            case.body = _tamed(case.body, operation.path)
            # It names the daemon, of which the description says nothing.
            case.headers.pop("Host", None)
            check(case)

        run()


def _tamed(body: Any, path: str) -> Any:
    if path.startswith(ON_MACHINES) and isinstance(body, dict) and body.get("connection") == LOCAL:
        return {**body, "connection": NOBODY}
    return body
