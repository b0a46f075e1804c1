"""Keeping what tokens change in files, for ``/undo``: before ``/fs`` changes a file, and around commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from connmgr import errors
from connmgr.api.context import RequestContext, caller, detail, request_context
from connmgr.api.services import Services, services
from connmgr.contract.common import ShellNamed
from connmgr.contract.undo import ChangeResponse
from connmgr.fs.remote import RemoteFileSystem
from connmgr.secrets.principals import Access
from connmgr.undo.changes import Changer, Keeper, Keeping
from connmgr.undo.snapshots import Snapshot, TooMuchError, why_not_kept

CHANGE = "3f0d6a55-6a0e-4c3c-9f59-0b8d1c1a7e11"
CHANGED = {"changes": [CHANGE]}
"""An answer about what is kept, for the description."""

NO_COPY_OF: Mapping[str, str] = {
    "link": "a symbolic link is not kept",
    "other": "only files and directories are kept",
    "directory": "a directory with its content is not kept",
}
"""Why something else than a file cannot be put back, by its kind."""

MAX_ROOTS = 20
"""Most paths of a token's rules that are looked at before its commands."""


def keeper(connection: str, digest: str | None) -> Keeper:
    """Return what keeps the changes of the caller on a connection, whose ``digest`` is that of its link."""
    sender = caller()
    grant, limit = sender.grant, services().settings.max_undo_file
    if grant is None:
        changer = Changer(sender.name)
    else:
        changer = Changer(grant.name, grant.id, tuple(grant.lineage_ids), sender.holder)
    return Keeper(services().changes, changer, connection, limit, digest)


def keeping(
    request: ShellNamed,
    place: RemoteFileSystem,
    path: bytes,
    *,
    follow: bool = True,
    why_not: Mapping[str, str] | None = None,
) -> AbstractContextManager[Keeping | None]:
    """Keep what is at ``path`` while the block changes it (:meth:`Keeper.keep`); None for the owner, who knows it."""
    if caller().grant is None:
        return nullcontext()
    action = request_context().action or ""
    return keeper(request.connection, place.connection_digest).keep(place, path, action, follow=follow, why_not=why_not)


def change_response(changes: Iterable[Keeping | None], why_not: str | None = None) -> ChangeResponse:
    """Return what the answer says about ``changes``, and record it; nothing for the owner, who has none kept."""
    if caller().grant is None:
        # An object as always, and no empty body: clients that are made of the description read it as JSON.
        return ChangeResponse()
    made = [change.change for change in changes if change is not None and not change.dropped]
    ids = [change.id for change in made if change.not_kept is None]
    reason = next((change.not_kept for change in made if change.not_kept is not None), why_not)
    if ids:
        detail(changes=ids)
    if reason:
        detail(notKept=reason)
    return ChangeResponse(changes=ids, not_kept=reason)


def snapshot_before(connection: str) -> Snapshot | None:
    """Look at the files that the caller's rules let it write, before a command; None if there are none.

    What cannot be looked at is not kept, and the audit log says why: the command runs all the same.
    """
    grant = caller().grant
    if grant is None or grant.read_only or services().changes.is_off:
        return None
    [facts] = services().authorisation.visibility.require(grant, [connection])
    roots = grant.writable_roots(facts)
    if not roots:
        return None
    if len(roots) > MAX_ROOTS:
        detail(notKept=f"the rules of the token name more than {MAX_ROOTS} paths to write to")
        return None
    try:
        with _own_shell(services(), caller().access, connection) as fs:
            return services().snapshots.take(
                fs, keeper(connection, fs.connection_digest), roots, request_context().action or ""
            )
    except (errors.ConnmgrError, TooMuchError) as error:
        detail(notKept=why_not_kept(error))
        return None


def settler(snapshot: Snapshot) -> Callable[[], None]:
    """Return the function that keeps what has changed since ``snapshot``, for the request that is being answered."""
    # It may be called when the answer is sent, and Flask's context is gone.
    return partial(_settle, services(), caller().access, snapshot, request_context())


def settle_job(job: str) -> None:
    """Keep what a job has changed that is seen to have ended."""
    snapshot = services().snapshots.ended(job)
    if snapshot is not None:
        settler(snapshot)()


def _settle(daemon: Services, access: Access, snapshot: Snapshot, context: RequestContext) -> None:
    try:
        with _own_shell(daemon, access, snapshot.keeper.connection) as fs:
            if changed := daemon.snapshots.settle(fs, snapshot):
                context.details["changes"] = changed
    except (errors.ConnmgrError, TooMuchError) as error:
        context.details["notKept"] = why_not_kept(error)


@contextmanager
def _own_shell(daemon: Services, access: Access, connection: str) -> Iterator[RemoteFileSystem]:
    """Yield the files of a connection's own shell, without the caller's rules."""
    daemon.shells.start(connection, access)
    with daemon.shells.using(connection, access) as session:
        digest = session.connection_digest
        yield RemoteFileSystem(session.transport, session.directory, session.helpers, connection_digest=digest)
