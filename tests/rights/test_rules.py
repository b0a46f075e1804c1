"""The syntax of rules, and how several rules decide together."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from connmgr.errors import InvalidRequest
from connmgr.rights.rules import Decision, RequestedCommand, Rules, combined, load_rules

HERE = ("web/web1", "default/web/web1")


def load(*rules: dict[str, Any]) -> Rules:
    return load_rules(list(rules))


def decide(rules: Rules, *argv: str, **wanted: Any) -> Decision:
    return rules.decide_command(RequestedCommand(**{"names": HERE, "argv": argv or None, **wanted}))


ALLOW = {"effect": "allow"}


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ("x", "rules[0]: Not an object"),
        ({}, "rules[0]: A rule needs exactly one of"),
        ({"effect": "allow"}, "rules[0]: A rule needs exactly one of"),
        ({"argv": ["a"], "path": "/a"}, "rules[0]: A rule needs exactly one of"),
        ({"argv": ["a"]}, "rules[0].effect: Not one of"),
        ({"effect": "Allow", "argv": ["a"]}, "rules[0].effect: Not one of"),
        ({"effect": ["allow"], "argv": ["a"]}, "rules[0].effect: Not one of"),
        ({**ALLOW, "argv": ["a"], "when": "x"}, "rules[0].when: Not a member"),
        ({**ALLOW, "argv": ["a"], "action": "fs.read"}, "rules[0].action: Not a member"),
        ({**ALLOW, "path": "/a", "cwd": "/a"}, "rules[0].cwd: Not a member"),
        ({**ALLOW, "argv": []}, "rules[0].argv: Not a list with at least one member"),
        ({**ALLOW, "argv": "ls"}, "rules[0].argv: Not a list"),
        ({**ALLOW, "argv": [{"re": "ls"}]}, "rules[0].argv[0]: The program is a text"),
        ({**ALLOW, "argv": [""]}, "rules[0].argv[0]: The program is a text"),
        ({**ALLOW, "argv": ["./ls"]}, "rules[0].argv[0]: The program is a text"),
        ({**ALLOW, "argv": ["bin/ls"]}, "rules[0].argv[0]: The program is a text"),
        ({**ALLOW, "argv": ["/bin/../tmp/ls"]}, "rules[0].argv[0]: The program is a text"),
        ({**ALLOW, "argv": ["/bin/"]}, "rules[0].argv[0]: The program is a text"),
        ({**ALLOW, "argv": ["/"]}, "rules[0].argv[0]: The program is a text"),
        ({**ALLOW, "argv": ["ls\0"]}, "rules[0].argv[0]: It holds a NUL"),
        ({**ALLOW, "argv": ["A=b"]}, "rules[0].argv[0]: A program with `=`"),
        ({**ALLOW, "argv": ["ls", "\ud800"]}, "rules[0].argv[1]: It holds a NUL character or a lone surrogate"),
        ({**ALLOW, "argv": ["ls", 1]}, "rules[0].argv[1]: Neither a text nor an object"),
        ({**ALLOW, "argv": ["ls", {}]}, "rules[0].argv[1]: Neither a text nor an object"),
        ({**ALLOW, "argv": ["ls", {"glob": "x"}]}, "rules[0].argv[1]: Neither a text nor an object"),
        ({**ALLOW, "argv": ["ls", {"re": "x", "in": ["x"]}]}, "rules[0].argv[1]: Neither a text nor an object"),
        ({**ALLOW, "argv": ["ls", {"rest": {"re": "x"}}, "x"]}, "rules[0].argv[1]: Neither a text nor an object"),
        ({**ALLOW, "argv": ["ls", {"rest": {"rest": "x"}}]}, "rules[0].argv[1].rest: Neither a text nor an object"),
        ({**ALLOW, "argv": [{"rest": "x"}]}, "rules[0].argv[0]: The program is a text"),
        (
            {**ALLOW, "argv": ["ls", "x", {"re": "("}]},
            "rules[0].argv[2].re: Not a regular expression of RE2: missing )",
        ),
        ({**ALLOW, "argv": ["ls", {"re": "(?=a)"}]}, "rules[0].argv[1].re: Not a regular expression of RE2"),
        ({**ALLOW, "argv": ["ls", {"re": r"(a)\1"}]}, "rules[0].argv[1].re: Not a regular expression of RE2"),
        ({**ALLOW, "argv": ["ls", {"re": "a{1000}{1000}"}]}, "rules[0].argv[1].re: Not a regular expression of RE2"),
        ({**ALLOW, "argv": ["ls", {"re": "a" * 501}]}, "rules[0].argv[1].re: Longer than 500"),
        ({**ALLOW, "argv": ["ls", {"re": None}]}, "rules[0].argv[1].re: Not a text"),
        ({**ALLOW, "argv": ["ls", {"in": []}]}, "rules[0].argv[1].in: Not a list with at least one member"),
        ({**ALLOW, "argv": ["ls", {"in": ["a", 1]}]}, "rules[0].argv[1].in[1]: Not a text"),
        ({**ALLOW, "argv": ["ls", {"in": ["a"] * 501}]}, "rules[0].argv[1].in: More than 500"),
        ({**ALLOW, "argv": ["ls", {"integer": 3}]}, "rules[0].argv[1].integer: Not an object"),
        ({**ALLOW, "argv": ["ls", {"integer": {"min": True}}]}, "rules[0].argv[1].integer.min: Not an integer"),
        ({**ALLOW, "argv": ["ls", {"integer": {"max": 10**18}}]}, "rules[0].argv[1].integer.max: Not an integer"),
        (
            {**ALLOW, "argv": ["ls", {"integer": {"max": -1}}]},
            "rules[0].argv[1].integer: No integer is between 0 and -1",
        ),
        ({**ALLOW, "argv": ["ls", {"path": "srv/**"}]}, "rules[0].argv[1].path: Not an absolute path"),
        ({**ALLOW, "argv": ["ls", {"path": "/srv/../**"}]}, "rules[0].argv[1].path: Not an absolute path"),
        ({**ALLOW, "argv": ["ls", {"path": "/srv/["}]}, "rules[0].argv[1].path: The filter has a [ without its ]"),
        ({**ALLOW, "argv": ["ls"] * 101}, "rules[0].argv: More than 100"),
        ({**ALLOW, "argv": ["ls", "x" * 4097]}, "rules[0].argv[1]: Longer than 4096"),
        ({**ALLOW, "argv": ["ls"], "name": 1}, "rules[0].name: Not a text"),
        ({**ALLOW, "argv": ["ls"], "connections": "web"}, "rules[0].connections: Not a list"),
        ({**ALLOW, "argv": ["ls"], "connections": []}, "rules[0].connections: Not a list with at least one member"),
        ({**ALLOW, "argv": ["ls"], "connections": ["{"]}, "rules[0].connections[0]: The filter has a {"),
        ({**ALLOW, "argv": ["ls"], "user": []}, "rules[0].user: Not a list with at least one member"),
        ({**ALLOW, "argv": ["ls"], "user": [1]}, "rules[0].user[0]: Not a text"),
        ({**ALLOW, "argv": ["ls"], "env": []}, "rules[0].env: Not an object"),
        ({**ALLOW, "argv": ["ls"], "env": {"A=": "x"}}, "rules[0].env: Not the name of a variable"),
        ({**ALLOW, "argv": ["ls"], "env": {"A\n": "x"}}, "rules[0].env: Not the name of a variable"),
        ({**ALLOW, "argv": ["ls"], "env": {"A": 1}}, "rules[0].env.A: Neither a text nor an object"),
        ({**ALLOW, "argv": ["ls"], "cwd": "srv"}, "rules[0].cwd.path: Not an absolute path"),
        ({**ALLOW, "argv": ["ls"], "stdin": "no"}, "rules[0].stdin: Neither true nor false"),
        ({**ALLOW, "argv": ["ls"], "mayRunOthers": 1}, "rules[0].mayRunOthers: Neither true nor false"),
        ({"effect": "deny", "argv": ["ls"], "cwd": "/"}, "rules[0].cwd: A deny rule applies whatever accompanies"),
        ({"effect": "deny", "argv": ["ls"], "env": {}}, "rules[0].env: A deny rule applies whatever accompanies"),
        ({**ALLOW, "text": "ls"}, "rules[0].effect: A text can hide what it runs"),
        ({"effect": "deny", "text": "("}, "rules[0].text: Not a regular expression"),
        ({**ALLOW, "command": 1}, "rules[0].command: Not a text"),
        ({**ALLOW, "command": "x", "arguments": []}, "rules[0].arguments: Not an object"),
        ({**ALLOW, "command": "x", "arguments": {"a": 1}}, "rules[0].arguments.a: Neither a text"),
        ({**ALLOW, "path": "srv"}, "rules[0].path: Not an absolute path"),
        ({**ALLOW, "path": 1}, "rules[0].path: Not a text"),
        ({**ALLOW, "path": "/srv", "action": "fs.list"}, "rules[0].action: Neither fs.read nor fs.write"),
        ({**ALLOW, "path": "/" + "{a,b}" * 7}, "rules[0].path: The filter has too many alternatives"),
    ],
)
def test_a_malformed_rule_is_refused_with_its_place(rule: object, place: str) -> None:
    with pytest.raises(InvalidRequest, match="^" + re.escape(place)):
        load_rules([rule])


def test_errors_number_the_rules_whose_count_and_length_are_limited() -> None:
    with pytest.raises(InvalidRequest, match=r"^rules\[2\]\.effect"):
        load({**ALLOW, "argv": ["a"]}, {**ALLOW, "argv": ["a"]}, {"argv": ["a"]})
    with pytest.raises(InvalidRequest, match=r"^rules: More than 200"):
        load(*[{**ALLOW, "argv": ["a"]}] * 201)
    with pytest.raises(InvalidRequest, match=r"^rules: Their patterns are too long together"):
        load(*[{**ALLOW, "path": "/" + "a" * 900}] * 30)
    with pytest.raises(InvalidRequest, match=r"^rules: Not a list"):
        load_rules({})


RUN_OTHERS = """
    env sudo su doas xargs find nice nohup timeout time watch strace sh bash zsh fish python python3 python3.12 perl5.36
    ruby node awk gawk sed vi vim.tiny nano emacs less more man git ssh scp rsync tar zip make docker podman kubectl
    systemd-run chroot nsenter unshare setsid stdbuf parallel ionice taskset flock script expect gdb busybox ld.so
    arch whereis m4 /lib64/ld-linux-x86-64.so.2 /usr/local/bin/bash /opt/python/bin/python3.13 Bash
