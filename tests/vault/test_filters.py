"""Filters: their meaning, and that both databases agree with a plain implementation."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from connmgr.errors import InvalidRequest
from connmgr.vault import Database, Vault, names, open_database, search
from connmgr.vault.names import ALL_CONNECTIONS, DEFAULT, LOCAL, fold, segment
from connmgr.vault.schema import connection, now
from tests.vault.conftest import BOTH, KEY, Add
from tests.vault.postgres import Postgres

ALPHABET = "abB/*?[]{},!^-\\.$|()+ äΣς\n"
"""Special characters of filters, GLOB and regular expressions, and some letters."""


def plainly(pattern: str, path: str) -> bool:
    """Whether a filter without sets and braces matches, by a slow implementation of the definition."""

    @cache
    def match(p: int, t: int) -> bool:
        rest, text = pattern[p:], path[t:]
        if not rest:
            return not text
        if rest.startswith("**"):
            after = p + len(rest) - len(rest.lstrip("*"))
            begins, ends = p == 0 or pattern[p - 1] == "/", pattern[after : after + 1] in ("", "/")
            if begins and ends and pattern[after : after + 1] == "/" and match(after + 1, t):
                return True
            return any(match(after, t + n) for n in range(len(text) + 1))
        if re.fullmatch(r"/\*\*+", rest) and not text:
            return True
        if rest[0] == "*":
            width = len(text.partition("/")[0])
            return any(match(p + 1, t + n) for n in range(width + 1))
        if not text:
            return False
        return (text[0] != "/" if rest[0] == "?" else text[0] == rest[0]) and match(p + 1, t + 1)

    return pattern == "*" or match(0, 0)


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a path matches ``pattern``."""
    compiled = names.compile_pattern(pattern)
    return (lambda _: True) if compiled is None else names.Matcher(compiled)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("*", ["a", "a/b", ""], []),
        ("**", ["a", "a/b"], []),
        ("a*", ["a", "abc"], ["a/b", "ba"]),
        ("*/*", ["a/b"], ["a", "a/b/c"]),
        ("x/**", ["x", "x/a", "x/a/b"], ["xa", "y/x"]),
        ("**/x", ["x", "a/x", "a/b/x"], ["ax", "x/a"]),
        ("x/**/y", ["x/y", "x/a/y", "x/a/b/y"], ["xy", "x/ay"]),
        ("a**z", ["az", "a/z", "abc/d/z"], ["a", "ba/z"]),
        ("**/w*", ["w", "web", "a/b/web"], ["web/a", "aweb"]),
        ("**/a/**/b?", ["a/bc", "x/a/y/z/bc"], ["a/b", "x/ab/bc"]),
        ("?", ["a", "ä"], ["", "ab", "/"]),
        ("[ac-e]", ["a", "c", "d", "e"], ["b", "f", "-", "/"]),
        ("[!ac-e]", ["b", "f", "-"], ["a", "d", "/", ""]),
        ("a[!b]c", ["axc"], ["abc", "a/c"]),
        ("a[.-0]c", ["a.c", "a0c"], ["a/c"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("[!]a]", ["b"], ["]", "a"]),
        ("[^a]", ["^", "a"], ["b"]),
        ("[^]", ["^"], ["a"]),
        ("[a-]", ["a", "-"], ["b"]),
        ("[-a]", ["a", "-"], ["b"]),
        ("[\\-^]", ["\\", "]", "^"], ["a", "-"]),
        ("[z-a]", [], ["a", "z", "-"]),
        ("[!z-a]", ["a", "z", "-"], ["/"]),
        ("[*][?][[]", ["*?["], ["aaa"]),
        ("{a,b}c", ["ac", "bc"], ["cc", "{a,b}c"]),
        ("{a,{b,c}/d}", ["a", "b/d", "c/d"], ["b", "a/d"]),
        ("{,a}b", ["b", "ab"], ["a"]),
        ("{a*,[,]}", ["axx", ","], ["b"]),
        ("{*,b}*c", ["xyc", "c", "bc"], ["x/c"]),
        ("{*,b}**c", ["xyc", "x/c", "bc"], ["x/d"]),
        ("a,b}", ["a,b}"], ["a", "b"]),
        ("WEB-[A-C]", ["web-b"], ["web-d"]),
        ("a\\*", ["a\\b"], ["a*"]),
        ("", [""], ["a"]),
    ],
)
def test_filters_match_exactly_these_paths(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = matcher(pattern)
    for path, expected in [*((path, True) for path in matching), *((path, False) for path in others)]:
        assert matches(path) is expected, (pattern, path)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a[b", "without its ]"),
        ("[]", "without its ]"),
        ("{a", "without its }"),
        ("{" * 500, "levels"),
        ("a" * 1001, "1000 characters"),
        ("{a,b}" * 7, "alternatives"),
        ("**/a/" * 7, "alternatives"),
        ("{" + "a," * 64 + "}", "alternatives"),
    ],
)
def test_bad_filters_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        names.compile_pattern(pattern)


