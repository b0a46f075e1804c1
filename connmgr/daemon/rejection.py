"""Answers requests that are no HTTP, or too large, by the application, which never sees the body."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from waitress.task import WSGITask

from connmgr import errors
from connmgr.api.body import REFUSAL, Refusal
from connmgr.daemon.parser import RequestParser


class RejectTask(WSGITask):
    """Lets the application answer a request that the HTTP parser refused, and closes the connection."""

    channel: Any
    request: RequestParser  # type: ignore[assignment]

    def execute(self) -> None:
        self.set_close_on_finish()
        self.channel.rejected = True
        super().execute()

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[REFUSAL] = Refusal(error_of(self.request), header_read=self.request.header_read)
        environ["wsgi.input"] = BytesIO()
        # The body does not follow, or the value is not a number.
        environ.pop("CONTENT_LENGTH", None)
        return environ


def error_of(request: RequestParser) -> errors.ConnmgrError:
    """Return the error for a request that the parser has refused."""
    if request.refusal is not None:
        return request.refusal
    status = request.error.code if request.error else 500
    if status == errors.BodyTooLarge.status:
        return errors.BodyTooLarge(f"The request body exceeds {request.adj.max_request_body_size - 1} bytes.")
    if status == errors.HeadersTooLarge.status:
        return errors.HeadersTooLarge("The header of the request is too large.")
    if status < errors.OperationError.status or status == 501:
        return errors.InvalidRequest("The request is not valid HTTP, or uses a part of it that is not supported.")
    return errors.InternalError("An internal error occurred; the daemon's log says more.")
