"""Imports: their direction, the only place of each library, and that they have no side effects."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ORDER = [
    "errors",
    "contract",
    "cancellation",
    "shares",
    "computing",
    "suspension",
    "events",
    "poller",
    "printable",
    "durations",
    "ansible_inventory",
    "processes",
    "paths",
    "streams",
    "settings",
    "fields",
    "plugin",
    "json_schema",
    "secret_sources",
    "registry",
    "secrets",
    "vault",
    "audit",
    "rights",
    "signers",
    "engine",
    "links",
    "shell",
    "fs",
    "undo",
    "facts",
    "jobs",
    "runs",
    "schedules",
    "inventories",
    "pipes",
    "terminals",
    "tunnels",
    "multiplex",
    "api",
    "daemon",
]
"""The server's modules, lowest first: each may import itself and the modules before it."""

SIDES = {
    "__main__": {"cli"},
    "client": {"contract", "errors", "paths", "printable", "processes", "streams"},
    "cli": {
        "ansible_inventory",
        "client",
        "contract",
        "durations",
        "errors",
        "paths",
        "printable",
        "processes",
        "settings",
        "streams",
        "__init__",
    },
    "mcp": {"client", "contract", "paths", "printable", "__init__"},
    "testing": {"errors", "fields", "plugin", "registry", "secrets", "vault", "engine", "links", "shell"},
}
"""Modules beside that order, and which modules they may import at the top of a file."""

HOMES = {
    "flask": "connmgr.api",
    "werkzeug": "connmgr.api",
    "apispec": "connmgr.api connmgr.json_schema",
    "markupsafe": "connmgr.api",
    "croniter": "connmgr.schedules",
    "prometheus_client": "connmgr.api.metrics",
    "waitress": "connmgr.daemon",
    "sqlalchemy": "connmgr.vault",
    "alembic": "connmgr.vault",
    "psycopg": "connmgr.vault",
    "nacl": "connmgr.secrets",
    "shamir_mnemonic": "connmgr.secrets.recovery",
    "keyring": "connmgr.secrets",
    "pexpect": "connmgr.links.login",
    "psutil": "connmgr.shell",
    "re2": "connmgr.rights.rule",
    "click": "connmgr.cli connmgr_pyinfra",
    # Only for type checkers, which bring it themselves.
    "typing_extensions": "connmgr.client connmgr.contract",
    "rich": "connmgr.cli",
    "yaml": "connmgr.cli",
    "platformdirs": "connmgr.paths",
    "tomli": "connmgr.settings",
    "tomlkit": "connmgr.cli.commands.mcp_clients",
    "pluggy": "connmgr.plugin connmgr.registry",
    "marshmallow": "connmgr.fields connmgr.json_schema connmgr.api",
    "paramiko": "connmgr_ssh",
    "pytest": "connmgr.testing",
    "cryptography": "connmgr_ssh connmgr.cli.declarative.imports",
    "wcwidth": "connmgr.terminals.emulator",
    "mcp": "connmgr.mcp",
    "mcp_types": "connmgr.mcp",
    "pydantic": "connmgr.mcp",
    "anyio": "connmgr.mcp connmgr.cli.commands.mcp",
    "starlette": "connmgr.mcp",
    "uvicorn": "connmgr.mcp",
    "ansible": "connmgr_ansible",
    "pyinfra": "connmgr_pyinfra",
}
"""Each library, and the modules (with those below them) that may import it."""

BRIDGES = {"ansible_collections", "connmgr_ansible", "connmgr_pyinfra"}
"""Packages of ``plugins/`` that other tools load; they are clients of the daemon, not connection types."""

SERVER_LIBRARIES = {"flask", "marshmallow", "waitress", "sqlalchemy", "alembic", "nacl", "paramiko"}


@dataclass(frozen=True)
class Import:
    """One import: the module and its importer."""

    importer: str
    imported: str
    place: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.place}: {self.importer} imports {self.imported}"


def _module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[0] == "plugins":
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _sources() -> Iterator[Path]:
    for folder in ("connmgr", "plugins"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def _modules_named(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            ancestors = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*ancestors, base] if base else ancestors)
        if base == "connmgr" or base == package:
            return [f"{base}.{alias.name}" for alias in node.names]
        return [base]
    return []


