"""The form of errors in answers, and the one place where exceptions become answers."""

from __future__ import annotations

import logging
import traceback
from functools import partial
from typing import Any

import flask
from werkzeug.exceptions import HTTPException

from connmgr import errors
from connmgr.api.answer import as_json
from connmgr.api.context import RequestContext, request_context
from connmgr.api.services import services
from connmgr.errors import ConnmgrError, Unavailable
from connmgr.secrets.loans import loan_over

logger = logging.getLogger("connmgr.api")

_OF_HTTP: dict[int, type[errors.RequestError]] = {
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    413: errors.BodyTooLarge,
    415: errors.UnsupportedMediaType,
}


def body_of(error: ConnmgrError, trace: list[str] | None = None) -> dict[str, Any]:
    """Return the JSON body for ``error``. Failed operations have their own shape, with the lines of ``trace``."""
    if error.status != errors.OperationError.status:
        return {**error.details, "message": error.message, "code": error.code}
    shown = {
        **error.details,
        "message": error.message,
        "localizedMessage": error.message,
        "cause": {},
        "stackTrace": trace or [],
        "suppressed": [],
        "code": error.code,
    }
    return {"error": shown}


def as_error(exception: BaseException, context: RequestContext) -> ConnmgrError:
    """Return ``exception`` as one of our own errors, as the caller of the request ``context`` may see it.

    An unexpected one is logged with the request's id, and becomes ``internal``.
    """
    if isinstance(exception, errors.CommandCancelled) and context.loan is not None and context.end_of_loan is not None:
        return loan_over(context.loan, context.end_of_loan)
    if isinstance(exception, ConnmgrError):
        return context.told(exception)
    if isinstance(exception, HTTPException) and exception.code is not None and exception.code < 500:
        kind = _OF_HTTP.get(exception.code, errors.InvalidRequest)
        return kind(_message(kind, exception))
    logger.error("Unforeseen %s, request id=%s", type(exception).__name__, context.id, exc_info=exception)
    return errors.InternalError("An internal error occurred; the daemon's log says more.")


def _message(kind: type[ConnmgrError], exception: HTTPException) -> str:
    if kind is errors.NotFound:
        return "No such endpoint; GET /docs shows those that exist."
    if kind is errors.MethodNotAllowed:
        return f"This endpoint does not accept {flask.request.method}."
    return f"The request cannot be understood: {exception.name}."


def note_error(
    exception: BaseException, context: RequestContext, *, debug: bool
) -> tuple[ConnmgrError, dict[str, Any]]:
    """Return ``exception`` as one of our own errors, and its body; note it as the request's outcome.

    With ``debug`` the body of a failed operation has its traceback.
    """
    error = as_error(exception, context)
    context.code = error.code
    context.authority |= {name: error.details[name] for name in ("rule", "approval") if name in error.details}
    trace: list[str] = []
    if debug and error is exception and error.status == errors.OperationError.status:
        trace = [line.rstrip("\n") for line in traceback.format_exception(exception)]
    return error, body_of(error, trace)


def answer(exception: Exception) -> flask.Response:
    """Turn ``exception`` into the response that its class stands for."""
    error, body = note_error(exception, request_context(), debug=services().settings.debug)
    response = as_json(body, error.status)
    if isinstance(error, Unavailable):
        response.headers["Retry-After"] = str(error.details.get("retry_after", error.retry_after))
    if isinstance(error, errors.CommandTimeout):
        # The answer has its output, which counts until that is sent.
        response.call_on_close(partial(_let_go, error.memory))
    if isinstance(error, errors.NotAuthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    if isinstance(exception, HTTPException) and exception.code == errors.MethodNotAllowed.status:
        response.headers["Allow"] = ", ".join(sorted(getattr(exception, "valid_methods", None) or ()))
    return response


def _let_go(_memory: object) -> None:
    """Do nothing: who holds this call holds the memory."""