"""


@pytest.mark.parametrize("program", RUN_OTHERS.split())
def test_a_program_that_runs_others_takes_only_fixed_words(program: str) -> None:
    for effect in ("allow", "ask"):
        for open_ended in ({"re": "x"}, {"path": "/x"}, {"integer": {}}, {"rest": "x"}):
            with pytest.raises(InvalidRequest, match=r"^rules\[0\]\.argv: .* runs or loads other programs"):
                load({"effect": effect, "argv": [program, open_ended]})
            load({"effect": effect, "argv": [program, open_ended], "mayRunOthers": True})
        load({"effect": effect, "argv": [program, "x", {"in": ["x", "y"]}]})
    load({"effect": "deny", "argv": [program, {"rest": {"re": ".*"}}]})


@pytest.mark.parametrize("program", ["cat", "ls", "/usr/bin/uname", "/bin/df", "grep", "uptime", "echo"])
def test_a_program_that_only_prints_takes_any_words(program: str) -> None:
    load({**ALLOW, "argv": [program, {"rest": {"re": ".*"}}]})


UNCLASSED = """
    systemctl journalctl loginctl ip wget curl csplit gpg ssh-keygen modprobe mount tee dd cp install ln usermod date
    hostname uniq xxd shuf tree file dmesg ss getent getconf kill touch rm /opt/app/bin/deploy ldd 2time3x
    /opt/bin/cat /tmp/ls base64
