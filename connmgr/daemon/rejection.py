"""The answer to a request that is no HTTP, or too large: in the shape of every other error, before any application."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

from waitress.task import ErrorTask

from connmgr import errors
from connmgr.api.errors import body_of
from connmgr.daemon.parser import STRANGERS_BODY, Parser

if TYPE_CHECKING:
    from connmgr.daemon.channel import Channel


class RejectTask(ErrorTask):
    """Answers a request that the HTTP parser refused."""

    channel: Channel
    request: Parser  # type: ignore[assignment]

    def execute(self) -> None:
        refusal = self.request.error
        error = _as_error(refusal.code if refusal else 500)
        body = json.dumps(body_of(error)).encode()
        self.status = f"{error.status} {HTTPStatus(error.status).phrase}"
        self.response_headers = [
            ("Content-Type", "application/json"),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
        ]
        self.set_close_on_finish()
        self.channel.rejected = True
        self.content_length = len(body)
        self.write(body)


def _as_error(status: int) -> errors.ConnmgrError:
    if status == errors.BodyTooLarge.status:
        return errors.BodyTooLarge(
            f"The request body is too large; without a valid token, beyond {STRANGERS_BODY // 1024} KiB."
        )
    if status == errors.HeadersTooLarge.status:
        return errors.HeadersTooLarge("The header of the request is too large.")
    if status < errors.OperationError.status or status == 501:
        return errors.InvalidRequest("The request is not valid HTTP, or uses a part of it that is not supported.")
    return errors.InternalError("An internal error occurred; the daemon's log says more.")
