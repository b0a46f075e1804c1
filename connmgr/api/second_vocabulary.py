"""The second vocabulary: ``/store`` for ``/connection``, and ``store``, ``stores``, ``storeFilter`` for its fields.

Newer clients of the XPipe API use it. Paths and fields have other names; the views are the same. The published
description leaves it out, because it would only say everything twice.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import marshmallow

from connmgr.api.group import Group
from connmgr.contract.common import SECOND_NAMES

PATH = "store"


def group_of(connections: Group) -> Group:
    """Return the endpoints of the group ``/connection`` in the second vocabulary."""
    group = Group(PATH, connections.description)
    for endpoint in connections.endpoints:
        second = replace(
            endpoint,
            path=endpoint.path.replace(f"/{connections.name}/", f"/{PATH}/", 1),
            described=False,
            renames=SECOND_NAMES,
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
        if field.data_key in SECOND_NAMES:
            changed[name] = copy.deepcopy(field)
            changed[name].data_key = SECOND_NAMES[field.data_key]
    kind: type[marshmallow.Schema] = type(
        f"Store{type(schema).__name__.removeprefix('Connection')}", (type(schema),), changed
    )
    return kind()
