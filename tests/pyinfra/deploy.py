"""A deploy that uses common operations once each, and writes only below the datum ``root``."""

import io
from pathlib import Path

from pyinfra import host
from pyinfra.facts.files import File, Sha256File
from pyinfra.facts.server import Home, Which
from pyinfra.operations import files, python, server

root = host.data.get("root")
name = host.name.rpartition("/")[2]
here = f"{root}/{name}"
sources = host.data.get("sources")
sudo = host.data.get("sudo")

files.directory(name="a directory", path=f"{here}/site", mode="750")
files.put(name="text", src=io.StringIO(f"host {name}\n"), dest=f"{here}/site/text", mode="640")
files.put(name="every byte", src=f"{sources}/bytes", dest=f"{here}/site/bytes", mode="600")
if name in host.data.get("large"):
    files.put(name="20 MB", src=f"{sources}/large", dest=f"{here}/site/large", mode="644")
    files.get(name="20 MB come back", src=f"{here}/site/large", dest=f"{root}/large-{name}")
files.template(
    name="a template", src=str(Path(__file__).with_name("page.j2")), dest=f"{here}/site/page", mode="644", who=name
)
files.line(name="a line", path=f"{here}/site/page", line="port = .*", replace="port = 443")
files.block(name="a block", path=f"{here}/site/page", content="one\ntwo", marker="# {mark}")
files.replace(name="a replacement", path=f"{here}/site/page", text="two", replace="2")
files.link(name="a link", path=f"{here}/link", target="site")
files.file(name="an empty file", path=f"{here}/empty", mode="600")
files.sync(name="a tree", src=f"{sources}/tree", dest=f"{here}/tree", mode="644", dir_mode="755")
files.copy(name="a copy on the host", src=f"{here}/site/text", dest=f"{here}/tree")
files.move(name="and elsewhere", src=f"{here}/tree/text", dest=here, overwrite=True)
server.shell(name="a shell that leaves", commands=["cd / && export LEAKED=yes"])
server.shell(name="nothing of it is left", commands=[f'echo "$PWD $LEAKED" > {here}/clean'])
server.shell(name="words", commands=[f"printf '%s|' 'a b' '*' \"it's\" ü > {here}/words"])
server.shell(
    name="a directory and a variable",
    commands=['basename "$PWD" > where; echo $GIVEN >> where'],
    _chdir=here,
    _env={"GIVEN": "a b"},
)
server.shell(name="input", commands=[f"cat > {here}/input"], _stdin=["one", "two"])
server.shell(name="other codes", commands=["exit 3"], _success_exit_codes=[3])
server.shell(name="a failure", commands=["echo out; echo err >&2; exit 4"], _ignore_errors=True)
server.shell(name="a lot", commands=[f"head -c 3000000 /dev/zero | tr '\\0' x | tee {here}/lot"])
server.script(name="a script", src=f"{sources}/script", args=(f"{here}/scripted", "ab"))
server.shell(name="as another user", commands=[f"id -un > {here}/who"], _sudo=sudo)
files.put(name="a file as another user", src=io.BytesIO(b"root\n"), dest=f"{here}/of-root", mode="600", _sudo=sudo)
files.get(name="and back", src=f"{here}/of-root", dest=f"{root}/of-root-{name}", _sudo=sudo)
files.get(name="a file comes back", src=f"{here}/site/bytes", dest=f"{root}/bytes-{name}")
python.call(
    name="facts",
    function=lambda: files.put(
        src=io.StringIO(
            f"{host.get_fact(File, f'{here}/site/bytes')['size']} {host.get_fact(Sha256File, f'{here}/site/bytes')}\n"
            f"{host.get_fact(Home)} {host.get_fact(Which, 'sh')}\n"
        ),
        dest=f"{here}/facts",
    ),
)
files.file(name="less than before", path=f"{here}/empty", present=False)
server.shell(name="once more", commands=[f"ls {here} > {here}/listed"])
