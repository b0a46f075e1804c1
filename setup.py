"""Maps each folder of ``plugins/`` to an importable package; everything else stands in setup.cfg."""

from setuptools import find_namespace_packages, setup

# Namespace packages, because folders of templates and migrations hold data and no __init__.py.
plugins = find_namespace_packages("plugins")

setup(
    packages=find_namespace_packages(include=["connmgr", "connmgr.*"]) + plugins,
    package_dir={name: f"plugins/{name}" for name in plugins if "." not in name},
)
