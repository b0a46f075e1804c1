"""Ways around the rules of a token, each of which has to end in a refusal.

The rules allow a few commands and paths. One table for each kind of trick has requests that resemble allowed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connmgr.rights.rules import RequestedCommand, Rules, load_rules

HERE = ("web/web1", "default/web/web1")

RULES: list[dict[str, Any]] = [
    {"effect": "allow", "argv": ["systemctl", "restart", {"in": ["nginx", "redis"]}]},
    {
        "effect": "allow",
        "argv": ["/usr/bin/journalctl", "-u", {"re": "[a-z]+"}, "-n", {"integer": {"max": 1000}}],
        "mayRunOthers": True,
    },
    {"effect": "allow", "argv": ["cat", {"path": "/srv/app/**"}]},
    {"effect": "allow", "argv": ["echo", {"rest": {"re": "[^;]+"}}]},
    {"effect": "allow", "argv": ["printenv", {"re": "APP_.*"}], "env": {"APP_MODE": {"in": ["dev", "prod"]}}},
    {"effect": "allow", "argv": ["report"], "cwd": "/srv/reports/**"},
    {
        "effect": "allow",
        "argv": ["/opt/app/bin/deploy", {"re": r"v\d+\.\d+|latest"}],
        "user": "deploy",
        "mayRunOthers": True,
    },
    {"effect": "allow", "argv": ["bash", "/srv/run.sh"]},
    {"effect": "allow", "argv": ["uptime"], "connections": ["web/*"]},
    {"effect": "allow", "argv": ["tee", {"path": "/srv/in/*"}], "stdin": False, "mayRunOthers": True},
    {"effect": "allow", "command": "restart-web", "arguments": {"service": {"in": ["nginx"]}}},
    {"effect": "deny", "argv": ["systemctl", "restart", "redis"], "connections": ["db/**"]},
    {"effect": "ask", "argv": ["reboot"]},
    {"effect": "deny", "argv": ["cat", {"rest": {"path": "/srv/app/keys/**"}}]},
]

TRICKED = load_rules(RULES)


def _decide(rules: Rules = TRICKED, *argv: str, **wanted: Any) -> tuple[str, tuple[str, ...] | None, str | None]:
    wanted.setdefault("names", HERE)
    decision = rules.decide_command(RequestedCommand(argv=argv or None, **wanted))
    return decision.effect, decision.argv, decision.path


@pytest.mark.parametrize(
    ("wanted", "runs"),
    [
        ({"argv": ("systemctl", "restart", "nginx")}, ("systemctl", "restart", "nginx")),
        ({"argv": ("/usr/bin/systemctl", "restart", "redis")}, ("/usr/bin/systemctl", "restart", "redis")),
        ({"text": "systemctl restart nginx"}, ("systemctl", "restart", "nginx")),
        ({"text": "systemctl  'restart' \"nginx\""}, ("systemctl", "restart", "nginx")),
        ({"text": "echo 'a$(id)' \\$x"}, ("echo", "a$(id)", "$x")),
        ({"argv": ("journalctl", "-u", "nginx", "-n", "0")}, ("/usr/bin/journalctl", "-u", "nginx", "-n", "0")),
        ({"argv": ("journalctl", "-u", "nginx", "-n", "1000")}, ("/usr/bin/journalctl", "-u", "nginx", "-n", "1000")),
        ({"argv": ("cat", "/srv/app/log/a b")}, ("cat", "/srv/app/log/a b")),
        ({"argv": ("echo",)}, ("echo",)),
        ({"argv": ("echo", "a", "$(id)")}, ("echo", "a", "$(id)")),
        ({"argv": ("printenv", "APP_MODE"), "env": {"APP_MODE": "dev"}}, ("printenv", "APP_MODE")),
        ({"argv": ("report",), "cwd": "/srv/reports/2025"}, ("report",)),
        ({"argv": ("deploy", "v1.20"), "user": "deploy"}, ("/opt/app/bin/deploy", "v1.20")),
        ({"argv": ("bash", "/srv/run.sh")}, ("bash", "/srv/run.sh")),
        ({"argv": ("uptime",)}, ("uptime",)),
        ({"argv": ("cat", "/srv/app/x"), "has_stdin": True}, ("cat", "/srv/app/x")),
        ({"argv": ("any", "thing"), "saved": ("restart-web", {"service": "nginx"})}, ("any", "thing")),
    ],
)
def test_the_intended_commands_are_allowed(wanted: dict[str, Any], runs: tuple[str, ...]) -> None:
    decision = TRICKED.decide_command(RequestedCommand(**{"names": HERE, **wanted}))
    assert (decision.effect, decision.argv) == ("allow", runs)


TEXTS = [
    "systemctl restart nginx; id",
    "systemctl restart nginx;id",
    "systemctl restart nginx && id",
    "systemctl restart nginx || id",
    "systemctl restart nginx | sh",
    "systemctl restart nginx & id",
    "systemctl restart nginx\nid",
    "systemctl restart nginx\r\nid",
    "systemctl restart nginx\n",
    "systemctl restart $(id)",
    "systemctl restart `id`",
    "systemctl restart nginx$(id)",
    "systemctl restart nginx`id`",
    "systemctl restart ${IFS}nginx",
    "systemctl$IFS'restart'$IFS'nginx'",
    "systemctl restart $NAME",
    'systemctl restart "$NAME"',
    "systemctl restart nginx > /etc/passwd",
    "systemctl restart nginx >/etc/passwd",
    "systemctl restart nginx 2>&1",
    "systemctl restart nginx < /etc/shadow",
    "systemctl restart nginx <<< id",
    "systemctl restart nginx <<E\nid\nE",
    "systemctl restart nginx <(id)",
    "systemctl restart ng*",
    "systemctl restart ngin?",
    "systemctl restart [n]ginx",
    "systemctl restart {nginx,sshd}",
    "systemctl restart ~root",
    "systemctl restart nginx #",
    "systemctl restart nginx # x",
    "PATH=/tmp systemctl restart nginx",
    "LD_PRELOAD=/tmp/x.so systemctl restart nginx",
    "(systemctl restart nginx)",
    "{ systemctl restart nginx; }",
    "! systemctl restart nginx",
    "eval systemctl restart nginx",
    "exec systemctl restart nginx",
    "command systemctl restart nginx",
    "builtin systemctl restart nginx",
    "time systemctl restart nginx",
    "nohup systemctl restart nginx",
    ". /tmp/x",
    "source /tmp/x",
    "alias systemctl=id",
    "systemctl() { id; }",
    "function systemctl { id; }",
    "trap id EXIT",
    "export PATH=/tmp",
    "cd /tmp",
    "set -- x",
    "if true; then id; fi",
    "systemctl restart nginx\\\nid",
    "systemctl restart nginx;",
    "systemctl restart nginx\0id",
    "systemctl restart $'nginx'",
    'systemctl restart $"nginx"',
    "systemctl restart 'nginx",
    'systemctl restart "nginx',
    "systemctl restart nginx\\",
    "!!",
    "^nginx^sshd",
    "echo a; id",
    "echo `id`",
    "echo $(id)",
    'echo "$(id)"',
    'echo "`id`"',
    "cat /srv/app/*",
    "cat /srv/app/../../etc/passwd",
    "",
    " ",
    "systemctl restart nginx\u2028id\u2029",
    "systemctl restart \u00a0nginx",
    "=systemctl restart nginx",
    "\\systemctl restart nginx\\\n",
    "systemctl restart nginx\x1b[2J",
]
"""Texts that a shell reads as something other than the words of a rule."""


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_with_more_than_literal_words_is_refused(text: str) -> None:
    assert _decide(text=text)[0] == "deny"


def test_where_rules_only_deny_other_texts_run_and_literal_words_run_as_an_argv() -> None:
    rules = load_rules([{"effect": "deny", "argv": ["reboot"]}])
    assert _decide(rules, text="id; id") == ("allow", None, None)
    assert _decide(rules, text="uname -s") == ("allow", ("uname", "-s"), None)
    assert _decide(rules, text="reboot now")[0] == "deny"


WORDS = [
    # The program.
    ("systemctl2", "restart", "nginx"),
    ("Systemctl", "restart", "nginx"),
    ("SYSTEMCTL", "restart", "nginx"),
    ("./systemctl", "restart", "nginx"),
    ("../systemctl", "restart", "nginx"),
    ("bin/systemctl", "restart", "nginx"),
    ("~/systemctl", "restart", "nginx"),
    ("/systemctl", "restart", "nginx"),
    ("/tmp/systemctl", "restart", "nginx"),
    ("/home/x/bin/systemctl", "restart", "nginx"),
    ("/usr/bin/../../tmp/systemctl", "restart", "nginx"),
    ("/usr/bin/./systemctl", "restart", "nginx"),
    ("/usr//bin/systemctl", "restart", "nginx"),
    ("//usr/bin/systemctl", "restart", "nginx"),
    ("/usr/bin/systemctl/", "restart", "nginx"),
    ("/usr/bin/systemctl/.", "restart", "nginx"),
    ("/usr/local/bin/x/systemctl", "restart", "nginx"),
    ("/usr/bin//systemctl", "restart", "nginx"),
    ("/bin/../bin/systemctl", "restart", "nginx"),
    ("systemctl ", "restart", "nginx"),
    (" systemctl", "restart", "nginx"),
    ("systemctl\n", "restart", "nginx"),
    ("systemctl restart nginx",),
    ("systemctl\0", "restart", "nginx"),
    ("\0systemctl", "restart", "nginx"),
    ("", "systemctl", "restart", "nginx"),
    ("systemct\u217c", "restart", "nginx"),
    ("s\u0443stemctl", "restart", "nginx"),
    ("\uff53ystemctl", "restart", "nginx"),
    ("systemctl\u200b", "restart", "nginx"),
    ("\u202esystemctl", "restart", "nginx"),
    ("systemctl\ud800", "restart", "nginx"),
    ("*", "restart", "nginx"),
    ("systemctl;id", "restart", "nginx"),
    ("$(id)", "restart", "nginx"),
    ("/tmp/journalctl", "-u", "nginx", "-n", "1"),
    ("/bin/journalctl", "-u", "nginx", "-n", "1"),
    ("/usr/local/bin/journalctl", "-u", "nginx", "-n", "1"),
    ("/usr/bin/journalctl ", "-u", "nginx", "-n", "1"),
    ("usr/bin/journalctl", "-u", "nginx", "-n", "1"),
    ("/USR/BIN/journalctl", "-u", "nginx", "-n", "1"),
    ("/usr/bin/Journalctl", "-u", "nginx", "-n", "1"),
    # Programs that run others, before an allowed command.
    ("env", "systemctl", "restart", "nginx"),
    ("/usr/bin/env", "-S", "systemctl restart nginx"),
    ("sudo", "systemctl", "restart", "nginx"),
    ("sudo", "-u", "deploy", "systemctl", "restart", "nginx"),
    ("doas", "systemctl", "restart", "nginx"),
    ("su", "-c", "systemctl restart nginx"),
    ("xargs", "systemctl", "restart", "nginx"),
    ("nice", "systemctl", "restart", "nginx"),
    ("nohup", "systemctl", "restart", "nginx"),
    ("timeout", "5", "systemctl", "restart", "nginx"),
    ("sh", "-c", "systemctl restart nginx"),
    ("bash", "-c", "systemctl restart nginx"),
    ("bash", "/srv/run.sh", "x"),
    ("bash", "-x", "/srv/run.sh"),
    ("bash", "--rcfile", "/tmp/x", "/srv/run.sh"),
    ("bash", "/srv/../tmp/run.sh"),
    ("bash", "/srv//run.sh"),
    ("bash", "srv/run.sh"),
    ("bash", ""),
    ("bash",),
    ("bash", "-s"),
    ("busybox", "systemctl", "restart", "nginx"),
    ("find", "/", "-exec", "systemctl", "restart", "nginx", ";"),
    ("strace", "systemctl", "restart", "nginx"),
    ("setsid", "systemctl", "restart", "nginx"),
    ("/lib64/ld-linux-x86-64.so.2", "/usr/bin/systemctl", "restart", "nginx"),
    ("python3", "-c", "import os"),
    ("vi", "/srv/app/x"),
    ("less", "/srv/app/x"),
    # Words after the program.
    ("systemctl",),
    ("systemctl", "restart"),
    ("systemctl", "restart", ""),
    ("systemctl", "restart", "sshd"),
    ("systemctl", "restart", "nginx", "sshd"),
    ("systemctl", "restart", "nginx", ""),
    ("systemctl", "restart", "", "nginx"),
    ("systemctl", "", "restart", "nginx"),
    ("systemctl", "--user", "restart", "nginx"),
    ("systemctl", "-H", "evil", "restart", "nginx"),
    ("systemctl", "restart", "--", "nginx"),
    ("systemctl", "stop", "nginx"),
    ("systemctl", "RESTART", "nginx"),
    ("systemctl", "restart", "Nginx"),
    ("systemctl", "restart", "nginx "),
    ("systemctl", "restart", " nginx"),
    ("systemctl", "restart", "nginx\n"),
    ("systemctl", "restart", "nginx\nsshd"),
    ("systemctl", "restart", "nginx sshd"),
    ("systemctl", "restart", "nginx.service"),
    ("systemctl", "restart", "nginx\0"),
    ("systemctl", "restart", "nginx\0x"),
    ("systemctl", "restart", "ngin\u0445"),
    ("systemctl", "restart", "nginx\u0301"),
    ("systemctl", "restart", "\uff4eginx"),
    ("systemctl", "restart", "nginx\udcff"),
    ("systemctl", "restart nginx"),
    ("systemctl", "restart", "'nginx'"),
    ("systemctl", "restart", "nginx;id"),
    ("systemctl", "restart", "$(id)"),
    # Regular expressions match the whole word, and a line.
    ("journalctl", "-u", "nginx1", "-n", "1"),
    ("journalctl", "-u", "", "-n", "1"),
    ("journalctl", "-u", "nginx\n", "-n", "1"),
    ("journalctl", "-u", "\nnginx", "-n", "1"),
    ("journalctl", "-u", "nginx\n-f", "-n", "1"),
    ("journalctl", "-u", "NGINX", "-n", "1"),
    ("journalctl", "-u", "--file=/etc/shadow", "-n", "1"),
    ("journalctl", "-u", "n\u0131", "-n", "1"),
    ("journalctl", "-u", "a" * 5000, "-n", "1"),
    ("journalctl", "-u", "a" * 1_000_000, "-n", "1"),
    ("deploy", "v1"),
    ("deploy", "v1.2"),
    ("echo", "a", ";"),
    ("echo", "a\nb"),
    ("echo", "\n"),
    ("echo", ""),
    ("echo", "a", ""),
    ("echo", "a\0b"),
    ("printenv", "APP_\n"),
    ("printenv", "APP_A\nPATH"),
    ("printenv", "XAPP_A"),
    ("printenv", "APP_A", "PATH"),
    ("printenv", "-0", "APP_A"),
    # Integers in their shortest form.
    ("journalctl", "-u", "nginx", "-n", "1001"),
    ("journalctl", "-u", "nginx", "-n", "-1"),
    ("journalctl", "-u", "nginx", "-n", "+1"),
    ("journalctl", "-u", "nginx", "-n", "-0"),
    ("journalctl", "-u", "nginx", "-n", "01"),
    ("journalctl", "-u", "nginx", "-n", "0x1"),
    ("journalctl", "-u", "nginx", "-n", "1e1"),
    ("journalctl", "-u", "nginx", "-n", "1_0"),
    ("journalctl", "-u", "nginx", "-n", "1.0"),
    ("journalctl", "-u", "nginx", "-n", " 1"),
    ("journalctl", "-u", "nginx", "-n", "1\n"),
    ("journalctl", "-u", "nginx", "-n", ""),
    ("journalctl", "-u", "nginx", "-n", "\u0661"),
    ("journalctl", "-u", "nginx", "-n", "\u00b2"),
    ("journalctl", "-u", "nginx", "-n", "9" * 5000),
    ("journalctl", "-u", "nginx", "-n", "all"),
    ("journalctl", "-n", "1", "-u", "nginx"),
    # Paths.
    ("cat", "/etc/passwd"),
    ("cat", "/srv/app/../../etc/passwd"),
    ("cat", "/srv/app/.."),
    ("cat", "/srv/app/."),
    ("cat", "/srv/app/"),
    ("cat", "/srv/app//x"),
    ("cat", "//srv/app/x"),
    ("cat", "/srv/./app/x"),
    ("cat", "/srv/app/x/./y"),
    ("cat", "/srv/app/x/"),
    ("cat", "/srv/application"),
    ("cat", "/srv/ap"),
    ("cat", "/SRV/app/x"),
    ("cat", "srv/app/x"),
    ("cat", "./srv/app/x"),
    ("cat", "-"),
    ("cat", "-A"),
    ("cat",),
    ("cat", ""),
    ("cat", "/srv/app/x", "/etc/passwd"),
    ("cat", "/srv/app/x", "/srv/app/y"),
    ("cat", "--", "/srv/app/x"),
    ("cat", "/srv/app/x\0/etc/passwd"),
    ("cat", "/srv/app\0"),
    ("cat", "/srv/\uff41pp/x"),
    ("cat", "\uff0fsrv/app/x"),
    ("cat", "/srv\u2215app/x"),
    ("cat", "~/srv/app/x"),
    ("cat", " /srv/app/x"),
    ("cat", "/srv/app/" + "x/" * 3000 + "x"),
    ("cat", "file:///srv/app/x"),
    ("cat", "/srv/app/keys"),
    ("cat", "/srv/app/keys/id"),
    ("cat", "/srv/app/keys/../keys/id"),
    ("cat", "/srv/app/log/../keys/id"),
    # Words that no rule spells out.
    ("report",),
    ("reboot", "-f"),
    ("reboot", ""),
    ("/sbin/reboot", "--force"),
    ("/tmp/reboot",),
    ("restart-web",),
    ("restart-web", "nginx"),
    ("tee", "/srv/in/a/b"),
    ("tee", "/srv/in/"),
    ("tee", "-a", "/srv/in/a"),
    ("id",),
]  # fmt: skip


@pytest.mark.parametrize("argv", WORDS, ids=lambda argv: ascii(argv)[:60])
def test_words_that_are_close_to_a_rule_are_refused(argv: tuple[str, ...]) -> None:
    assert _decide(TRICKED, *argv)[0] == "deny"


RESTART = ("systemctl", "restart", "nginx")

SURROUNDINGS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    *(
        (RESTART, {"env": {name: "/tmp/x"}})
        for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PATH", "BASH_ENV", "ENV", "IFS")
    ),
    *(
        (RESTART, {"env": {name: "1"}})
        for name in ("APP_MODE", "HARMLESS", "_", "PYTHONPATH", "SYSTEMD_PAGER", "LESSOPEN")
    ),
    (("printenv", "APP_MODE"), {"env": {"APP_MODE": "test"}}),
    (("printenv", "APP_MODE"), {"env": {"APP_MODE": ""}}),
    (("printenv", "APP_MODE"), {"env": {"APP_MODE": "dev\n"}}),
    (("printenv", "APP_MODE"), {"env": {"APP_MODE": "dev\0"}}),
    (("printenv", "APP_MODE"), {"env": {"app_mode": "dev"}}),
    (("printenv", "APP_MODE"), {"env": {"APP_MODE": "dev", "PATH": "/tmp"}}),
    (("printenv", "APP_MODE"), {"env": {"APP_MODE ": "dev"}}),
    (RESTART, {"cwd": "/"}),
    (RESTART, {"cwd": "/srv/reports"}),
    (RESTART, {"cwd": ""}),
    (("report",), {"cwd": "/srv"}),
    (("report",), {"cwd": "/srv/reports/.."}),
    (("report",), {"cwd": "/srv/reports/../../tmp"}),
    (("report",), {"cwd": "/srv/reports/"}),
    (("report",), {"cwd": "srv/reports"}),
    (("report",), {"cwd": "."}),
    (("report",), {"cwd": "/srv/reportsx"}),
    (("report",), {"cwd": "/srv/reports\0"}),
    (("report",), {"cwd": "~"}),
    (("bash", "/srv/run.sh"), {"has_stdin": True}),
    (("tee", "/srv/in/a"), {"has_stdin": True}),
    (("deploy", "v1.2"), {"user": "root"}),
    (("deploy", "v1.2"), {"user": "Deploy"}),
    (("deploy", "v1.2"), {"user": "deploy\n"}),
    (("deploy", "v1.2"), {"user": ""}),
    (("deploy", "v1.2\n"), {"user": "deploy"}),
    (("deploy", "v1.2x"), {"user": "deploy"}),
    (("deploy", "xlatest"), {"user": "deploy"}),
    (("deploy", "latestx"), {"user": "deploy"}),
    (("deploy", "v1.2|latest"), {"user": "deploy"}),
    (("deploy", "v\u0661.2"), {"user": "deploy"}),
    (("/opt/app/bin/../bin/deploy", "v1.2"), {"user": "deploy"}),
    (("/tmp/deploy", "v1.2"), {"user": "deploy"}),
    (("uptime",), {"names": ("db/db1",)}),
    (("uptime",), {"names": ("web/web1/inner",)}),
    (("uptime",), {"names": ("web",)}),
    (("uptime",), {"names": ("xweb/web1",)}),
    (("uptime",), {"names": ()}),
    (("systemctl", "restart", "redis"), {"names": ("db/db1",)}),
    (("/usr/bin/systemctl", "restart", "redis"), {"names": ("db/a/b",)}),
    (("x",), {"saved": ("restart-web", {"service": "sshd"})}),
    (("x",), {"saved": ("restart-web", {})}),
    (("x",), {"saved": ("restart-web", {"service": "nginx\n"})}),
    (("x",), {"saved": ("Restart-web", {"service": "nginx"})}),
    (("x",), {"saved": ("restart-web2", {"service": "nginx"})}),
    (("x",), {"saved": ("restart-web", {"service": "nginx"}), "env": {"PATH": "/tmp"}}),
    (("x",), {"saved": ("restart-web", {"service": "nginx"}), "cwd": "/tmp"}),
    (("bash", "x"), {"saved": ("restart-web", {"service": "nginx"}), "has_stdin": True}),
    (("systemctl", "restart", "redis"), {"saved": ("restart-web", {"service": "nginx"}), "names": ("db/db1",)}),
    ((), {}),
]


@pytest.mark.parametrize(("argv", "wanted"), SURROUNDINGS, ids=lambda part: ascii(part)[:60])
def test_the_context_of_a_command_must_match_its_rule(argv: tuple[str, ...], wanted: dict[str, Any]) -> None:
    assert _decide(TRICKED, *argv, **wanted)[0] == "deny"


DENIED: list[Mapping[str, Any]] = [
    {"effect": "deny", "argv": ["rm"]},
    {"effect": "deny", "argv": ["/usr/bin/git", "push"]},
    {"effect": "deny", "argv": ["kill", {"integer": {"min": -64, "max": 1}}]},
    {"effect": "deny", "argv": ["note", {"re": "secret.*"}]},
    {"effect": "deny", "argv": ["chmod", {"rest": {"path": "/etc/**"}}]},
    {"effect": "deny", "argv": ["whoami"], "user": "root"},
    {"effect": "deny", "text": r"rm\s.*-rf"},
]


@pytest.mark.parametrize(
    "argv",
    [
        ("rm", "-rf", "/"),
        ("rm",),
        ("/bin/rm", "x"),
        ("/usr/bin/../bin/rm", "x"),
        ("//bin//rm", "x"),
        ("./rm", "x"),
        ("RM", "x"),
        ("/BIN/Rm", "x"),
        ("\uff52m", "x"),
        ("/bin/rm/", "x"),
        ("git", "push", "--force"),
        ("/opt/git", "push"),
        ("kill", "+1"),
        ("kill", "001"),
        ("kill", " 1"),
        ("kill", "-9"),
        ("kill", "0" * 40),
        ("note", "secret\n"),
        ("note", "secret\nx"),
        ("note", "secret" + "x" * 10_000),
        ("note", "secret", "more"),
        ("chmod", "777", "/etc/passwd"),
        ("chmod", "777", "/x", "/etc"),
        ("chmod", "777", "/srv/../etc/passwd"),
        ("chmod", "777", "//etc/passwd"),
        ("chmod", "-R", "777", "/etc/"),
        ("whoami",),
        ("sh", "-c", "rm -rf /"),
        ("sh", "-c", "rm\n-rf /"),
        ("sh", "-c", "rm x;\ny -rf /"),
        ("sh", "-c", "x" * 200_000),
    ],
    ids=lambda argv: ascii(argv)[:60],
)
def test_a_denying_rule_matches_equivalent_spellings(argv: tuple[str, ...]) -> None:
    assert _decide(load_rules(DENIED), *argv)[0] == "deny"


PATHS = load_rules(
    [
        {"effect": "allow", "path": "/srv/app/**"},
        {"effect": "allow", "path": "/var/log/*.log", "action": "fs.read"},
        {"effect": "deny", "path": "/srv/app/keys/**"},
        {"effect": "deny", "path": "/srv/**/.env"},
        {"effect": "allow", "path": "/home/{ann,bob}/in-[0-9]/?", "connections": ["web/*"], "user": "ann"},
    ],
)


@pytest.mark.parametrize(
    ("action", "path"),
    [
        *(
            (action, path)
            for action in ("fs.read", "fs.write")
            for path in (
                b"/", b"/srv", b"/srv/ap", b"/srv/app2", b"/srv/application/x", b"/SRV/app/x", b"/srv/App/x",
                b"srv/app/x", b"", b"/srv/app/", b"/srv/app/../x", b"/srv/app/..", b"/srv/app/.", b"/srv/app//x",
                b"//srv/app/x", b"/srv/./app/x", b"/srv/app/keys", b"/srv/app/keys/id", b"/srv/app/keys/a/b",
                b"/srv/app/.env", b"/srv/app/a/b/.env", b"/var/log/a/b.log", b"/var/log/.log/x", b"/var/log/a.log2",
                b"/var/log/a.log\n", b"/etc/passwd", b"/home/ann/in-12/a", b"/home/ann/in-a/a", b"/home/ann/in-1/ab",
                b"/home/eve/in-1/a", b"/home/ann/in-1/", b"/home/{ann,bob}/in-1/a", b"/srv/app\xff/x",
                b"\xff/srv/app/x", b"./srv/app/x", b"~/srv/app/x",
            )
        ),
        ("fs.write", b"/var/log/a.log"),
    ],
)  # fmt: skip
def test_paths_beside_the_patterns_are_refused(action: str, path: bytes) -> None:
    assert PATHS.decide_path(action, path, HERE, "ann").effect == "deny"


@pytest.mark.parametrize(
    "path",
    [b"/srv/app", b"/srv/app/a", b"/srv/app/a\nb", b"/srv/app/\xff\xfe", b"/var/log/a.log", b"/home/bob/in-1/\xc3\xa4"],
)
def test_paths_within_the_patterns_are_allowed(path: bytes) -> None:
    assert PATHS.decide_path("fs.read", path, HERE, "ann").effect == "allow"


@pytest.mark.parametrize(("names", "user"), [(("db/db1",), "ann"), (HERE, "bob"), (HERE, None), ((), "ann")])
def test_a_pattern_for_one_connection_or_user_applies_to_no_other(names: tuple[str, ...], user: str | None) -> None:
    assert PATHS.decide_path("fs.read", b"/home/ann/in-1/a", names, user).effect == "deny"


@given(
    st.lists(
        st.text(max_size=8) | st.sampled_from(["systemctl", "restart", "nginx", "cat", "/srv/app/x", ".."]), max_size=4
    )
)
def test_every_allowed_generated_command_is_spelled_out_by_a_rule(argv: list[str]) -> None:
    effect, runs, _ = _decide(TRICKED, *argv)
    if effect != "allow":
        return
    assert runs is not None
    program, *words = runs
    name = program.rpartition("/")[2]
    if name == "systemctl":
        assert words in (["restart", "nginx"], ["restart", "redis"])
    elif name == "cat":
        [path] = words
        assert path.startswith("/srv/app")
        assert ".." not in path.split("/")
    else:
        assert name in ("echo", "uptime", "printenv")
        assert not any("\n" in word or "\0" in word for word in words)
