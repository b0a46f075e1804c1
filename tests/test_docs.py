"""The documentation against the program: everything is documented, and everything documented exists."""

from __future__ import annotations

import ast
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import READY, Daemon

ROOT = Path(__file__).parent.parent
DOCS = {path.relative_to(ROOT).as_posix(): path.read_text() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
ALL_DOCS = "\n".join(DOCS.values())
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
PUBLISHING = {"endpoint", "command", "group", "tool"}
"""Decorators of functions whose docstrings are published: views, commands, and tools for agents."""

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


def _code_spans(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", FENCE.sub("", text))


def _tables(text: str) -> Iterator[list[list[str]]]:
    """Yield each Markdown table as rows of cells, its head first."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        lines = [line for line in block.splitlines() if not re.fullmatch(r"[|:\- ]+", line)]
        yield [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def _first_column(text: str, head: str) -> set[str]:
    """Return the code spans in the first column of every table whose first head is ``head``."""
    rows = [row for table in _tables(text) if table[0][0].lower() == head for row in table[1:]]
    return {span for row in rows for span in re.findall(r"`([^`]+)`", row[0])}


@pytest.fixture(scope="module")
def description(daemon: Daemon) -> dict[str, Any]:
    with urllib.request.urlopen(f"{daemon.url}/openapi.json", timeout=30) as response:
        described: dict[str, Any] = json.load(response)
    return described


def test_every_route_is_documented_and_every_documented_route_exists(description: dict[str, Any]) -> None:
    routes = set(description["paths"])
    groups = {route.split("/")[1] for route in routes}
    spans = {span.removeprefix("POST ").removeprefix("GET ") for span in _code_spans(ALL_DOCS)}
    named = {span for span in spans if re.fullmatch(r"/[a-z]+(/[a-z]+)*", span) and span.split("/")[1] in groups}
    in_reference = set(_code_spans(DOCS["docs/API.md"])) | set(re.findall(r"/[a-z/]+", DOCS["docs/API.md"]))
    assert routes - in_reference == set(), "missing in docs/API.md"
    assert named - routes - {f"/{group}" for group in groups} == set(), "documented, but not there"


def test_every_error_code_is_documented_with_its_status_and_every_documented_code_exists() -> None:
    from connmgr import errors

    classes = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    kinds = [kind for kind in classes if issubclass(kind, errors.ConnmgrError) and kind is not errors.StartupError]
    rows = [row for table in _tables(DOCS["docs/API.md"]) if table[0][0] == "Code" for row in table[1:]]
    documented = {(code, row[1]) for row in rows for code in re.findall(r"`([^`]+)`", row[0])}
    assert {(kind.code, str(kind.status)) for kind in kinds} == documented


def test_every_setting_is_documented_with_its_names_and_default() -> None:
    from connmgr.settings import options

    rows = {row[0]: row for table in _tables(DOCS["docs/OPERATIONS.md"]) if table[0][0] == "Option" for row in table}
    rows.pop("Option")
    expected = {}
    for option in options():
        name = option.name.replace("_", "-")
        expected[f"`--{name}`"] = (f"`CONNMGR_{option.name.upper()}`", f"`{name}`", option.default)
    assert set(rows) == set(expected)
    for flag, (variable, key, default) in expected.items():
        assert (flag, rows[flag][1], rows[flag][2]) == (flag, variable, key)
        if default not in (None, "", ()):
            shown = (
                str(default).lower()
                if isinstance(default, bool)
                else f"{default:g}"
                if isinstance(default, float)
                else ",".join(default)
                if isinstance(default, tuple)
                else default
            )
            assert (flag, rows[flag][3]) == (flag, f"`{shown}`")


def test_no_setting_is_documented_that_does_not_exist() -> None:
    from connmgr.settings import options

    known = {f"CONNMGR_{option.name.upper()}" for option in options()} | {
        "CONNMGR_CONFIG",
        "CONNMGR_SESSION",
        "CONNMGR_TOKEN",
        "CONNMGR_TOKEN_FILE",
        "CONNMGR_API_KEY_FILE",
        "CONNMGR_APPROVER_TOKEN_FILE",
        "CONNMGR_COMMAND",
        "CONNMGR_JOB",
    }
    named = set(re.findall(r"\bCONNMGR_[A-Z_]+\b", ALL_DOCS))
    assert named - known == set()


def _commands() -> dict[str, set[str]]:
    """Return the options of each command of the command line, by its words: ``vault backup``."""
    import click

    from connmgr.cli.root import main

    found: dict[str, set[str]] = {}

    def walk(command: click.Command, words: tuple[str, ...]) -> None:
        parameters = [option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)]
        found[" ".join(words)] = {option for option in parameters if option.startswith("-")} | {"--help"}
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None, f"{words} lists {name}, and does not have it"
                walk(inner, (*words, name))

    walk(main, ())
    return found


def test_every_command_is_documented() -> None:
    missing = [words for words in _commands() if not re.search(rf"\bconnmgr {words}\b", ALL_DOCS)]
    assert missing == []


def test_every_option_of_a_command_is_documented() -> None:
    documented = {*re.findall(r"(?<![\w-])--[\w-]+", ALL_DOCS), "--help"}
    missing = [
        f"connmgr {words} {option}"
        for words, options in _commands().items()
        for option in options - documented
        if option.startswith("--")
    ]
    assert missing == []


def _command_lines() -> Iterator[str]:
    for text in DOCS.values():
        blocks = [line for fence in FENCE.finditer(text) for line in fence["text"].splitlines()]
        lines = [line for line in [*blocks, *_code_spans(text)] if not line.startswith(READY)]
        yield from (line for line in lines if re.match(r"(\$ )?connmgr [a-z-]", line))


def _is_no_command(line: str, commands: dict[str, set[str]]) -> bool:
    # A command for a remote host follows ``--``.
    words = re.split(r"[|&;<>]| -- ", line.removeprefix("$ "))[0].split()[1:]
    name = ""
    while words and f"{name} {words[0]}".strip() in commands:
        name = f"{name} {words.pop(0)}".strip()
    # `connmgr run GLOB -- COMMAND` is `connmgr run start GLOB -- COMMAND`.
    name = "run start" if name == "run" and words else name
    options = {word.split("=")[0].strip("[]…") for word in words if word.strip("[]").startswith("--")}
    return bool((not name and not options) or options - commands[name])


def test_no_command_or_option_is_documented_that_does_not_exist() -> None:
    commands = _commands()
    assert [line for line in _command_lines() if _is_no_command(line, commands)] == []


def _texts_of_the_code() -> Iterator[str]:
    """Yield each text of the code on one line, with X in place of what is filled in."""
    for path in [*ROOT.glob("connmgr/**/*.py"), *ROOT.glob("plugins/**/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.JoinedStr(values=parts):
                    text = "".join(part.value if isinstance(part, ast.Constant) else "X" for part in parts)
                case ast.Constant(value=str(text)):
                    pass
                case _:
                    continue
            yield " ".join(text.split())


def test_no_message_names_a_command_or_option_that_does_not_exist() -> None:
    commands = _commands()
    named = {line for text in _texts_of_the_code() for line in re.findall(r"`(connmgr [a-z-][^`]*)`", text)}
    assert len(named) > 100
    assert sorted(line for line in named if _is_no_command(line, commands)) == []


def test_every_hook_is_documented() -> None:
    from connmgr.plugin import hooks as hookspecs

    hooks = [name for name, value in vars(hookspecs).items() if hasattr(value, "connmgr_spec")]
    assert hooks
    assert [hook for hook in hooks if f"{hook}" not in DOCS["docs/PLUGINS.md"]] == []


def test_every_connection_type_is_documented(daemon: Daemon) -> None:
    answer = daemon.client.post("/connection/types")
    assert isinstance(answer, dict)
    missing = [kind["type"] for kind in answer["types"] if f"`{kind['type']}`" not in DOCS["docs/API.md"]]
    assert missing == []


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_within_the_project_lead_somewhere() -> None:
    broken = []
    for name, text in DOCS.items():
        for target in LINK.findall(FENCE.sub("", text)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (ROOT / name).parent / path if path else ROOT / name
            if not file.exists() or (anchor and anchor not in _anchors(file.read_text())):
                broken.append(f"{name}: {target}")
    assert broken == []


def test_the_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    code = _code_spans(ALL_DOCS) + [line for fence in FENCE.finditer(ALL_DOCS) for line in fence["text"].splitlines()]
    named = {match[1] for line in code if (match := re.match(r"(?:\$ )?make ([a-z]+)", line))}
    assert {"run", "test"} <= named <= targets


def test_the_continuous_integration_runs_the_tests_as_in_the_readme() -> None:
    assert re.search(r"^make test$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert re.search(r"^(\$ )?make test$", DOCS["README.md"], re.MULTILINE)


def _unpublished(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions below ``tree`` whose docstrings appear only in the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            called = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
            if not {ast.unparse(one).rpartition(".")[2] for one in called} & PUBLISHING:
                yield node


def _surplus(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return by how many lines of text the docstring exceeds the code; 0 for a single line, and for ``...``."""
    code = function.body[1:]
    text = [line for line in (ast.get_docstring(function) or "").splitlines() if line]
    if len(text) <= 1 or not code or all(isinstance(one, ast.Raise) or ast.unparse(one) == "..." for one in code):
        return 0
    return max(0, len(text) - ((code[-1].end_lineno or 0) - code[0].lineno + 1))


def test_no_unpublished_docstring_is_longer_than_its_code() -> None:
    """The plugin's interface is exempt, because authors of plugins read its docstrings."""
    files = [*(ROOT / "connmgr").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    longer = [
        f"{path.relative_to(ROOT)}:{one.lineno} {one.name}: {surplus} lines"
        for path in files
        if (ROOT / "connmgr" / "plugin") not in path.parents
        for one in _unpublished(ast.parse(path.read_text()))
        if (surplus := _surplus(one))
    ]
    assert longer == []


def test_what_is_installed_for_the_tests_is_listed() -> None:
    from scripts.floors import floors
    from tests.components import COMPONENTS
    from tests.public_clients.installed import VERSIONS

    rows = [row for table in _tables(DOCS["docs/TESTS.md"]) if table[0][:2] == ["from", "installed"] for row in table]
    listed = {origin: [] for origin in ("Debian", "PyPI", "npm")}
    for origin, installed, why in rows[1:]:
        assert why
        listed[origin] += re.findall(r"`([^`]+)`", installed)
    text = (ROOT / "setup.cfg").read_text()
    own = floors(
        re.sub(
            r"\[options.extras_require\].*(?=\[options.entry_points\])",
            "[options.extras_require]\n",
            text,
            flags=re.DOTALL,
        )
    )
    names = {re.split(r"[=\[]", line)[0] for line in set(floors(text)) - set(own)}
    packages = {package for one in COMPONENTS.values() for package in one.packages if package}
    locked = set(json.loads((ROOT / "tests/mcp/npm/package.json").read_text())["dependencies"])
    page = json.loads((ROOT / "connmgr/page/package.json").read_text())
    locked |= {*page["devDependencies"], *page["optionalDependencies"]}
    assert sorted(listed["Debian"]) == sorted({*packages, "python3-venv"})
    assert sorted(listed["PyPI"]) == sorted({*names, *(version.distribution for version in VERSIONS)})
    assert sorted(listed["npm"]) == sorted(locked)


REFERENCE = re.compile(r":(?:mod|class|func|meth|data|exc|attr):`~?(?P<name>connmgr\w*(?:\.\w+)+)`")
SOURCE = re.compile(
    r"(?<![\w./-])(?:connmgr|connmgr_\w+|plugins|tests|examples|benchmarks|scripts)/[\w/]+\.(?:py|sh|md)\b"
)


def _leads_somewhere(name: str) -> bool:
    """Whether a dotted name is a module of connmgr or its plugins, or a member of one or of a class in one."""
    words = name.split(".")
    for end in range(len(words), 0, -1):
        path = ROOT.joinpath("plugins" if words[0] != "connmgr" else "", *words[:end])
        if path.with_suffix(".py").is_file():
            return _says(path.with_suffix(".py").read_text(), words[end:])
        if path.is_dir():
            # A package may pass on a name, whose members are then in one of its modules.
            modules = "\n".join(file.read_text() for file in path.glob("*.py"))
            return _says((path / "__init__.py").read_text(), words[end : end + 1]) and _says(modules, words[end + 1 :])
    return False


def _says(text: str, words: list[str]) -> bool:
    return all(re.search(rf"\b{re.escape(word)}\b", text) for word in words)


def test_references_of_docstrings_lead_somewhere() -> None:
    astray = [
        f"{path.relative_to(ROOT)}: {match['name']}"
        for folder in ("connmgr", "plugins")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for match in REFERENCE.finditer(path.read_text())
        if not _leads_somewhere(match["name"])
    ]
    assert astray == []


def test_files_of_the_project_that_are_named_exist() -> None:
    pages = {**DOCS, **{name: (ROOT / name).read_text() for name in ("Makefile", "setup.cfg")}}
    named = {(page, match[0]) for page, text in pages.items() for match in SOURCE.finditer(text)}
    # docs/PLUGINS.md shows a project of its own.
    missing = {
        (page, path)
        for page, path in named
        if not (ROOT / path).exists() and not (ROOT / "plugins" / path).exists() and "netns" not in path
    }
    assert missing == set()
