"""``/connection`` and ``/hostkey``: stored connections, what their hosts are, and the installed types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from connmgr.contract.common import EMPTY, MAX_LABELS, Labels, Located, Where
from connmgr.contract.message import (
    ABSENT,
    AWARE,
    DISTINCT,
    FILTER,
    ID,
    NULLABLE,
    SECRET,
    USER,
    Absent,
    Json,
    Keys,
    Length,
    Message,
    Range,
    SchemaMembers,
    Wrong,
)

MAX_DIALLED = 100
"""Most connections of a request with ``dialled``, because files are read for each."""

MAX_PASSPHRASES = 16
MAX_LOG_LINES = 1_000_000
MAX_ENTRIES = 20_000
"""Most entries of each list in `/connection/apply`: other changes of the vault wait until all are stored."""

MAX_DEPTH = 32
"""Most segments of a category's path."""

LONGEST_HOST = 300
LONGEST_KEY = 16384

DATA = "`type` and the fields of that type, see `/connection/types`. Secrets may be plain strings."
Data = Annotated[Mapping[str, Any], Keys(()), SECRET]
Path = Annotated[tuple[str, ...], "The path, without the root."]
ONE_ID = Annotated[str, ID]
LastKnown = Annotated[
    datetime | None,
    AWARE,
    "`lastModified` of the connection as the client knows it. If it was changed since, nothing of the request is "
    "stored, and the answer is `connection_changed`.",
]
LABELS = "Labels by their names, such as `env` and `prod`, for conditions (`where`)."


class ConnectionQueryRequest(Message):
    category_filter: Annotated[str, FILTER, "For the path of the category, with or without the root."]
    connection_filter: Annotated[str, FILTER, "For the path of the connection."]
    type_filter: Annotated[str, FILTER, "For the type."]
    name_filter: Annotated[
        str,
        FILTER,
        "For the name as `connmgr ls` prints it: the path alone, or the category's path, `/` and the path.",
    ] = "*"
    names: Annotated[bool, "True adds `names` to the answer."] = False
    where: Where = None


class FoundName(Message):
    category: Path
    name: Annotated[list[str], "The connection's path."]
    type: Annotated[str, "Its type."]
    usage_category: Annotated[str | None, "As in `/connection/info`."]


class ConnectionQueryResponse(Message):
    found: Annotated[list[ONE_ID], "In the order of their paths."]
    names: Annotated[
        list[FoundName] | None, "With `names`: the names of the connections in `found`, in the same order."
    ] = None


class LogRequest(Message):
    follow: Annotated[bool, "True prints what comes, too, until it is killed."] = False
    lines: Annotated[int | None, NULLABLE, Range(0, MAX_LOG_LINES), "Only the last lines of what there is."] = None


class ConnectionInfoRequest(Message):
    connections: Annotated[list[str], DISTINCT, "Connections to describe."]
    created: Annotated[bool, "True adds `created` to each connection."] = False
    dialled: Annotated[bool, f"True adds `dialled` to each connection; for at most {MAX_DIALLED} connections."] = False
    log: Annotated[LogRequest | None, "Adds `log` to each connection."] = None

    def check(self) -> None:
        super().check()
        if self.dialled and len(self.connections) > MAX_DIALLED:
            raise Wrong(f"Only for at most {MAX_DIALLED} connections.", "dialled")


class ConnectionEnvironmentRequest(Located):
    connection: Annotated[str | None, ID, "The connection."] = None
    connections: Annotated[
        list[str] | None, DISTINCT, "In its place: several connections, for a request that goes to all of them."
    ] = None

    def check(self) -> None:
        super().check()
        if (self.connection is None) == (self.connections is None):
            raise Wrong("Give either connection or connections.", "connection")


class ConnectionEnvironmentResponse(Message):
    send: Annotated[
        list[str],
        "Names of variables, with `*` and `?`, that requests may send as `sendEnv`; of several connections those that "
        "one of them admits.",
    ]
    set: Annotated[Mapping[str, Any], "Variables that everything there gets, by name; empty for several connections."]


class LentPassphrase(Message):
    key: Annotated[str, "The private key: `key` of the error `auth_failed`."]
    passphrase: Annotated[str, SECRET, "What the key is encrypted with."]


