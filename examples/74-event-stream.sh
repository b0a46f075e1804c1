#!/bin/sh
# Watch what changes: open the stream of events, make a category and remove it, and print what the stream tells of it.
set -eu
. "$(dirname "$0")/request.sh"

rm -f "$state/events"
mkfifo "$state/events"
curl -sS --no-buffer --fail-with-body -H @"$state/headers" --data-binary @- "$url/event/stream" >"$state/events" <<END &
{"kinds": ["category"]}
END
stream=$!
{
    read -r begun
    echo "$begun"
    watched=$(echo '{"name": "watched", "parent": "bfb0b51a-e7a3-4ce4-8878-8d4cb5828d6c"}' | post /category/add | field category)
    read -r added
    echo "$added"
    post /category/remove <<END
{"categories": ["$watched"], "removeChildrenCategories": false, "removeContents": false}
END
    read -r removed
    echo "$removed"
} <"$state/events"
kill "$stream"
