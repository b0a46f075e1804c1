"""The second vocabulary: ``/store`` for ``/connection``, and ``store``, ``stores``, ``storeFilter`` for its fields.

Newer clients of the XPipe API use it. Paths and fields have other names; the views are the same. The published
description leaves it out, because it would only say everything twice.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

import marshmallow
from marshmallow import ValidationError, pre_load

from connmgr.api.endpoint import View
from connmgr.api.group import Group
from connmgr.api.schemas import Id
from connmgr.fields import Schema

PATH = "store"
NAMES = {"connection": "store", "connections": "stores", "connectionFilter": "storeFilter"}
"""Each field with a second name, and that name."""


class Located(Schema):
    """A request about one connection, at a path that both vocabularies share."""

    connection = Id(required=True, metadata={"description": "The connection whose running shell is used."})

    @pre_load
    def take_second_name(self, data: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
        if NAMES["connection"] not in data:
            return data
        if "connection" in data:
            raise ValidationError("This is another name of connection; give only one of them.", NAMES["connection"])
        return {"connection" if name == NAMES["connection"] else name: value for name, value in data.items()}

    def handle_error(self, error: ValidationError, data: Any, **_: Any) -> None:
        """Name the field as in the client's vocabulary."""
        messages: Any = error.messages
        if NAMES["connection"] in data and "connection" in messages and "connection" not in data:
            messages[NAMES["connection"]] = messages.pop("connection")


def group_of(connections: Group) -> Group:
    """Return the endpoints of the group ``/connection`` in the second vocabulary."""
    group = Group(PATH, connections.description)
    for endpoint in connections.endpoints:
        second = replace(
            endpoint,
            path=endpoint.path.replace(f"/{connections.name}/", f"/{PATH}/", 1),
            described=False,
            view=_answering_in_second_names(endpoint.view) if endpoint.dumped else endpoint.view,
            request=renamed(endpoint.request),
            response=renamed(endpoint.response),
        )
        group.endpoints.append(second)
    return group


def renamed(schema: marshmallow.Schema | None) -> marshmallow.Schema | None:
    """Return ``schema`` with the second names of its fields in JSON; loaded values have the first names."""
    if schema is None:
        return None
    changed: dict[str, Any] = {}
    for name, field in schema.declared_fields.items():
        if name in NAMES:
            changed[name] = copy.deepcopy(field)
            changed[name].data_key = NAMES[name]
    kind: type[marshmallow.Schema] = type(
        f"Store{type(schema).__name__.removeprefix('Connection')}", (type(schema),), changed
    )
    return kind()


def _answering_in_second_names(view: View) -> View:
    @wraps(view)
    def answered(request: Mapping[str, Any]) -> dict[str, Any]:
        return {name: [_in_second_names(one) for one in listed] for name, listed in view(request).items()}

    return answered


def _in_second_names(one: Any) -> Any:
    # Only the names of our own fields change; stored data stays as it is.
    return {NAMES.get(name, name): value for name, value in one.items()} if isinstance(one, Mapping) else one
