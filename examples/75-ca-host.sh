#!/bin/sh
# Certify the key of a host for its names.
set -eu
. "$(dirname "$0")/request.sh"

post /ca/host <<END
{
  "name": "team",
  "key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBhWUlLMGpnt47wGQzkVVlkG0RKUhVwUhn9WSI6QLQ6u",
  "names": ["web1.example"]
}
END
