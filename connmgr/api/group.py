"""The endpoints of one path, declared by decorators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import marshmallow

from connmgr.api.endpoint import Endpoint, View
from connmgr.api.schema import schema
from connmgr.contract.message import Message
from connmgr.rights.action import Action


class Group:
    """The endpoints below one path, ``/name/…`` unless ``prefix`` is another, in the module of that name."""

    def __init__(self, name: str, description: str, *, prefix: str | None = None) -> None:
        self.name = name
        self.description = description
        self.endpoints: list[Endpoint] = []
        self._prefix = f"/{name}" if prefix is None else prefix

    def endpoint(
        self,
        path: str,
        request: type[Message] | type[marshmallow.Schema] | None = None,
        response: type[Message] | type[marshmallow.Schema] | None = None,
        *,
        lines: type[Message] | type[marshmallow.Schema] | None = None,
        action: Action | str,
        kind: type[Endpoint] = Endpoint,
        **declared: Any,
    ) -> Callable[[View], View]:
        """Declare the decorated function as the endpoint at ``path``; ``declared`` are members of its ``kind``.

        An ``action`` given by its name alone runs nothing, and only its scopes and sight limit it.
        """
        done = Action(action) if isinstance(action, str) else action

        def declare(view: View) -> View:
            # One schema instance for all requests: creating it costs more than loading with it.
            schemas: dict[str, Any] = {"request": schema(request), "response": schema(response), "lines": schema(lines)}
            self.endpoints.append(kind(path=self._prefix + path, view=view, action=done, **schemas, **declared))
            return view

        return declare
