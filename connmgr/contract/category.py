"""``/category``: the tree that sorts connections."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from connmgr.contract.message import DISTINCT, FILTER, ID, Json, Message


class CategoryInfoRequest(Message):
    categories: Annotated[list[str], DISTINCT, "Categories to describe."]


class CategoryInfo(Message):
    """A category; ``name`` is its path from the root, ``parent`` is None at a root."""

    id: Annotated[str, Json("category"), ID, "Its uuid."]
    parent: Annotated[str | None, Json("parentCategory"), ID, "The uuid of the parent; null at a root."]
    name: Annotated[tuple[str, ...], "The path from the root."]
    last_used: Annotated[datetime, "When one of its connections was last used; if none was, when it was created."]
    last_modified: Annotated[datetime, "When it was last changed."]
    config: Annotated[dict[str, Any], "Empty in this version."]


class CategoryInfoResponse(Message):
    infos: Annotated[list[CategoryInfo], "In the order asked."]


class CategoryQueryRequest(Message):
    filter: Annotated[str, FILTER, "For the path, with or without the root."]


class CategoryQueryResponse(Message):
    found: Annotated[list[Annotated[str, ID]], "In the order of their paths."]


class CategoryAddRequest(Message):
    name: Annotated[str, "At most 255 characters, not all blank. Letter case makes no difference."]
    parent: Annotated[str, ID, "The category to add it to."]


class CategoryAddResponse(Message):
    category: Annotated[str, ID, "Its uuid."]


class CategoryRemoveRequest(Message):
    categories: Annotated[list[Annotated[str, ID]], "Categories to remove."]
    remove_children_categories: Annotated[
        bool, "True removes the categories below too. False moves them up, unless a name is taken there."
    ]
    remove_contents: Annotated[bool, "True removes the connections too. False moves them to the default category."]
