#!/bin/sh
# Attach to the terminal by the ticket, as a browser does. curl shows the upgrade and leaves after a second, because the
# frames that follow need a WebSocket client.
set -eu
. "$(dirname "$0")/request.sh"

curl -sS --http1.1 --include --max-time 1 --output "$state/attached" \
    -H 'Connection: Upgrade' -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
    -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' \
    -H "Sec-WebSocket-Protocol: connmgr.v1, connmgr.ticket.$(cat "$state/ticket")" \
    "$url/terminal/attach/$(cat "$state/terminal")?watch=true" 2>/dev/null || [ $? = 28 ]
head -n 1 "$state/attached" | cut -d " " -f 1,2
