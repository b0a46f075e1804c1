#!/bin/sh
# Accept the key of a host that nobody reaches: a connection to it would tell host and hostKey with host_key_unknown.
set -eu
. "$(dirname "$0")/request.sh"

post /connection/add <<END | keep host connection >/dev/null
{"name": "Example host", "data": {"type": "ssh", "host": "build.example"}, "category": "$(cat "$state/category")"}
END
key='ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhWUlLMGpnt47wGQzkVVlkG0RKUhVwUhn9WSI6QLQ6u'
post /hostkey/trust <<END
{"connection": "$(cat "$state/host")", "host": "build.example", "hostKey": "$key"}
END