def test_names_with_special_characters_are_found(vault: Vault, add: Add) -> None:
    for name in ("100%", "a_b", "web[1]", "{x}", "it's", 'a"b', "a\\b", "*", "Ünï", "ΑΣ"):
        literal = "".join(f"[{c}]" if c in "*?[{" else c for c in name)
        id = add(name)
        assert vault.connections.query("*", literal, "*") == [id], name


def test_types_are_matched_without_regard_for_case(vault: Vault, add: Add) -> None:
    ssh, wrapper = add("one", type="ssh"), add("two", type="shellEnvironment")
    for filter, expected in [
        ("ssh", [ssh]),
        ("S*", [ssh, wrapper]),
        ("shellenvironment", [wrapper]),
        ("{local,ssh}", [LOCAL, ssh]),
        ("x", []),
    ]:
        assert vault.connections.query("*", "*", filter) == expected


def test_found_ids_are_in_the_order_of_paths(vault: Vault, add: Add) -> None:
    ids = {name: add(name) for name in ("c", "B", "a", "Z", "a b", "ä")}
    expected = [ids[name] for name in ("a", "a b", "B", "c", "Z", "ä")]
    assert [id for id in vault.connections.query() if id != LOCAL] == expected
    assert vault.connections.query("*", "?", "*") == [id for id in expected if id != ids["a b"]]


@pytest.fixture(scope="module", params=BOTH)
def stocked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A vault whose connections have :func:`paths`."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('stocked')}/vault.db"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        url = server.dsn(server.create())
    database = open_database(url)
    vault = Vault(database, KEY)
    database.write(lambda tx: tx.execute(connection.delete()))
    database.write(lambda tx: tx.execute(connection.insert(), [row(path) for path in paths()]))
    yield database
    vault.close()


@cache
def paths() -> tuple[str, ...]:
    generator = random.Random(1)
    made = {
        "/".join(
            segment("".join(generator.choices(ALPHABET, k=generator.randrange(1, 4))))
            for _ in range(generator.randrange(1, 5))
        )
        for _ in range(250)
    }
    return tuple(sorted(made))


def row(path: str) -> dict[str, object]:
    at, blank = now(), {"data": "{}", "state": "{}", "cache": "{}", "fingerprint": b"", "mac": b""}
    times = {"created": at, "last_used": at, "last_modified": at}
    place = {"path": path, "depth": path.count("/") + 1, "parent": None, "category": DEFAULT}
    return {"id": str(uuid.uuid4()), "name": path, "type": "ssh", **place, **blank, **times}


def found(database: Database, pattern: str) -> list[str]:
    """Return the paths that the database finds."""
    ids = database.read(lambda tx: search.ConnectionQuery("*", pattern, "*").run(tx, KEY))
    by_id = dict(database.read(lambda tx: tx.execute(sa.select(connection.c.id, connection.c.path)).all()))
    return [by_id[id] for id in ids]


