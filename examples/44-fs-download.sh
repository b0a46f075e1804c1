#!/bin/sh
# Download the file by the ticket, as a browser does: the ticket stands for the token and the whole request.
set -eu
. "$(dirname "$0")/request.sh"

curl -sS --fail-with-body --dump-header "$state/head" "$url/fs/download?ticket=$(cat "$state/download")"
grep -i '^content-disposition' "$state/head"
