# Whatever is missing on a system is left out. Files are read line by line and never executed.
LC_ALL=C
export LC_ALL
has() { command -v "$1" >/dev/null 2>&1; }
say ok