"""


@pytest.mark.parametrize("program", UNCLASSED.split())
def test_a_program_that_nobody_has_classed_takes_no_free_words(program: str) -> None:
    for free in ({"re": "x"}, {"path": "/x"}, {"integer": {}}, {"integer": {"min": -1, "max": 1}}, {"rest": "x"}):
        rule = {**ALLOW, "argv": [program, free]}
        with pytest.raises(InvalidRequest, match=r"^rules\[0\]\.argv: .*mayRunOthers"):
            load(rule)
        load({**rule, "mayRunOthers": True})
        stored = load_rules([rule], are_stored=True)
        assert stored.decide_command(RequestedCommand(names=("x",), argv=(program, "1"))).effect == "deny"
    load({**ALLOW, "argv": [program, "x", {"in": ["x", "y"]}, {"integer": {"min": 0, "max": 9}}]})
    load({"effect": "ask", "argv": [program, {"rest": {"re": ".*"}}]})


def test_a_rule_allows_a_terminal_only_if_it_says_so() -> None:
    for rule in ({"argv": ["ls"]}, {"argv": ["systemctl", "status"], "stdin": True}):
        argv = tuple(rule["argv"])
        with_pty = RequestedCommand(names=("x",), argv=argv, has_pty=True)
        assert load({**ALLOW, **rule}).decide_command(with_pty).effect == "deny"
        assert load({**ALLOW, **rule, "pty": False}).decide_command(with_pty).effect == "deny"
        assert load({**ALLOW, **rule, "pty": True}).decide_command(with_pty).effect == "allow"
        assert load({**ALLOW, **rule, "pty": True}).decide_command(replace(with_pty, has_pty=False)).effect == "allow"
    with pytest.raises(InvalidRequest, match=r"^rules\[0\]\.pty: Neither true nor false"):
        load({**ALLOW, "argv": ["ls"], "pty": 1})
    with pytest.raises(InvalidRequest, match=r"^rules\[0\]\.pty: A deny rule"):
        load({"effect": "deny", "argv": ["ls"], "pty": True})


STEERING = """
    LD_PRELOAD LD_AUDIT DYLD_INSERT_LIBRARIES PATH BASH_ENV ENV IFS PYTHONPATH PYTHONSTARTUP PERL5LIB PERL5OPT RUBYOPT
    NODE_OPTIONS GIT_SSH_COMMAND GIT_EXTERNAL_DIFF PAGER MANPAGER SYSTEMD_PAGER EDITOR VISUAL LESSOPEN SHELLOPTS PS4
    PROMPT_COMMAND ZDOTDIR HOME TAR_OPTIONS MAKEFLAGS RSYNC_RSH JAVA_TOOL_OPTIONS _JAVA_OPTIONS GLIBC_TUNABLES
    GCONV_PATH HTTPS_PROXY https_proxy SSL_CERT_FILE KUBECONFIG DOCKER_HOST BASH_FUNC_ls Path