def _runs_late_or_never(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


@cache
def _imports() -> list[Import]:
    return list(_find_imports())


def _find_imports() -> Iterator[Import]:
    for path in _sources():
        tree = ast.parse(path.read_text(), str(path))
        module = _module_name(path)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for statement, lazy in _statements(tree):
            for imported in _modules_named(statement, package):
                yield Import(module, imported, f"{path.relative_to(ROOT)}:{statement.lineno}", lazy)


def _statements(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements below ``node``, and whether each runs late or never."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child, lazy
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _statements(child, lazy or _runs_late_or_never(child))


def _part(module: str) -> str:
    """Return the part of the program that a module of ``connmgr`` belongs to: ``api`` for ``connmgr.api.shell``."""
    name = [*module.split("."), "__init__"][1]
    return "__init__" if name.startswith("__version") else name


def _inside(module: str, homes: str) -> bool:
    return any(module == home or module.startswith(home + ".") for home in homes.split())


def _none(offenders: list[Import], rule: str) -> None:
    assert not offenders, rule + "\n" + "\n".join(map(str, offenders))


def test_every_part_of_connmgr_has_a_place_in_the_order() -> None:
    parts = {_part(_module_name(path)) for path in _sources() if path.is_relative_to(ROOT / "connmgr")}
    assert parts <= {*ORDER, *SIDES, "__init__"}


def test_the_server_imports_only_downwards() -> None:
    inside = [i for i in _imports() if i.importer.startswith("connmgr.") and i.imported.startswith("connmgr.")]
    upward = [
        i
        for i in inside
        if _part(i.importer) in ORDER
        and _part(i.imported) not in {"__init__", *ORDER[: ORDER.index(_part(i.importer)) + 1]}
    ]
    _none(upward, f"The order is {' <- '.join(ORDER)}; a module may import only itself and those before it.")


def test_the_client_and_the_command_line_import_the_server_lazily_or_not_at_all() -> None:
    offenders = [
        i
        for i in _imports()
        if i.imported.startswith("connmgr.")
        and _part(i.importer) in SIDES
        and not (i.lazy and _part(i.importer) == "cli")
        and _part(i.imported) not in SIDES[_part(i.importer)] | {_part(i.importer)}
    ]
    _none(offenders, "The server may be imported by commands that run it, inside a function.")


def test_plugins_import_the_plugin_contract_the_errors_and_their_own_library() -> None:
    bundled = {path.name for path in (ROOT / "plugins").iterdir() if path.is_dir()}
    offenders = [
        i
        for i in _imports()
        if i.importer.split(".")[0] in bundled - BRIDGES
        and (
            (_inside(i.imported, "connmgr") and not _inside(i.imported, "connmgr.plugin connmgr.errors"))
            or i.imported.split(".")[0] in bundled - {i.importer.split(".")[0]}
        )
    ]
    _none(offenders, "A plugin imports only connmgr.plugin, connmgr.errors and its own library, never another plugin.")


def test_bridges_import_the_client_and_their_own_tool() -> None:
    offenders = [
        i
        for i in _imports()
        if i.importer.split(".")[0] in BRIDGES
        and _inside(i.imported, "connmgr")
        and not _inside(i.imported, "connmgr.client connmgr.streams.frames")
    ]
    _none(offenders, "A bridge imports connmgr.client, connmgr.streams.frames and its own tool.")


def test_each_library_has_one_home() -> None:
    own = {"connmgr", *(path.name for path in (ROOT / "plugins").iterdir())}
    foreign = [i for i in _imports() if i.imported.split(".")[0] not in own | sys.stdlib_module_names | {"tomllib"}]
    unknown = [i for i in foreign if i.imported.split(".")[0] not in HOMES]
    _none(unknown, "A library without a home: name its home in HOMES, and its reason in setup.cfg.")
    astray = [i for i in foreign if not _inside(i.importer, HOMES[i.imported.split(".")[0]])]
    _none(astray, "Imported outside of the library's home:")


def test_the_program_does_not_import_the_tests() -> None:
    _none([i for i in _imports() if _inside(i.imported, "tests benchmarks examples")], "Tests stand above all.")


@pytest.mark.parametrize("module", ["connmgr", "connmgr.client", "connmgr.cli"])
def test_the_client_side_starts_without_the_server_s_libraries(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert not SERVER_LIBRARIES & set(loaded.stdout.split())


IMPORT_ALL = """
import importlib, os, sys, threading
descriptors = lambda: set(os.listdir("/dev/fd"))
before = descriptors()
for name in sys.argv[1:]:
    importlib.import_module(name)
import logging
assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
assert len(descriptors()) == len(before), descriptors()
assert not logging.getLogger().handlers, "importing configures logging"
assert not os.path.exists(os.environ["HOME"]) or not os.listdir(os.environ["HOME"]), "importing writes files"
"""


def test_importing_everything_starts_nothing(tmp_path: Path) -> None:
    modules = [_module_name(path) for path in _sources()]
    # Importing Ansible or pyinfra has side effects of its own.
    own = [name for name in modules if name.split(".")[0] not in BRIDGES]
    runnable = [name for name in own if not name.endswith("__main__") and ".migrations" not in name]
    outcome = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *runnable],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr


def _circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or indirectly."""
    reached: dict[str, set[str]] = {}
    for start in arrows:
        seen: set[str] = set()
        pending = [start]
        while pending:
            for further in arrows.get(pending.pop(), set()) - seen:
                seen.add(further)
                pending.append(further)
        reached[start] = seen
    groups = {frozenset(other for other in reached[one] if one in reached.get(other, ())) for one in arrows}
    return sorted(sorted(group) for group in groups if group)


def test_no_modules_import_each_other() -> None:
    modules = {_module_name(path) for path in _sources()}
    arrows: dict[str, set[str]] = {module: set() for module in modules}
    for each in _imports():
        # A name imported from a package is a module of it, or defined in it.
        imported = each.imported if each.imported in modules else each.imported.rpartition(".")[0]
        if imported in modules and imported != each.importer:
            arrows[each.importer].add(imported)
    assert _circles(arrows) == [], "Each of these groups needs an order: who knows whom?"


def test_the_terminal_emulator_imports_nothing_of_connmgr_but_itself() -> None:
    emulator = "connmgr.terminals.emulator"
    imports = [i for i in _imports() if _inside(i.importer, emulator)]
    assert imports, "no import was found, so that none was checked"
    _none(
        [i for i in imports if _inside(i.imported, "connmgr") and not _inside(i.imported, emulator)], "It stands alone."
    )
