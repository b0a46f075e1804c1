# Sourced by the examples: functions for requests, and the directory of shared files.

umask 077
url=http://${CONNMGR_HOST:-127.0.0.1}:${CONNMGR_PORT:-21721}
state=${XDG_RUNTIME_DIR:-$HOME/.cache}/connmgr-examples
mkdir -p "$state"

# post PATH: send the JSON on standard input with the token that 01-handshake.sh got, and print the answer.
# The token comes from a file, because other users can see the arguments of a program.
post() {
    curl -sS --fail-with-body -H @"$state/headers" --data-binary @- "$url$1"
}

# field NAME: print one member of the JSON object on standard input.
field() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"
}

# keep NAME MEMBER: keep a member of the answer on standard input for later examples, and print the answer.
keep() {
    tee "$state/answer.json"
    field "$2" <"$state/answer.json" >"$state/$1"
}
