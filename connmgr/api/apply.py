"""``/connection/apply``: many changes of categories and connections, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from marshmallow import ValidationError, fields, validate, validates_schema

from connmgr import errors
from connmgr.api.account import caller, detail, part
from connmgr.api.body import LISTED_VALUES
from connmgr.api.category import ADD as ADD_CATEGORY
from connmgr.api.connection import REMOVE, SSH
from connmgr.api.connection_data import ADD, UPDATE, ConnectionData, changed_fields
from connmgr.api.connection_schemas import DATA
from connmgr.api.group import Group
from connmgr.api.removal import end_what_runs, see_off
from connmgr.api.schemas import Id, Members
from connmgr.api.services import services
from connmgr.errors import InvalidRequest
from connmgr.fields import Boolean, Length, Schema, Text
from connmgr.rights.action import Action
from connmgr.rights.sight import Position
from connmgr.vault import Connection
from connmgr.vault.batch import Addition, Applied, Batch, Change, held

MAX_ENTRIES = 20_000
"""Most entries of each list in a request, because other changes of the vault wait until all are stored."""

MAX_DEPTH = 32
"""Most segments of a category's path."""

group = Group("apply", "Many connections and categories at once.", prefix="/connection")

LABELLED = {"label": "bastion"}


class CategoryPath(fields.List):  # type: ignore[type-arg]
    """The names from the root, without it, to a category."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Text(validate=Length(1, 255)), validate=Length(0, MAX_DEPTH), **kwargs)


class EntryToAdd(Schema):
    label = Text(
        validate=Length(1, 255),
        metadata={"description": "A name by which later entries refer to this one in place of a uuid."},
    )
    name = Text(required=True, validate=Length(0, 255), metadata={"description": "The name, as in `/connection/add`."})
    data = Members(
        keys=Text(),
        required=True,
        metadata={
            "description": f'{DATA["description"]} `{{"label": …}}` in place of a connection refers to an '
            "entry of `add`."
        },
    )
    category = CategoryPath(
        metadata={
            "description": "Its category. Without it: that of the connection which it is in, or else the default one."
        }
    )


class EntryToChange(Schema):
    connection = Id(required=True, metadata={"description": "The connection to change."})
    name = Text(validate=Length(0, 255), metadata={"description": "The new name."})
    data = Members(
        keys=Text(), metadata={"description": "All of the new data, as in `/connection/update`; labels as in `add`."}
    )
    category = CategoryPath(
        metadata={"description": "The category to move it to, with the connections in it that share its category."}
    )


def _list(kind: Any, description: str) -> Any:
    described = f"{description} At most {MAX_ENTRIES:,}."
    return fields.List(
        kind, load_default=list, validate=validate.Length(0, MAX_ENTRIES), metadata={"description": described}
    )


class ApplyRequest(Schema):
    categories = _list(CategoryPath(), "Paths of categories, without the root. Missing ones are created.")
    add = _list(fields.Nested(EntryToAdd), "Connections to add, each after the entries that it refers to.")
    change = _list(fields.Nested(EntryToChange), "Connections to change.")
    remove = _list(Id(), "Connections to remove, together with all connections over them.")

    @validates_schema
    def labels_are_unique(self, data: Mapping[str, Any], **_: Any) -> None:
        labels = [entry["label"] for entry in data.get("add", ()) if "label" in entry]
        if len(set(labels)) < len(labels):
            raise ValidationError("Two entries have the same label.", "add")


class Outcome(Schema):
    connection = Id(required=True, metadata={"description": "The uuid of the new connection, or of an equivalent one."})
    added = Boolean(required=True, metadata={"description": "False if an equivalent connection existed."})


class ApplyResponse(Schema):
    added = fields.List(
        fields.Nested(Outcome), required=True, metadata={"description": "One for each entry of `add`, in their order."}
    )
    removed = fields.List(
        Id(), required=True, metadata={"description": "All removed connections, including those over others."}
    )


@group.endpoint(
    "/apply",
    ApplyRequest,
    ApplyResponse,
    has_content=True,
    most_values=LISTED_VALUES,
    action="connection.apply",
    dumped=True,
    raises=[
        errors.UnknownType,
        errors.UnknownConnection,
        errors.SecretLocked,
        errors.ConnectionCycle,
        errors.ProtectedEntry,
        errors.IntegrityError,
        errors.ShellBusy,
    ],
    waits=True,
    example={
        "categories": [["customers"]],
        "add": [
            {"label": "bastion", "name": "bastion", "data": {"type": "ssh", "host": "bastion.example.org"}},
            {"name": "build", "data": {**SSH, "gateway": LABELLED}, "category": ["customers", "acme"]},
        ],
    },
    answer={
        "added": [
            {"connection": "3b0e7a52-6a0e-4f3c-9f0a-0f6f1d0c9a11", "added": True},
            {"connection": "9f2b1e74-51c3-4f0b-8a46-2f1d6c0c7f10", "added": True},
        ],
        "removed": [],
    },
)
def apply(request: dict[str, Any]) -> dict[str, Any]:
    """Add, change and remove many connections at once, and create the categories that they need.

    Either all changes are stored, in one step, or none. Connections are added, changed and removed as by
    `/connection/add`, `/connection/update` and `/connection/remove`, but none is opened first. New data stops the
    shells of a connection and of all connections over it. Authorising plugins and the audit log see each change as an
    action of its own: `connection.add`, `connection.update`, `connection.remove`, `category.add`.
    """
    found = services()
    if found.authorisation.concerns(caller()):
        for action, about in _asked(request):
            found.authorisation.check(caller(), action, about)
    stored = {one.id: one for one in found.vault.connections.infos(_distinct(request["change"]))}
    batch = _batch(request, stored)
    permits = partial(found.vault.principals.permit, access=caller().access)
    # The answer must not tell that there is an equivalent connection out of sight.
    applied = found.vault.batches.apply(
        batch, permits, lambda id: bool(found.authorisation.visible(caller(), [id])), caller().token
    )
    _record(batch, applied, stored)
    end_what_runs(applied.stale)
    see_off(applied.removed)
    return {
        "added": [{"connection": id, "added": new} for id, new in applied.added],
        "removed": applied.removed.connections,
    }


def _distinct(changes: list[dict[str, Any]]) -> list[str]:
    ids = [entry["connection"] for entry in changes]
    if len(set(ids)) < len(ids):
        raise InvalidRequest("change: Two entries are about the same connection.")
    return ids


def _batch(request: Mapping[str, Any], stored: Mapping[str, Connection]) -> Batch:
    load = partial(ConnectionData.load, access=caller().access)
    labels: dict[str, str] = {}
    additions = []
    for number, entry in enumerate(request["add"]):
        data = load(entry["data"], at=f"add.{number}.data", labels=labels)
        category = tuple(entry["category"]) if "category" in entry else None
        added = Addition(entry["name"], data.kind.name, data, category)
        additions.append(added)
        if "label" in entry:
            labels[entry["label"]] = added.id
    changes = []
    for number, entry in enumerate(request["change"]):
        kind, new = stored[entry["connection"]].type, entry.get("data")
        content = None if new is None else load(new, kind=kind, at=f"change.{number}.data", labels=labels)
        category = tuple(entry["category"]) if "category" in entry else None
        changes.append(Change(entry["connection"], entry.get("name"), content, category))
    return Batch([tuple(path) for path in request["categories"]], additions, changes, request["remove"])


def _record(batch: Batch, applied: Applied, stored: Mapping[str, Connection]) -> None:
    """Give the audit log an entry for each connection and category that ``see_off`` does not record."""
    for path, id in applied.made.items():
        part({"category": id}, added=True, name="/".join(path))
    for one, (id, new) in zip(batch.additions, applied.added, strict=True):
        part({"connection": id}, added=new, name=one.name)
    for change in batch.changes:
        given: dict[str, Any] = {} if change.name is None else {"name": change.name}
        given |= {} if change.category is None else {"category": applied.categories[change.category]}
        given |= {} if change.content is None else held(change.content)
        moved = applied.moved[change.id]
        part(
            {"connection": change.id},
            changed=changed_fields(stored[change.id], given),
            **({"moved": list(moved)} if moved else {}),
        )
    fresh = [id for id, added in applied.added if added]
    detail(added=len(fresh), changed=len(batch.changes), removed=len(applied.removed.connections))


def _asked(request: Mapping[str, Any]) -> Iterator[tuple[Action, dict[str, Any]]]:
    """Yield each part of a request as a single action, with the fields that name its subjects.

    A missing category is replaced by the nearest existing one above it, a label by what its entry runs over.
    """
    entries = [*request["add"], *request["change"]]
    paths = [
        tuple(path) for path in (*request["categories"], *(one["category"] for one in entries if "category" in one))
    ]
    every = dict.fromkeys(path[:depth] for path in paths for depth in range(len(path) + 1))
    known = services().vault.categories.by_path(every)
    for path in every:
        if path not in known:
            known[path] = known[path[:-1]]
            yield ADD_CATEGORY, {"parent": known[path]}
    authorisation = services().authorisation
    reached: dict[str, frozenset[str]] = {}
    positions: dict[str, Position] = {}
    for action, some in ((ADD, request["add"]), (UPDATE, request["change"])):
        for entry in some:
            about = {name: entry[name] for name in ("connection", "name", "data") if name in entry}
            about["connections"] = list({id for label in _labels(entry.get("data")) for id in reached.get(label, ())})
            if "category" in entry:
                about["category"] = known[tuple(entry["category"])]
            yield action, {**about, "positions": positions}
            if "label" in entry:
                reached[entry["label"]] = authorisation.subjects(about).connections
                position = authorisation.sight.position(entry["name"], entry["data"], positions)
                positions[entry["label"]] = position._replace(category=about.get("category", position.category))
    if request["remove"]:
        yield REMOVE, {"connections": request["remove"]}


def _labels(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping) and set(data) == {"label"} and isinstance(data["label"], str):
        yield data["label"]
    elif isinstance(data, Mapping | list):
        for inner in data.values() if isinstance(data, Mapping) else data:
            yield from _labels(inner)
