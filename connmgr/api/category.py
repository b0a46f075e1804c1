"""``/category``: the tree that sorts connections."""

from __future__ import annotations

from typing import Any

from marshmallow import fields

from connmgr import errors
from connmgr.api.account import caller
from connmgr.api.body import LISTED_VALUES
from connmgr.api.group import Group
from connmgr.api.removal import see_off
from connmgr.api.schemas import Filter, Id, Ids, UtcTime
from connmgr.api.services import services
from connmgr.fields import Boolean, Schema, Text
from connmgr.rights.action import Action
from connmgr.rights.limits import changes_categories, draws_default_sudo_password
from connmgr.vault import Category

ROOT = "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"
DEFAULT = "97458c07-75c0-4f9d-a06e-92d8cdf67c40"

ADD = Action("category.add", limits=[changes_categories])

group = Group("category", "The tree of categories that connections are sorted into.")


class CategoryInfoRequest(Schema):
    categories = Ids(required=True, metadata={"description": "Categories to describe."})


class CategoryInfo(Schema):
    category = Id(required=True, metadata={"description": "Its uuid."})
    parentCategory = Id(
        required=True, allow_none=True, metadata={"description": "The uuid of the parent; null at a root."}
    )
    name = fields.List(fields.String(), required=True, metadata={"description": "The path from the root."})
    lastUsed = UtcTime(
        required=True,
        metadata={"description": "When one of its connections was last used; if none was, when it was created."},
    )
    lastModified = UtcTime(required=True, metadata={"description": "When it was last changed."})
    config = fields.Dict(required=True, metadata={"description": "Empty in this version."})


class CategoryInfoResponse(Schema):
    infos = fields.List(fields.Nested(CategoryInfo), required=True, metadata={"description": "In the order asked."})


class CategoryQueryRequest(Schema):
    filter = Filter(required=True, metadata={"description": "For the path, with or without the root."})


class CategoryQueryResponse(Schema):
    found = fields.List(Id(), required=True, metadata={"description": "In the order of their paths."})


class CategoryAddRequest(Schema):
    name = Text(required=True, metadata={"description": "At most 255 characters. Letter case makes no difference."})
    parent = Id(required=True, metadata={"description": "The category to add it to."})


class CategoryAddResponse(Schema):
    category = Id(required=True, metadata={"description": "Its uuid."})


class CategoryRemoveRequest(Schema):
    categories = fields.List(Id(), required=True, metadata={"description": "Categories to remove."})
    removeChildrenCategories = Boolean(
        required=True,
        metadata={
            "description": "True removes the categories below too. False moves them up, unless a name is taken there."
        },
    )
    removeContents = Boolean(
        required=True,
        metadata={"description": "True removes the connections too. False moves them to the default category."},
    )


@group.endpoint(
    "/info",
    CategoryInfoRequest,
    CategoryInfoResponse,
    has_content=True,
    most_values=LISTED_VALUES,
    action="category.info",
    reads=True,
    dumped=True,
    about=("categories",),
    audited=False,
    raises=[errors.UnknownCategory, errors.IntegrityError],
    example={"categories": [DEFAULT]},
    answer={
        "infos": [
            {
                "category": DEFAULT,
                "parentCategory": ROOT,
                "name": ["all connections", "default"],
                "lastUsed": "2025-01-31T08:15:00.000000Z",
                "lastModified": "2025-01-30T17:02:11.493021Z",
                "config": {},
            }
        ]
    },
)
def info(request: dict[str, Any]) -> dict[str, Any]:
    """Describe categories. An unknown uuid fails the whole request."""
    ids = request["categories"]
    found = services().vault.categories.infos(list(dict.fromkeys(ids)))
    infos = dict(zip((one.id for one in found), CategoryInfo(many=True).dump(map(_info, found)), strict=True))
    return {"infos": [infos[id] for id in ids]}


def _info(category: Category) -> dict[str, Any]:
    return {
        "category": category.id,
        "parentCategory": category.parent,
        "name": list(category.path),
        "lastUsed": category.last_used,
        "lastModified": category.last_modified,
        "config": category.config,
    }


@group.endpoint(
    "/query",
    CategoryQueryRequest,
    CategoryQueryResponse,
    action="category.query",
    reads=True,
    audited=False,
    raises=[errors.IntegrityError],
    example={"filter": "*"},
    answer={"found": [ROOT, DEFAULT]},
)
def query(request: dict[str, Any]) -> dict[str, Any]:
    """Find categories by their path. Filters are as in `/connection/query`."""
    found = services().vault.categories.query(request["filter"])
    return {"found": services().authorisation.visible_categories(caller(), found)}


@group.endpoint(
    "/add",
    CategoryAddRequest,
    CategoryAddResponse,
    action=ADD,
    about=("name", "parent"),
    raises=[errors.UnknownCategory, errors.IntegrityError],
    example={"name": "customers", "parent": ROOT},
    answer={"category": "f1d9c3a8-7a55-4a2e-8f7e-1d0b5e2c6a90"},
)
def add(request: dict[str, Any]) -> dict[str, str]:
    """Add a category and return its uuid. If the parent has a category of that name, return that one."""
    return {"category": services().vault.categories.add(request["name"], request["parent"])}


@group.endpoint(
    "/remove",
    CategoryRemoveRequest,
    has_content=True,
    most_values=LISTED_VALUES,
    action=Action("category.remove", limits=[changes_categories, draws_default_sudo_password]),
    about=("categories",),
    raises=[
        errors.UnknownCategory,
        errors.ProtectedEntry,
        errors.CategoryExists,
        errors.IntegrityError,
        errors.ShellBusy,
    ],
    waits=True,
    example={
        "categories": ["f1d9c3a8-7a55-4a2e-8f7e-1d0b5e2c6a90"],
        "removeChildrenCategories": True,
        "removeContents": False,
    },
)
def remove(request: dict[str, Any]) -> None:
    """Remove categories, and stop the shells of removed connections. Roots and the default category stay.

    Jobs of removed connections go with them as in `/connection/remove`.
    """
    removed = services().vault.categories.remove(
        request["categories"],
        children=request["removeChildrenCategories"],
        contents=request["removeContents"],
        token=caller().token,
    )
    see_off(removed)