"""


@pytest.mark.parametrize("variable", STEERING.split())
def test_no_ordinary_rule_may_name_a_variable_that_steers_programs(variable: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^rules\[0\]\.env\.{variable}: This variable can have a program run"):
        load({**ALLOW, "argv": ["ls"], "env": {variable: "x"}})
    load({**ALLOW, "argv": ["ls"], "env": {variable: "x"}, "mayRunOthers": True})


def test_deny_takes_precedence_over_ask_and_ask_over_allow() -> None:
    rules = load(
        {**ALLOW, "argv": ["repo", {"rest": {"re": ".*"}}], "name": "reading", "mayRunOthers": True},
        {"effect": "ask", "argv": ["repo", "push"], "name": "pushing"},
        {"effect": "deny", "argv": ["repo", "push", "--force"]},
    )
    assert decide(rules, "repo", "log") == Decision("allow", 0, "reading", ("repo", "log"), FIXED, exact=True)
    assert decide(rules, "repo", "push") == Decision("ask", 1, "pushing", ("repo", "push"), FIXED, exact=True)
    assert decide(rules, "repo", "push", "--force") == Decision("deny", 2)
    assert decide(rules, "repo", "push", "there") == Decision("deny", 1, "pushing")
    assert decide(rules, "other") == Decision("deny")


FIXED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def test_a_program_runs_from_the_directory_in_the_rule() -> None:
    rules = load({**ALLOW, "argv": ["/opt/a/tool"]}, {**ALLOW, "argv": ["ls"]})
    assert decide(rules, "tool") == Decision("allow", 0, None, ("/opt/a/tool",), exact=True)
    assert decide(rules, "/opt/a/tool") == Decision("allow", 0, None, ("/opt/a/tool",), exact=True)
    assert decide(rules, "ls") == Decision("allow", 1, None, ("ls",), FIXED, exact=True)
    assert decide(rules, "/bin/ls") == Decision("allow", 1, None, ("/bin/ls",), exact=True)
    assert decide(rules, "/usr/bin/ls") == Decision("allow", 1, None, ("/usr/bin/ls",), exact=True)


def test_rules_that_only_deny_leave_the_rest_to_the_scope() -> None:
    rules = load({"effect": "deny", "argv": ["rm"]}, {"effect": "deny", "path": "/etc/**", "action": "fs.write"})
    assert decide(rules, "ls", env={"PATH": "x"}, cwd="x", has_stdin=True) == Decision("allow", argv=("ls",))
    assert decide(rules) == Decision("allow")
    assert rules.decide_path("fs.read", b"/etc/passwd", HERE) == Decision("allow")
    assert rules.decide_path("fs.write", b"/etc/passwd", HERE) == Decision("deny", 1)
    assert decide(load(), "ls") == Decision("allow", argv=("ls",))


def test_an_asking_rule_denies_all_else_of_its_kind_unless_it_is_over_texts() -> None:
    assert decide(load({"effect": "ask", "argv": ["ls"]}), "id") == Decision("deny")
    assert decide(load({"effect": "ask", "text": "rm"}), "id") == Decision("allow", argv=("id",))
    asks = load({"effect": "ask", "path": "/srv/**", "action": "fs.read"})
    assert asks.decide_path("fs.read", b"/srv/x", HERE) == Decision("ask", 0)
    assert asks.decide_path("fs.read", b"/etc", HERE) == Decision("deny")
    assert asks.decide_path("fs.write", b"/etc", HERE) == Decision("allow")
    assert asks.over_paths("fs.read")
    assert not asks.over_paths("fs.write")
    assert not asks.over_commands
    assert load({"effect": "deny", "text": "rm"}).over_commands
    assert load({"effect": "deny", "argv": ["rm"]}).over_commands


def test_a_text_rule_takes_precedence_over_allowing_rules_and_allows_nothing() -> None:
    rules = load(
        {**ALLOW, "argv": ["run", {"rest": {"re": ".*"}}], "mayRunOthers": True},
        {"effect": "ask", "text": "prod"},
        {"effect": "deny", "text": "rm .*-rf"},
    )
    assert decide(rules, "run", "test").effect == "allow"
    assert decide(rules, "run", "prod") == Decision("ask", 1, None, ("run", "prod"), FIXED, exact=True)
    assert decide(rules, "run", "prod", "rm", "x", "-rf") == Decision("deny", 2)
    assert decide(rules, "other", "prod") == Decision("deny")
    assert decide(load({"effect": "deny", "text": "a.b"}), text="a\nb") == Decision("deny", 0)


def test_a_text_of_literal_words_runs_as_an_argv_under_command_rules() -> None:
    assert decide(load({**ALLOW, "argv": ["ls"]}), text="ls") == Decision("allow", 0, None, ("ls",), FIXED, exact=True)
    assert decide(load({"effect": "deny", "text": "rm"}), text="ls") == Decision("allow")


def test_a_saved_command_is_allowed_by_its_name_or_by_what_it_runs() -> None:
    saved = {"argv": ("systemctl", "restart", "nginx"), "saved": ("restart", {"service": "nginx"})}
    by_name = load({**ALLOW, "command": "restart"})
    assert by_name.decide_command(RequestedCommand(names=HERE, **saved)) == Decision(
        "allow", 0, None, saved["argv"], FIXED, exact=True
    )
    by_words = load({**ALLOW, "argv": ["systemctl", "restart", {"in": ["nginx"]}]})
    assert by_words.decide_command(RequestedCommand(names=HERE, **saved)).effect == "allow"
    assert decide(by_name, "systemctl", "restart", "nginx") == Decision("deny")
    denied = load({**ALLOW, "command": "restart"}, {"effect": "deny", "argv": ["systemctl"]})
    assert denied.decide_command(RequestedCommand(names=HERE, **saved)) == Decision("deny", 1)
    other = load({"effect": "deny", "command": "restart", "arguments": {"service": {"re": "ng.*"}}})
    assert other.decide_command(RequestedCommand(names=HERE, **saved)) == Decision("deny", 0)


def test_a_program_that_runs_others_takes_input_only_if_the_rule_says_so() -> None:
    def effect(rule: dict[str, Any], *argv: str) -> str:
        return decide(load({**ALLOW, "argv": list(argv), **rule}), *argv, has_stdin=True).effect

    assert effect({}, "cat") == "allow"
    assert effect({"stdin": False}, "cat") == "deny"
    assert effect({}, "sh") == "deny"
    assert effect({}, "psql", "-d", "app") == "deny"
    assert effect({"stdin": True}, "sh") == "allow"


def test_rules_match_connection_names_as_filters_do() -> None:
    rules = load({**ALLOW, "argv": ["ls"], "connections": ["WEB/**", "*/db?"]})
    for names, effect in [(("web/a/b",), "allow"), (("web",), "allow"), (("x/db1",), "allow"), (("x/y/db1",), "deny")]:
        assert decide(rules, "ls", names=names).effect == effect, names
    assert decide(load({**ALLOW, "argv": ["ls"], "connections": ["*"]}), "ls", names=()).effect == "allow"


COVERING = load(
    {**ALLOW, "path": "/srv/**"},
    {**ALLOW, "path": "/data/*/in/**"},
    {**ALLOW, "path": "/one/*"},
    {"effect": "deny", "path": "/srv/app/keys/**"},
    {"effect": "ask", "path": "/srv/**/*.pem", "connections": ["db/*"]},
    {"effect": "deny", "path": "/srv/ro/**", "action": "fs.write"},
)


@pytest.mark.parametrize(
    ("action", "directory", "covered"),
    [
        ("fs.read", b"/srv", False),
        ("fs.read", b"/", False),
        ("fs.read", b"/srv/app", False),
        ("fs.read", b"/srv/app/keys", False),
        ("fs.read", b"/srv/app/keys/x", False),
        ("fs.read", b"/srv/app/keys2", True),
        ("fs.read", b"/srv/app/key", True),
        ("fs.read", b"/srv/other/deep", True),
        ("fs.read", b"/srv/ro", True),
        ("fs.write", b"/srv/ro", False),
        ("fs.write", b"/srv/ro/x", False),
        ("fs.read", b"/srv/../etc", False),
        ("fs.read", b"/data/a/in", True),
        ("fs.read", b"/data/a/in/b", True),
        ("fs.read", b"/data/a", False),
        ("fs.read", b"/one/a", False),
        ("fs.read", b"/etc", False),
        ("fs.read", b"srv", False),
    ],
)
def test_a_tree_is_covered_if_every_path_below_is_allowed(action: str, directory: bytes, covered: bool) -> None:
    assert COVERING.covers(action, directory, HERE) is covered


def test_a_rule_that_asks_or_denies_leaves_its_trees_uncovered() -> None:
    assert COVERING.covers("fs.read", b"/srv/other", HERE)
    assert not COVERING.covers("fs.read", b"/srv/other", ("db/one",))
    assert load({**ALLOW, "path": "/**"}).covers("fs.read", b"/", HERE)
    assert load({"effect": "deny", "path": "/etc/*"}).covers("fs.read", b"/srv", HERE)
    assert not load({"effect": "deny", "path": "/etc/*"}).covers("fs.read", b"/", HERE)
    assert not load({"effect": "deny", "path": "/**/.env"}).covers("fs.write", b"/srv", HERE)


def test_the_strictest_of_several_decisions_holds_and_two_programs_deny() -> None:
    here, there = ("web/web1",), ("db/db1",)
    rules = load(
        {**ALLOW, "argv": ["/opt/web/tool"], "connections": ["web/*"]},
        {**ALLOW, "argv": ["/opt/db/tool"], "connections": ["db/*"]},
        {**ALLOW, "argv": ["ls"]},
    )

    def both(*argv: str, others: Rules = rules) -> Decision:
        return combined([decide(rules, *argv, names=here), decide(others, *argv, names=there)])

    assert both("ls") == Decision("allow", 2, None, ("ls",), FIXED, exact=True)
    assert both("tool") == combined([]) == Decision("deny")
    assert both("/opt/web/tool") == Decision("deny")
    absolute = load({**ALLOW, "argv": ["/opt/web/tool"]})
    assert both("tool", others=absolute).argv == ("/opt/web/tool",)
    only_deny = load({"effect": "deny", "argv": ["rm"]})
    assert both("tool", others=only_deny) == Decision("allow", 0, None, ("/opt/web/tool",), exact=True)
    asks = load({"effect": "ask", "text": "tool"})
    assert both("tool", others=asks) == Decision("ask", 0, None, ("/opt/web/tool",), exact=True)


def test_what_may_be_written_is_named_by_the_rules_that_allow_writing_there() -> None:
    rules = load(
        {**ALLOW, "path": "/srv/**", "action": "fs.write"},
        {**ALLOW, "path": "/etc/app.conf"},
        {**ALLOW, "path": "/read/**", "action": "fs.read"},
        {"effect": "deny", "path": "/srv/secret/**"},
        {**ALLOW, "path": "/elsewhere/**", "connections": ["db/**"]},
    )
    assert rules.writable_roots(HERE, "deploy") == [b"/srv", b"/etc/app.conf"]
    assert rules.writable_roots(("db/one",), "deploy") == [b"/srv", b"/etc/app.conf", b"/elsewhere"]
