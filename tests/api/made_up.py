"""Requests generated from the published description, and checks of their answers.

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

from connmgr.errors import BodyTooLarge
from tests.api.wire import LOCAL, NOBODY
from tests.deadlines import DEADLINE_SECONDS

# These change the machine or block the daemon, so their generated requests name a connection that does not exist.
ON_MACHINES = ("/shell/", "/terminal/", "/job/", "/fs/")
STOPS_THE_DAEMON = "/daemon/stop"
ENDLESS = "/event/stream"
"""Its answer to a valid request does not end by itself."""

CHECKS = (
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
)


class Description:
    """The description published by the daemon at ``url``; generated requests are sent in ``session``."""

    def __init__(self, url: str, session: requests.Session) -> None:
        load_all_checks()
        self._sending = {"base_url": url, "session": session, "timeout": DEADLINE_SECONDS}
        # Requests without a token are not generated, because all are refused.
        self._authorization = {"Authorization": session.headers["Authorization"]}
        found = schemathesis.openapi.from_url(f"{url}/openapi.json").get_all_operations()
        self.operations: list[Any] = [result.ok() for result in found]

    def of_group(self, group: str) -> list[Any]:
        """Return the operations of an endpoint group that can be tested."""
        return [each for each in self.operations if each.path.split("/")[1] == group and each.path != STOPS_THE_DAEMON]

    def try_valid(self, operation: Any, examples: int) -> None:
        """Send valid requests; their answers must be documented and no internal errors."""
        if operation.path == ENDLESS:
            return

        def conforms(case: Any) -> None:
            response = case.call(**self._sending)
            case.validate_response(response, checks=list(CHECKS))
            assert not (response.status_code == 500 and response.json()["error"]["code"] == "internal")

        self._try_out(operation, GenerationMode.POSITIVE, examples, conforms)

    def try_broken(self, operation: Any, examples: int) -> None:
        """Send requests with invalid bodies, which must be refused."""

        def refused(case: Any) -> None:
            if isinstance(case.body, NotSet) and not case.operation.definition.raw["requestBody"].get("required"):
                # An optional body may be missing.
                return
            response = case.call(**self._sending)
            # A text that is too long may make the whole body too large, which schemathesis does not take for a refusal.
            rejects = [] if response.status_code == BodyTooLarge.status else [openapi_checks.negative_data_rejection]
            case.validate_response(response, checks=[*CHECKS, *rejects])

        # Older versions of schemathesis cannot describe a request without a body.
        described = operation.definition.raw
        # A stream's request is its first message, not an HTTP body.
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
            # The header names the daemon, and is not part of the description.
            case.headers.pop("Host", None)
            check(case)

        run()


def _tamed(body: Any, path: str) -> Any:
    if path.startswith(ON_MACHINES) and isinstance(body, dict) and body.get("connection") == LOCAL:
        return {**body, "connection": NOBODY}
    return body
