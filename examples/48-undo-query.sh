#!/bin/sh
# Change a file with a token, and list what is kept of it.
set -eu
. "$(dirname "$0")/request.sh"

post /shell/start <<'END' >/dev/null
{"connection": "f0ec68aa-63f5-405c-b178-9a4454556d6b"}
END
echo before >"$state/changed"
post /token/create <<'END' >"$state/editor-created"
{"name": "editor", "expires": 600, "scopes": ["fs.write"], "connections": ["local machine"]}
END
{
    printf "Authorization: Bearer "
    field token <"$state/editor-created"
} >"$state/editor"
rm "$state/editor-created"
echo after |
    curl -sS --fail-with-body -H @"$state/editor" -H "Content-Type: application/octet-stream" --data-binary @- \
        "$url/fs/upload?connection=f0ec68aa-63f5-405c-b178-9a4454556d6b&path=$state/changed" >"$state/uploaded"
python3 -c 'import json, sys; print(json.load(sys.stdin)["changes"][0])' <"$state/uploaded" >"$state/change"
rm "$state/uploaded"

post /undo/query <<'END'
{"token": "editor"}
END
