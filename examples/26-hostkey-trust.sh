#!/bin/sh
# Accept a host's key, here of a host that does not exist. A real one's error host_key_unknown has host and hostKey.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/add <<END | keep host connection >/dev/null
{"name": "Example host", "data": {"type": "ssh", "host": "build.example"}, "category": "$(cat "$state/category")"}
END
key='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhWUlLMGpnt47wGQzkVVlkG0RKUhVwUhn9WSI6QLQ6u'
post /hostkey/trust <<END
{"connection": "$(cat "$state/host")", "host": "build.example", "hostKey": "$key"}
END
