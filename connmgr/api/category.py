"""``/category``: the tree that sorts connections."""

from __future__ import annotations

from connmgr import errors
from connmgr.api.answer import require_few_repeated
from connmgr.api.body import LISTED_VALUES
from connmgr.api.connection_data import facts_of_all, publish_categories, publish_removed, see_off
from connmgr.api.context import caller
from connmgr.api.endpoint import Group
from connmgr.api.services import services
from connmgr.contract.category import (
    CategoryAddRequest,
    CategoryAddResponse,
    CategoryInfo,
    CategoryInfoRequest,
    CategoryInfoResponse,
    CategoryQueryRequest,
    CategoryQueryResponse,
    CategoryRemoveRequest,
)
from connmgr.contract.message import message_of
from connmgr.rights.actions import Action, changes_categories, draws_default_sudo_password
from connmgr.vault.names import ALL_CONNECTIONS, DEFAULT

ADD = Action("category.add", limits=[changes_categories])

group = Group("category", "The tree of categories that connections are sorted into.")


@group.endpoint(
    "/info",
    has_content=True,
    most_values=LISTED_VALUES,
    has_large_answer=True,
    reads=True,
    about=("categories",),
    audited=False,
    raises=[errors.UnknownCategory, errors.IntegrityError],
    example={"categories": [DEFAULT]},
    answer={
        "infos": [
            {
                "category": DEFAULT,
                "parentCategory": ALL_CONNECTIONS,
                "name": ["all connections", "default"],
                "lastUsed": "2025-01-31T08:15:00.000000Z",
                "lastModified": "2025-01-30T17:02:11.493021Z",
                "config": {},
            }
        ]
    },
)
def info(request: CategoryInfoRequest) -> CategoryInfoResponse:
    """Describe categories. An unknown uuid fails the whole request."""
    infos = services().vault.categories.infos(list(dict.fromkeys(request.categories)))
    by_id = {category.id: message_of(CategoryInfo, category, name=category.path) for category in infos}
    require_few_repeated("categories", request.categories, by_id)
    return CategoryInfoResponse(infos=[by_id[id] for id in request.categories])


@group.endpoint(
    "/query",
    reads=True,
    audited=False,
    raises=[errors.IntegrityError],
    example={"filter": "*"},
    answer={"found": [ALL_CONNECTIONS, DEFAULT]},
)
def query(request: CategoryQueryRequest) -> CategoryQueryResponse:
    """Find categories by their path. Filters are as in `/connection/query`."""
    matching = services().vault.categories.query(request.filter)
    return CategoryQueryResponse(found=services().authorisation.visible_categories(caller(), matching))


@group.endpoint(
    "/add",
    action=ADD,
    about=("name", "parent"),
    raises=[errors.UnknownCategory, errors.IntegrityError],
    example={"name": "customers", "parent": ALL_CONNECTIONS},
    answer={"category": "f1d9c3a8-7a55-4a2e-8f7e-1d0b5e2c6a90"},
)
def add(request: CategoryAddRequest) -> CategoryAddResponse:
    """Add a category and return its uuid. If the parent has a category of that name, return that one."""
    categories = services().vault.categories
    # The vault may answer with a category that exists; then nothing was added, and there is no event.
    before = set(categories.query("*"))
    id = categories.add(request.name, request.parent)
    if id not in before:
        publish_categories({categories.infos([id])[0].path[1:]: id})
    return CategoryAddResponse(category=id)


@group.endpoint(
    "/remove",
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
def remove(request: CategoryRemoveRequest) -> None:
    """Remove categories, and stop the shells of removed connections. Roots and the default category stay.

    Jobs of removed connections go with them as in `/connection/remove`.
    """
    before = facts_of_all()
    removed = services().vault.categories.remove(
        request.categories,
        children=request.remove_children_categories,
        contents=request.remove_contents,
        token=caller().token,
    )
    publish_removed(removed, before)
    see_off(removed)