class ConnectionLoginRequest(Located):
    connection: Annotated[str, ID, "The connection to log in to."]
    agent: Annotated[
        str | None,
        Length(1, 255),
        "The path of the Unix socket of the client's ssh-agent (`SSH_AUTH_SOCK`) on the daemon's machine. A program of "
        "the daemon's user must listen there.",
    ] = None
    passphrases: Annotated[
        Sequence[LentPassphrase], Length(max=MAX_PASSPHRASES), "Passphrases of encrypted private keys."
    ] = ()


class ConnectionLoginResponse(Message):
    opened: Annotated[bool, "False if a link was open already; then nothing was borrowed."]


class DialledHost(Message):
    host: Annotated[str, "A name or an address."]
    port: Annotated[int, "The TCP port."]
    user: Annotated[str, "The user who logs in there."]
    identities: Annotated[Sequence[str], "The files of the private keys that are offered; none for tokens."]
    agent: Annotated[bool, "Whether an ssh-agent is asked for keys."]


class DialledHosts(Message):
    hosts: Annotated[list[DialledHost] | None, "In the order in which they are dialled; empty if none is."] = None
    error: Annotated[
        Mapping[str, Any] | None, "In place of `hosts`: why they are unknown, with `code` and `message`."
    ] = None


class LogCommand(Message):
    connection: Annotated[str, ID, "The connection to run it on."]
    argv: Annotated[list[str], "A program with its arguments."]


class ConnectionInfo(Message):
    """A stored connection.

    ``name`` and ``category`` are paths, the latter without the root. ``usage`` is None if no installed plugin offers
    the type.
    """

    id: Annotated[str, Json("connection"), ID, "Its uuid."]
    category: Path
    name: Annotated[tuple[str, ...], "The path. If it runs in another connection, that one's path comes first."]
    type: Annotated[str, "One of `/connection/types`."]
    raw_data: Annotated[dict[str, Any], "`type` and its fields; secrets stay encrypted."]
    usage: Annotated[
        str | None,
        Json("usageCategory"),
        "`shell`, `tunnel`, `command` or `group`; null if no installed plugin offers the type.",
    ]
    last_used: Annotated[
        datetime, "When its shell was last used, to the minute; if never, when the connection was created."
    ]
    last_modified: Annotated[datetime, "When its name, data, category or labels were last changed."]
    state: Annotated[dict[str, Any], "The remote host as it was last seen."]
    cache: Annotated[
        dict[str, Any],
        "`sessionEnabled`, present once it was toggled: whether it shall be open. `setByToken`: the token that added "
        "it or changed its data or category since the owner last gave it data; no loan of secrets is used for it.",
    ]
    dialled: Annotated[
        DialledHosts | None,
        "With `dialled`: the hosts that its links lead to, according to `~/.ssh/config`.",
    ] = None
    log: Annotated[
        LogCommand | Absent | None,
        "With `log`: the command that prints the container's log; null if its type has none or none that can be "
        "followed.",
    ] = ABSENT
    created: Annotated[
        datetime | None, "With `created`: when it was created. If it was never used, `lastUsed` is the same."
    ] = None
    labels: Annotated[Mapping[str, str], "Its labels, by their names."] = EMPTY

    @property
    def path(self) -> str:
        """The name as one text, ``web/root``."""
        return "/".join(self.name)

    @property
    def data(self) -> dict[str, Any]:
        """The fields of its type, secrets in encrypted form."""
        return {name: value for name, value in self.raw_data.items() if name != "type"}


class ConnectionInfoResponse(Message):
    infos: Annotated[list[ConnectionInfo], "In the order asked."]


class ConnectionAddRequest(Message):
    name: Annotated[str, "At most 255 characters, not all blank. Several connections may have the same name."]
    data: Annotated[Data, DATA]
    validates: Annotated[bool, Json("validate"), "Open it first, and add nothing if that fails."] = False
    category: Annotated[
        str | None,
        ID,
        "Its category. Without it: that of the connection which it is in, or else the default one.",
    ] = None
    temporary: Annotated[
        bool,
        "True keeps it only in the daemon's memory, while it has a shell and for a minute more. It is in no category, "
        "runs over no other connection, has no jobs, and no query finds it.",
    ] = False
    labels: Annotated[Labels | None, LABELS] = None

    def check(self) -> None:
        super().check()
        if self.temporary and self.category is not None:
            raise Wrong("A temporary connection is in no category; omit this field.", "category")
        if self.temporary and self.labels:
            raise Wrong("A temporary connection has no labels; omit this field.", "labels")


