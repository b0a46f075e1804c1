"""Each error of a tool tells the agent what to do next."""

from __future__ import annotations

import pytest

from connmgr import errors
from connmgr.api.app import GROUPS
from connmgr.client import ClientError
from connmgr.mcp.outcome import NEXT, advice
from connmgr.mcp.tools import TOOLS

OF_EVERY_REQUEST = {
    *("invalid_request", "not_authenticated", "invalid_token", "invalid_credential", "token_expired", "token_revoked"),
    *("scope_denied", "policy_denied", "approval_required", "approval_denied", "quota_exceeded", "body_too_large"),
    *("internal", "stopping", "busy", "vault_unavailable", "token_limit"),
}
OF_THE_TOOLS = {
    *("invalid_arguments", "unreachable", "text_not_found", "text_not_unique", "not_text"),
    *("file_too_large", "no_such_question", "asks_for_secret"),
}

NOT_FOR_AGENTS = {"token_limit"}
"""Errors that only administrators of the daemon get."""


def met() -> set[str]:
    """Return the codes of the endpoints that tools call."""
    actions = {action for one in TOOLS for action in one.actions} | {"shell.start", "shell.stop", "connection.info"}
    endpoints = [endpoint for group in GROUPS for endpoint in group.endpoints if endpoint.action.name in actions]
    assert {endpoint.action.name for endpoint in endpoints} == actions
    return {error.code for endpoint in endpoints for error in endpoint.raises} | OF_EVERY_REQUEST - NOT_FOR_AGENTS


@pytest.mark.parametrize("code", sorted(met() | OF_THE_TOOLS))
def test_an_agent_is_told_what_to_do(code: str) -> None:
    told = advice(ClientError("It failed.", code, 500))
    assert told
    assert told[0].isupper()
    assert told.endswith(".")


def test_advice_is_about_errors_that_there_are() -> None:
    known = {one.code for one in _tree(errors.ConnmgrError)}
    assert NEXT.keys() - OF_THE_TOOLS <= known


def _tree(of: type[errors.ConnmgrError]) -> list[type[errors.ConnmgrError]]:
    return [of, *(below for one in of.__subclasses__() for below in _tree(one))]
