"""Measurements of connmgr and its alternatives; ``python -m benchmarks`` runs them all.

Each module here that has a ``main()`` measures one topic and prints its rows with :mod:`benchmarks.timing`. It runs
alone too: ``python -m benchmarks.exec``. Machines are noisy, so figures are compared only within one run, as ratios.

Nothing that makes tests quick is measured: the daemon and every command start as a user starts them, by the installed
script, and derive keys at the real cost; logins have no start-up files, for connmgr and the alternatives alike; all
files are on disk, since ``/tmp`` may be in memory.
"""

import tempfile

from scripts.clean import clean

clean()
tempfile.tempdir = "/var/tmp"