class ConnectionAddResponse(Message):
    connection: Annotated[str, ID, "The uuid of the new connection, or of an equivalent one."]
    added: Annotated[bool, "False if an equivalent connection existed."]


class ConnectionElevateRequest(Message):
    connection: Annotated[str, ID, "The connection to run over."]
    user: Annotated[str, USER, "The user to run as. Without it: `root`."] = "root"
    password: Annotated[
        str | None,
        SECRET,
        SchemaMembers({"format": "password"}),
        "What sudo asks for; kept in memory while the elevated connection has a link, and for a minute more. Without "
        "it: the one stored for the connection or a category above it.",
    ] = None


class ConnectionElevateResponse(Message):
    connection: Annotated[str, "The id of the elevated connection: not a uuid, and accepted wherever one is."]


class ConnectionUpdateRequest(Message):
    connection: Annotated[str, ID, "The connection to change."]
    name: Annotated[str | None, "The new name, at most 255 characters, not all blank."] = None
    data: Annotated[Data | None, "All of the new data, not only the changes. The type stays."] = None
    category: Annotated[
        str | None, ID, "The category to move it to, with the connections in it that share its category."
    ] = None
    validates: Annotated[bool, Json("validate"), "Open it first, and change nothing if that fails."] = False
    labels: Annotated[Labels | None, f"All of the new labels, not only the changes. {LABELS}"] = None
    last_modified: LastKnown = None


class ConnectionLabelRequest(Message):
    connections: Annotated[list[str], DISTINCT, "Connections to label."]
    labels: Annotated[Labels, f"Labels to set; others stay. {LABELS}"] = EMPTY
    remove: Annotated[Sequence[str], Length(max=MAX_LABELS), "Names of labels to take away."] = ()

    def check(self) -> None:
        super().check()
        if both := sorted(self.labels.keys() & set(self.remove)):
            raise Wrong(f"{both[0]} is also among `labels`.", "remove")
        if not (self.labels or self.remove):
            raise Wrong("Give `labels` or `remove`.", "labels")


class ConnectionLabelResponse(Message):
    changed: Annotated[list[ONE_ID], "The connections whose labels are others now."]


class ConnectionRemoveRequest(Message):
    connections: Annotated[list[ONE_ID], "Connections to remove."]


class ConnectionRefreshRequest(Message):
    connection: Annotated[str, ID, "The connection to open."]


class ConnectionRefreshResponse(Message):
    """What a look inside found: systems with a new connection, and connections whose system has disappeared."""

    added: Annotated[
        list[ONE_ID], "The connections that were added, one for each new container or other system found inside."
    ]
    gone: Annotated[list[ONE_ID], "The connections whose container or system was found inside before, but not now."]
    skipped: Annotated[list[str], "Sentences about systems inside of it that cannot be stored, with the reasons."]


class ConnectionToggleRequest(Message):
    connection: Annotated[str, ID, "The tunnel, or a connection whose remote host can be started and stopped."]
    state: Annotated[bool, "True opens or starts it, false closes or stops it."]


class ConnectionBrowseRequest(Message):
    connection: Annotated[str, ID, "The connection whose files to show."]
    directory: Annotated[str | Absent | None, "Where to begin."] = ABSENT


class ConnectionTerminalRequest(Message):
    connection: Annotated[str, ID, "The connection whose terminal to show."]
    directory: Annotated[str | Absent | None, "Where it begins."] = ABSENT


class ShownResponse(Message):
    url: Annotated[str | None, "The page that shows it. Absent in this version."] = None


class TypeInfo(Message):
    """An installed type of connections; ``schema`` is the JSON Schema of its data."""

    name: Annotated[str, Json("type"), "Its name, the `type` of data."]
    usage: Annotated[str, Json("usageCategory"), "`shell`, `tunnel`, `command` or `group`."]
    description: Annotated[str, "One sentence for people."]
    distribution: Annotated[str, "The package that it comes from."]
    version: Annotated[str, "Of that package."]
    toggled: Annotated[bool, "Whether `/connection/toggle` starts and stops its systems; no tunnel."]
    schema: Annotated[dict[str, Any], "JSON Schema of `data`, with an example."]


class ProblemInfo(Message):
    plugin: Annotated[str, "Its entry point, or the type in question."]
    distribution: Annotated[str, "The package that it comes from."]
    reason: Annotated[str, "Why it is not used."]


