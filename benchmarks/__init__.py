"""Measurements of connmgr and its alternatives; ``python -m benchmarks`` runs them all.

Each module here that has a ``main()`` measures one topic and prints its rows with :mod:`benchmarks.timing`. It runs
alone too: ``python -m benchmarks.exec``. Machines are noisy, so figures are compared only within one run, as ratios.
"""

from scripts.clean import clean

clean()
