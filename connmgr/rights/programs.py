"""Which program a command runs: a text read strictly as an argv, and facts about programs.

A text that a shell reads differently must not deceive rules over argvs. So a text counts as an argv only if every
shell of a session (sh, bash, dash, ash, zsh, ksh, fish, csh) executes exactly these words. The facts are where programs
are found, which of them run others, and which variables affect them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# An unquoted tilde is literal after a letter, as in `HEAD~1`, but expanded at a beginning, after `=` and after `:`.
# Characters are matched in runs: one at a time, a text of a megabyte would stop all other threads for 0.1 seconds.
_PLAIN = re.compile(r"(?:[\w./:@%+,=-]+|(?<=\w)~)+", re.ASCII)
_ESCAPED = re.compile(r"""\\([ *?\[\](){};&|<>$"'#])""")
# fish reads `\\` and `\'` as one character, and zsh may read two quotes in a row as one.
_SINGLE = re.compile(r"'([^'\\!]*(?:\\(?![\\'!])[^'\\!]*)*)'(?!')")
_DOUBLE = re.compile(r'"([^"\\$`!]*)"')
_PIECES = (_PLAIN, _ESCAPED, _SINGLE, _DOUBLE)
_BLANKS = re.compile(" +")

_EXPANDED_AT_A_BEGINNING = ("=", "%")
"""``=ls`` is a path for zsh, ``=1`` a directory for tcsh, ``%self`` a number for fish."""

_OPERATORS = "|&;"
_OPERATOR = re.compile(r"(?:&&|\|\||\||;)(?![|&;])")
MAX_PARTS = 20

_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
# csh reads a word that ends in a colon as a label.
_PATH = re.compile(r"[\w./][^=]*(?<!:)", re.ASCII)

_SHELLS_OWN = b"""
alias autoload bg bind bindkey break builtin bye caller case cd chdir command compadd comparguments compcall compctl
compdescribe compfiles compgen compgroups complete compopt compound compquote compset comptags comptry compvalues
continue coproc declare dirs disable disown do done echotc echoti elif else emulate enable end enum esac eval exec
exit export fc fg fi float for foreach function functions getln getopts global hash help hist history if in integer
jobs let limit local log login logout mapfile nameref namespace nocorrect noglob popd print private pushd pushln r
read readarray readonly redirect rehash repeat return run-help sched select set setopt shift shopt source stop suspend
then time times trap ttyctl type typeset ulimit umask unalias unfunction unhash unlimit unset unsetopt until vared
wait whence where which-command while zcompile zformat zle zmodload zparseopts zregexparse zstyle

_ abbr and argparse begin block breakpoint cdh commandline contains count dirh emit funced funcsave isatty math nextd
not or path prevd psub random set_color setenv status string switch

alloc breaksw builtins default endif endsw filetest glob goto hashstat hup ls-F newgrp notify onintr rootnode setpath
setspath settc setty telltc termname uncomplete unsetenv ver warp watchlog
"""
SHELLS_OWN = frozenset(_SHELLS_OWN.decode().split())
"""Words that a shell handles itself, without a program that does the same: of sh to zsh, of fish, of csh."""


def as_argv(text: str) -> tuple[str, ...] | None:
    """Return the program and words that every shell would execute for ``text``; None for anything else, or in doubt.

    The text is one simple command of literal words; their quotes are removed.
    """
    end, words = _simple(text, 0)
    return words if end == len(text) else None


class Compound(NamedTuple):
    """Simple commands with the operators between them: ``|``, ``;``, and one of ``&&`` and ``||``."""

    parts: tuple[tuple[str, ...], ...]
    operators: tuple[str, ...]

    def reads_pipe(self, part: int) -> bool:
        """Whether a part's input is the output of the part before."""
        return part > 0 and self.operators[part - 1] == "|"


def as_compound(text: str) -> Compound | None:
    """Return the commands that every shell would make of ``text``; None for a single one, another text, or in doubt."""
    parts: list[tuple[str, ...]] = []
    operators: list[str] = []
    position = 0
    while True:
        end, words = _simple(text, position, _OPERATORS)
        if words is None or len(parts) == MAX_PARTS:
            return None
        parts.append(words)
        if end == len(text):
            break
        operator = _OPERATOR.match(text, end)
        if operator is None:
            return None
        operators.append(operator[0])
        position = operator.end()
    # In sh both bind alike, in csh one binds more tightly than the other.
    if not operators or {"&&", "||"} <= set(operators):
        return None
    return Compound(tuple(parts), tuple(operators))


def _simple(text: str, position: int, ends: str = "") -> tuple[int, tuple[str, ...] | None]:
    """Return where the simple command at ``position`` ends, and its words; None if it is not one."""
    words: list[str] = []
    position = _past_blanks(text, position)
    while position < len(text) and text[position] not in ends:
        end, word = _word(text, position, ends)
        if word is None or text.startswith(_EXPANDED_AT_A_BEGINNING, position):
            return position, None
        words.append(word)
        position = _past_blanks(text, end)
    return position, tuple(words) if words and _is_program(words[0]) else None


def _past_blanks(text: str, position: int) -> int:
    blanks = _BLANKS.match(text, position)
    return blanks.end() if blanks else position


def _word(text: str, position: int, ends: str) -> tuple[int, str | None]:
    """Return the end of the word at ``position``, and the word without quotes; None if it is not literal."""
    word = ""
    while position < len(text) and text[position] != " " and text[position] not in ends:
        match = next((match for piece in _PIECES if (match := piece.match(text, position))), None)
        if match is None or not match[0].isprintable():
            return position, None
        word += match[match.lastindex or 0]
        position = match.end()
        if not word and text.startswith(_EXPANDED_AT_A_BEGINNING, position):
            # zsh removes empty quotes first: `""=ls` is the path of ls there.
            return position, None
    return position, word


def _is_program(word: str) -> bool:
    if "/" in word:
        return _PATH.fullmatch(word) is not None
    return _NAME.fullmatch(word) is not None and word not in SHELLS_OWN


FIXED_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
FIXED_PATH = ":".join(FIXED_DIRECTORIES)
"""The PATH for programs that a rule names without a directory; the session's PATH is not used."""

# By kind. Their words or their input can name another program of the caller's choice.
_SHELLS = """
    ash bash busybox csh dash elvish es fish ksh mksh nu oksh pdksh posh pwsh rbash rc sh tcsh toybox xonsh yash zsh
"""
_LANGUAGES = """
    awk bc bun clisp clojure dc deno elixir erl expect gawk ghci gjs groovy gst guile iex irb java jjs jrunscript
    jshell julia kotlin lua luajit mawk nawk node nodejs octave original-awk osascript perl php pypy python qjs r
    racket rscript ruby runghc sbcl scala scheme swift tclsh wish
"""
_ELEVATION = "capsh doas dzdo machinectl pfexec pkexec run0 runuser setpriv su sudo sudoedit sudoreplay"
_STARTERS = """
    arch at batch bwrap capsh cgexec choom chpst chronic chroot chrt coproc cpulimit cron crond crontab daemon daemonize
    dbus-run-session direnv dtach dumb-init eatmydata entr env envdir envuidgid fakechroot fakeroot faketime fd
    fdfind find firejail flock gdb gdbserver gosu hyperfine inotifywait invoke-rc.d ionice ld.so linux32 linux64
    lldb ltrace nice nohup nsenter numactl parallel perf pidproxy pipexec prlimit proot proxychains
    proxychains4 pv rlwrap run-one run-parts runcon s6-setuidgid schroot script scriptreplay sem service setarch
    setlock setsid setuidgid sg softlimit start-stop-daemon stdbuf strace su-exec sudo supervisorctl sysdig
    systemd-cat systemd-inhibit systemd-nspawn systemd-run tasksel taskset time timeout tini torify torsocks ts tsp
    uname26 unbuffer unshare valgrind watch watchexec with-contenv xargs xvfb-run
"""
_EDITORS_AND_PAGERS = """
    dialog ed editor elinks emacs emacsclient ex gvim helix hx info jed joe kak less links lynx man mc mcedit micro
    more most nano newgrp nvi nvim pager pg pico pinfo red rnano rview rvim screen sed select-editor sensible-editor
    sensible-pager tig tmux vi view vigr vim vimdiff vipw visudo w3m
"""
_FAR = """
    autossh dropbear ftp git git-receive-pack git-shell git-upload-pack hg lftp mosh nc ncat netcat nmap pdsh rlogin
    rsh rsync scp sftp slogin socat ssh ssh-agent sshpass svn svnserve tcpdump telnet tftp tshark wireshark
"""
_ARCHIVES = "7z 7za 7zr bsdtar cpio gtar pax rar star tar unzip zip"
_BUILDERS = """
    ansible ansible-console ansible-playbook ant as bazel bundle c99 cargo cc clang cmake cobc composer cpan ctest
    dotnet g++ gcc gem gmake go gradle ld make meson msbuild mvn ninja npm npx patch pip pipx pnpm puppet rake rustc
    salt salt-call scons terraform tofu uv uvx vagrant yarn
"""
_CONTAINERS = """
    apptainer buildah crictl ctr docker docker-compose flatpak helm incus kubectl lxc lxc-attach lxc-execute
    lxc-start minikube nerdctl oc podman podman-compose runc singularity snap virsh
"""
_PACKAGES = """
    apk apt apt-get aptitude brew dnf dpkg dpkg-reconfigure pacman rpm rpmbuild yum zypper port emerge nix nix-shell
"""
_OTHERS = """
    abduco byobu easy_install gnuplot gs latex logrotate logsave m4 mail mailx mariadb mongo mongosh msgfilter mutt
    mysql openssl pdflatex pidstat psql redis-cli sendmail smbclient sort split sqlite3 tex update-alternatives whereis
    xdg-open zypper
"""
_KINDS = (_SHELLS, _LANGUAGES, _ELEVATION, _STARTERS, _EDITORS_AND_PAGERS, _FAR, _ARCHIVES, _BUILDERS, _CONTAINERS)

RUN_OTHERS = frozenset(name for kind in (*_KINDS, _PACKAGES, _OTHERS) for name in kind.split())
"""Programs that can run a program of the caller's choice: by their words, their input, or a key press."""

_PRINTERS = """
    b2sum base32 basename basenc cal cat cksum cmp column comm cut df dir dirname du echo expand expr factor
    false findmnt fmt fold free getcap getfacl getfattr grep groups head hexdump hostid id iostat jq join locale
    logname ls lsattr lsblk lscpu lsipc lslocks lslogins lsmem lsmod lsns md5sum mountpoint mpstat namei ncal nl nproc
    numfmt od paste pgrep pidof pr printenv printf ps pstree pwd readlink realpath rev seq sha1sum
    sha224sum sha256sum sha384sum sha512sum sleep stat sum tac tail test tr true tsort tty uname unexpand uptime users
    vdir vmstat w wc which who whoami
"""
# Not among them, because of one option or operand each: blkid -c, date -s, dmesg -C, file -C, find -exec, getconf -v,
# getent -s (loads a library), pmap -N, readelf (debuginfod),
# hostname NAME, ifconfig, ip netns exec, journalctl and systemctl (pagers), lastlog -C, ldd, lsof -D, nm --plugin,
# sar -o, shuf -o, sort -o, ss -K, tee FILE, tree -o, uniq IN OUT, xxd IN OUT; on macOS and FreeBSD also arch PROGRAM,
# base64 -o and whereis (its words become those of a shell).

PRINTERS = frozenset(_PRINTERS.split())
"""Programs that only print, whatever their words are: they write no file, change nothing and run no other program."""

_VERSION = re.compile(r"(?<=[^\d-])[-\d]+\Z")
_LOADER = re.compile(r"(?:rt)?ld(?:-[\w.-]+)?\.so(?:\.\d+)*\Z|ld-musl-.*")


def last_segment(program: str) -> str:
    """Return the name of a program, without its directory."""
    return program.rpartition("/")[2]


def runs_others(program: str) -> bool:
    """Whether ``program``, with or without a directory and a version as in ``python3.12``, is known to run others."""
    name = last_segment(program).lower()
    # For names such as vim.tiny and python3.12.
    kind = _VERSION.sub("", name.partition(".")[0])
    return name in RUN_OTHERS or kind in RUN_OTHERS or _LOADER.match(name) is not None


def only_prints(program: str) -> bool:
    """Whether ``program``, without a directory or in one of the system's, is known to print and do nothing else."""
    directory, slash, name = program.rpartition("/")
    return name in PRINTERS and (not slash or directory in FIXED_DIRECTORIES)


def why_fixed(program: str, chosen: str) -> str | None:
    """Return why no token may choose ``chosen`` of this program, such as "a word", freely; None if it may."""
    if not runs_others(program):
        return None
    name = last_segment(program)
    return f"{name} runs or loads other programs as its words tell it: whoever chooses {chosen} may choose the program."


def why_bounded(program: str, chosen: str) -> str | None:
    """Return why a rule that allows this program must list what ``chosen`` may be; None if it need not."""
    if only_prints(program):
        return None
    name = last_segment(program)
    return f"{name} may do more than print: whoever chooses {chosen} may make it write a file or run a program."


_STEERING = """
    AWKLIBPATH AWKPATH BASHOPTS BASH_ENV BASH_XTRACEFD BROWSER CC CDPATH CFLAGS CLASSPATH CXX
    DBUS_SESSION_BUS_ADDRESS EDITOR ENV ERL_AFLAGS ERL_FLAGS ERL_ZFLAGS EXINIT FCEDIT FIGNORE FPATH GCONV_PATH
    GETCONF_DIR GLOBIGNORE GNUMAKEFLAGS GOFLAGS GVIMINIT HISTFILE HOME HOSTALIASES IFS INPUTRC JULIA_LOAD_PATH
    KUBECONFIG LDFLAGS LOCALDOMAIN LOCPATH LOGNAME MAIL MAILCHECK MAILPATH MAKEFILES MAKEFLAGS MAKELEVEL MANPATH
    MANROFFOPT MFLAGS NIS_PATH NLSPATH NOTIFY_SOCKET PAGER PATH PERLIO PERLIO_DEBUG PERLLIB PGHOST PGHOSTADDR
    PGPASSFILE PGSERVICEFILE PGSYSCONFDIR POSIXLY_CORRECT PROMPT_COMMAND PS0 PS1 PS2 PS3 PS4 RESOLV_HOST_CONF
    RES_OPTIONS RUBYLIB RUBYOPT RUBYSHELL RUSTC_WRAPPER R_ENVIRON R_HOME R_PROFILE SHELL SHELLOPTS SSH_ASKPASS
    SSH_AUTH_SOCK SSLKEYLOGFILE SUDO_ASKPASS TERM TERMCAP TERMINFO TERMINFO_DIRS TMPDIR TZ TZDIR USER VIM
    VIMINIT VIMRUNTIME VISUAL ZDOTDIR
"""
_FAMILIES = re.compile(
    r"(?:LD|DYLD|_RLD|MALLOC|GLIBC|BASH_FUNC|BASH_LOADABLES|LUA|GIT|SYSTEMD|DOCKER|ANSIBLE|OPENSSL|SSL|XDG|CARGO|NPM|PIP|UV|GEM"
    r"|BUNDLE|QT|GTK|GIO|GDK|MYSQL|AWS|DOTNET|CORECLR|COR|TCL|GUILE|OCTAVE|TMUX|KRB5|NODE|JAVA|_JAVA|PHP)_"
    r"|(?:PYTHON|PERL5|LESS|LIBPATH|SHLIB_)"
    r"|.*(?:PAGER|EDITOR|OPTIONS|OPTS|RC|_PATH|_PRELOAD|_PROXY|_RSH|_SHELL|_COMMAND)\Z"
)

STEERING = frozenset(_STEERING.split())
"""Variables that make programs run, load, read or trust something; those of :data:`_FAMILIES` do too."""


def steers(variable: str) -> bool:
    """Whether an environment variable is known to make programs run, load, read or trust what its value names."""
    name = variable.upper()
    return name in STEERING or _FAMILIES.match(name) is not None


_CATEGORIES = "ADDRESS ALL COLLATE CTYPE IDENTIFICATION MEASUREMENT MESSAGES MONETARY NAME NUMERIC PAPER TELEPHONE TIME"
LOCALE = frozenset({"LANG", *(f"LC_{category}" for category in _CATEGORIES.split())})
"""Variables that choose the language of messages."""