pieces = st.lists(
    st.sampled_from(
        ["a", "b", "B", "/", "/", "*", "**", "?", "**/", "/**", "/**/", ".", "^", "-", "\\", "ä", "Σ", " "]
    ),
    max_size=8,
).map("".join)
sets = st.builds("[{}{}]".format, st.sampled_from(["", "!"]), st.text(ALPHABET + "09", min_size=1, max_size=5)).filter(
    lambda text: text.find("]", 3 if text[1] == "!" else 2) == len(text) - 1
)
rich = st.recursive(
    st.lists(pieces | sets, max_size=4).map("".join),
    lambda inner: st.builds("{}{{{}}}{}".format, inner, st.lists(inner, min_size=1, max_size=3).map(",".join), inner),
    max_leaves=4,
)
examined = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@examined
@example(pattern="**/a*", path="b/ab")
@given(pattern=pieces, path=st.lists(st.text("abä. ", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join))
def test_wildcards_mean_what_their_definition_says(pattern: str, path: str) -> None:
    assert matcher(pattern)(path) is plainly(fold(pattern), path)


@examined
@example(pattern="")
@example(pattern="/**/")
@given(pattern=pieces | rich)
def test_both_databases_find_the_same_connections(stocked: Database, pattern: str) -> None:
    try:
        matches = matcher(pattern)
    except InvalidRequest:
        return
    assert found(stocked, pattern) == list(filter(matches, paths()))


@examined
@given(pattern=pieces)
def test_sqlite_finds_the_same_when_it_only_narrows_down(stocked: Database, pattern: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "MAX_GLOBS", 0)
        assert found(stocked, pattern) == list(filter(matcher(pattern), paths()))


def test_no_filter_takes_exponential_time(stocked: Database) -> None:
    long = "a" * 200
    hostile: list[Callable[[], object]] = [
        lambda: matcher("*a" * 60 + "b")(long),
        lambda: matcher("**a*" * 60 + "b")(long),
        lambda: found(stocked, "*a" * 300 + "b"),
        lambda: found(stocked, "**a*" * 200 + "b"),
    ]
    for attempt in hostile:
        assert not attempt()


def test_a_long_filter_finds_a_long_path(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/vault.db")
    vault = Vault(database, KEY)
    database.write(lambda tx: tx.execute(connection.insert(), [row("a/" * 30 + "b" * 255)]))
    assert found(database, "**/a/**/a*/**/b*") == ["a/" * 30 + "b" * 255]
    assert found(database, "**/" + "[!c]" * 240 + "*") == ["a/" * 30 + "b" * 255]
    vault.close()


@examined
@example(pattern="x/**", path="x/a")
@example(pattern="{a/b,c}/*", path="a/b/c")
@given(
    pattern=pieces | rich, path=st.lists(st.text("abä.", min_size=1, max_size=3), min_size=2, max_size=4).map("/".join)
)
def test_a_divided_filter_matches_both_parts_of_what_the_whole_one_matches(pattern: str, path: str) -> None:
    try:
        matches, pairs = matcher(pattern), names.divided(pattern)
    except InvalidRequest:
        return
    if names.compile_pattern(pattern) is None:
        assert pairs == []
        return
    for at in (at for at, character in enumerate(path) if character == "/"):
        parts = fold(path[:at]), fold(path[at + 1 :])
        divided = any(all(names.Matcher([one])(part) for one, part in zip(pair, parts, strict=True)) for pair in pairs)
        assert divided is matches(fold(path)), parts


def test_a_name_is_the_path_or_category_and_path(vault: Vault, add: Add) -> None:
    fleet = vault.categories.add("Fleet", ALL_CONNECTIONS)
    eu = vault.categories.add("eu", fleet)
    ids = {"web1": add("web1", category=fleet), "eu/web2": add("web2", category=eu), "spare": add("spare")}
    for pattern, expected_names in {
        "fleet/*": ["web1"],
        "fleet/**": ["web1", "eu/web2"],
        "FLEET/eu/web?": ["eu/web2"],
        "**/web*": ["web1", "eu/web2"],
        "**web*": ["web1", "eu/web2"],
        "eu/web2": [],
        "**/eu/*": ["eu/web2"],
        "{fleet/eu,nowhere}/web*": ["eu/web2"],
        "web*": ["web1", "eu/web2"],
        "default/*": ["spare", "local machine"],
        "f**2": ["eu/web2"],
        "fleet": [],
    }.items():
        expected = {ids.get(name, LOCAL) for name in expected_names}
        assert set(vault.connections.query(name_filter=pattern)) == expected, pattern
        assert {one.id for one in vault.connections.listed(name_filter=pattern)} == expected, pattern
    assert vault.connections.query("default", name_filter="**/web*") == []
    (one,) = vault.connections.listed(name_filter="**/eu/*")
    assert (one.path, one.category) == (("web2",), eu)


def test_paths_that_no_index_holds_are_found_in_their_order(vault: Vault) -> None:
    paths = ["a", "b" * 200 + "/c" * 600, "b" * 201, "z/" * 700 + "\U0010ffff", "\ud7ff", "\ue000"]
    vault.database.write(lambda tx: tx.execute(connection.insert(), [row(path) for path in paths]))
    assert [path for path in found(vault.database, "*") if path in paths] == paths
    assert found(vault.database, "b**") == paths[1:3]
    assert found(vault.database, "**\U0010ffff") == [paths[3]]
    assert found(vault.database, "\ud7ff*") == ["\ud7ff"]