class SourceInfo(Message):
    """A secret source: what ``{"from": {"source": NAME, …}}`` may say in the place of a secret."""

    name: Annotated[str, Json("source"), "Its name, the `source` of a reference."]
    description: Annotated[str, "One sentence for people."]
    schema: Annotated[dict[str, Any], "JSON Schema of the members beside `source`, with an example."]


class TypesResponse(Message):
    types: Annotated[list[TypeInfo], "By name."]
    sources: Annotated[list[SourceInfo], "Where secrets can be fetched from instead of being stored."]
    problems: Annotated[list[ProblemInfo], "Plugins that are not used, and why."]


CategoryPath = Annotated[list[Annotated[str, Length(1, 255)]], Length(0, MAX_DEPTH)]
"""The names from the root, without it, to a category."""

AT_MOST = f"At most {MAX_ENTRIES:,}."


class EntryToAdd(Message):
    label: Annotated[
        str | None, Length(1, 255), "A name by which later entries refer to this one in place of a uuid."
    ] = None
    name: Annotated[str, Length(1, 255), "The name, as in `/connection/add`."]
    data: Annotated[Data, f'{DATA} `{{"label": …}}` in place of a connection refers to an entry of `add`.']
    category: Annotated[
        CategoryPath | None,
        "Its category. Without it: that of the connection which it is in, or else the default one.",
    ] = None
    labels: Annotated[Labels | None, LABELS] = None


class EntryToChange(Message):
    connection: Annotated[str, ID, "The connection to change."]
    name: Annotated[str | None, Length(0, 255), "The new name."] = None
    data: Annotated[Data | None, "All of the new data, as in `/connection/update`; labels as in `add`."] = None
    category: Annotated[
        CategoryPath | None,
        "The category to move it to, with the connections in it that share its category.",
    ] = None
    labels: Annotated[Labels | None, "All of the new labels, as in `/connection/update`."] = None
    last_modified: LastKnown = None


class ApplyRequest(Message):
    categories: Annotated[
        Sequence[CategoryPath],
        Length(0, MAX_ENTRIES),
        f"Paths of categories, without the root. Missing ones are created. {AT_MOST}",
    ] = ()
    add: Annotated[
        Sequence[EntryToAdd],
        Length(0, MAX_ENTRIES),
        f"Connections to add, each after the entries that it refers to. {AT_MOST}",
    ] = ()
    change: Annotated[Sequence[EntryToChange], Length(0, MAX_ENTRIES), f"Connections to change. {AT_MOST}"] = ()
    remove: Annotated[
        Sequence[ONE_ID],
        Length(0, MAX_ENTRIES),
        f"Connections to remove, together with all connections over them. {AT_MOST}",
    ] = ()

    def check(self) -> None:
        super().check()
        labels = [entry.label for entry in self.add if entry.label is not None]
        if len(set(labels)) < len(labels):
            raise Wrong("Two entries have the same label.", "add")


class AddOutcome(ConnectionAddResponse):
    """The outcome of one entry of ``add``."""


class ApplyResponse(Message):
    added: Annotated[list[AddOutcome], "One for each entry of `add`, in their order."]
    removed: Annotated[list[ONE_ID], "All removed connections, including connections that ran over a removed one."]


class HostKeyTrustRequest(Message):
    connection: Annotated[str, ID, "A connection whose links lead to the host."]
    host: Annotated[str, Length(1, LONGEST_HOST), "The host's name in known_hosts: `host` of `host_key_unknown`."]
    host_key: Annotated[str, Length(1, LONGEST_KEY), "Its key, type and base64: `hostKey` of `host_key_unknown`."]


class HostKeyForgetRequest(Message):
    connection: Annotated[str, ID, "A connection whose links lead to the host."]
    host: Annotated[
        str | None,
        Length(1, LONGEST_HOST),
        "The host's name in known_hosts; by default the host that the connection leads to.",
    ] = None


class ForgottenHostKey(Message):
    """A key that was removed, or could not be."""

    key: Annotated[str, "Its type and fingerprint."]
    place: Annotated[str, "The file and line where it stood."]
    kept: Annotated[str, "Why the key is still there; empty if it was removed."]


class HostKeyForgetResponse(Message):
    keys: list[ForgottenHostKey]
