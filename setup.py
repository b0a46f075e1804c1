"""Maps each folder of ``plugins/`` to an importable package; everything else stands in setup.cfg."""

from setuptools import find_packages, setup

setup(
    packages=find_packages(include=["connmgr", "connmgr.*"]) + find_packages("plugins"),
    package_dir={name: f"plugins/{name}" for name in find_packages("plugins") if "." not in name},
)
