"""Declares endpoints: what each takes, returns and may answer, so that the description follows from the code."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any

import flask
import flask_smorest
import marshmallow
from marshmallow import fields

from connmgr import errors
from connmgr.api.accounting import account
from connmgr.api.auth import public
from connmgr.api.body import Nothing, StrictParser
from connmgr.api.errors import body_of
from connmgr.api.services import services
from connmgr.errors import ConnmgrError

View = Callable[..., Any]

# What any request may be answered, and beyond that one with a body, and one that needs a token.
ALWAYS: tuple[type[ConnmgrError], ...] = (
    errors.InvalidRequest,
    errors.ForbiddenOrigin,
    errors.MisdirectedRequest,
    errors.HeadersTooLarge,
    errors.InternalError,
    errors.VaultUnavailable,
    errors.Stopping,
)
WITH_BODY: tuple[type[ConnmgrError], ...] = (errors.BodyTooLarge, errors.UnsupportedMediaType)
NEEDS_TOKEN: tuple[type[ConnmgrError], ...] = (errors.NotAuthenticated, errors.InvalidToken)


class Error(marshmallow.Schema):
    """The request is at fault, or the daemon cannot answer it now."""

    message = fields.String(required=True, metadata={"description": "What is wrong, for a person."})
    code = fields.String(required=True, metadata={"description": "What is wrong, for a program; it never changes."})


class Failure(Error):
    """What went wrong in an operation."""

    localizedMessage = fields.String(required=True)
    cause = fields.Dict(required=True)
    stackTrace = fields.List(fields.String(), required=True)
    suppressed = fields.List(fields.Raw(), required=True)


class OperationFailed(marshmallow.Schema):
    """The operation could not be carried out."""

    error = fields.Nested(Failure, required=True)


@dataclass(frozen=True)
class Endpoint:
    """An endpoint as it was declared."""

    path: str
    view: View
    request: type[marshmallow.Schema] | None
    response: type[marshmallow.Schema] | None
    waits: bool


class Group(flask_smorest.Blueprint):  # type: ignore[misc]
    """The endpoints below one path, ``/name/…``, in the module of that name."""

    ARGUMENTS_PARSER = StrictParser()

    def __init__(self, name: str, description: str, *, prefix: str | None = None) -> None:
        super().__init__(name, __name__, url_prefix=f"/{name}" if prefix is None else prefix, description=description)
        self.endpoints: list[Endpoint] = []

    def endpoint(
        self,
        path: str,
        request: type[marshmallow.Schema] | None = None,
        response: type[marshmallow.Schema] | None = None,
        *,
        raises: Sequence[type[ConnmgrError]] = (),
        waits: bool = False,
        stops: bool = False,
        open_to_all: bool = False,
        methods: Sequence[str] = ("POST",),
        raw_body: str = "",
        raw_answer: str = "",
        example: Mapping[str, Any] | None = None,
        answer: Mapping[str, Any] | None = None,
    ) -> Callable[[View], View]:
        """Declare the decorated function as the endpoint at ``path``.

        The function is given what the schema ``request`` loaded, or nothing where there is none, and returns what
        ``response`` dumps, a :class:`flask.Response`, or None for 200 with an empty body. Its docstring describes it.
        ``raises`` lists the errors that it may answer beyond those of every endpoint. With ``waits`` it holds one of
        the slots for requests that wait, or with ``stops`` one of those kept for it; with ``open_to_all`` it needs no
        token. ``raw_body`` and ``raw_answer`` describe a body that is bytes instead of JSON. ``example`` and ``answer``
        show a request and its response.
        """

        def declare(view: View) -> View:
            inner = _holding_a_slot(view, stops=stops) if waits else view
            inner = _answering(inner, takes_body=request is not None)
            inner = self.response(200, response, example=answer, description=_summary(view))(inner)
            may_raise = [*([] if open_to_all else NEEDS_TOKEN), *raises, *([errors.Busy] if waits else [])]
            for method in methods:
                described = _documented(inner, [*ALWAYS, *(WITH_BODY if method == "POST" else ()), *may_raise])
                if raw_body:
                    described = self.doc(requestBody=_bytes(raw_body) | {"required": True})(described)
                elif method == "POST":
                    # One instance for all requests: making one costs more than loading with it.
                    schema = (request or Nothing)()
                    described = self.arguments(schema, example=example, required=request is not None)(described)
                    # flask-smorest describes an answer of its own to what a schema refuses; ours stands there already.
                    del described._apidoc["arguments"]["responses"]
                if raw_answer:
                    described = self.doc(responses={200: _bytes(raw_answer)})(described)
                if open_to_all:
                    described = self.doc(security=[])(public(described))
                self.add_url_rule(path, f"{view.__name__}_{method.lower()}", described, methods=[method])
            self.endpoints.append(Endpoint(path, view, request, response, waits))
            return view

        return declare


def _bytes(description: str) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    return {"description": description, "content": {"application/octet-stream": {"schema": schema}}}


def _summary(view: View) -> str:
    return (inspect.getdoc(view) or "").partition("\n")[0]


def _holding_a_slot(view: View, *, stops: bool) -> View:
    @wraps(view)
    def within_a_slot(*arguments: Any) -> Any:
        with ExitStack() as held:
            held.enter_context(services().slots.taken(stops=stops))
            result = view(*arguments)
            if isinstance(result, flask.Response) and result.is_streamed:
                # What waits is the sending, which begins when the view has returned.
                result.call_on_close(held.pop_all().close)
            return result

    return within_a_slot


def _answering(view: View, *, takes_body: bool) -> View:
    @wraps(view)
    def answered(*arguments: Any) -> Any:
        if arguments:
            account().request = arguments[0]
        result = view(*arguments) if takes_body else view()
        return flask.Response(status=200, mimetype="application/json") if result is None else result

    return answered


def _documented(view: View, raises: Iterable[type[ConnmgrError]]) -> View:
    """Return a copy of ``view`` whose description lists each status that the errors in ``raises`` lead to."""

    @wraps(view)
    def copy(*arguments: Any) -> Any:
        return view(*arguments)

    description: Any = copy
    by_status: dict[int, list[type[ConnmgrError]]] = defaultdict(list)
    for kind in dict.fromkeys(raises):
        by_status[kind.status].append(kind)
    for status, kinds in sorted(by_status.items()):
        codes = ", ".join(f"`{code}`" for code in dict.fromkeys(kind.code for kind in kinds))
        description._apidoc["response"]["responses"].setdefault(status, []).append(
            {
                "schema": OperationFailed if status == errors.OperationError.status else Error,
                "description": codes,
                "example": body_of(_specimen(kinds[-1])),
                "content_type": None,
            }
        )
    return copy


def _specimen(kind: type[ConnmgrError]) -> ConnmgrError:
    error = ConnmgrError((inspect.getdoc(kind) or "").partition("\n")[0])
    error.code, error.status = kind.code, kind.status  # type: ignore[misc]
    return error
