"""Decides about approvals for the person in front of the agent, by a token that can do nothing else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Literal

from connmgr.client import Client, ClientError

logger = logging.getLogger("connmgr.mcp")

SCOPE = "approval.decide"
GRANT_SECONDS = 3600
OVER = "unknown_approval"

Decision = Literal["once", "grant", "deny"]


class Approver:
    """Decides with the token that ``client`` shows. Safe to use from several threads.

    :raises ClientError: the token is not valid, or may do anything but decide.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        if set(client.token.info().scopes) != {SCOPE}:
            text = f"The token that decides about approvals must have the scope {SCOPE} and no other."
            raise ClientError(text, "scope_denied", 0)

    def find(self, approval: str) -> Mapping[str, Any] | None:
        """Return the approval as ``/approval/query`` describes it, None if the token cannot see it, or it is over."""
        with self._lock:
            try:
                return next((one for one in self._client.approval.query() if one["approval"] == approval), None)
            except ClientError as error:
                logger.warning("The token that decides cannot look at the approval %s: %s", approval, error.message)
                return None

    def decide(self, approval: str, decision: Decision) -> None:
        """Decide; an approval that is over stays as it is, since a repeated request asks anew.

        :raises ClientError: the token may not decide about this.
        """
        seconds = GRANT_SECONDS if decision == "grant" else None
        with self._lock:
            try:
                self._client.approval.decide(approval, decision, seconds)
            except ClientError as error:
                if error.code == OVER:
                    return
                logger.warning(
                    "The token that decides cannot decide about the approval %s: %s", approval, error.message
                )
                told = f"What the person has decided could not be passed on: {error.message}"
                raise ClientError(told, error.code, error.status, error.details) from error
