# Sourced by the examples: functions for requests, and the directory of shared files.

umask 077
url=http://${CONNMGR_HOST-127.0.0.1}:${CONNMGR_PORT-21721}
state=${XDG_RUNTIME_DIR:-$HOME/.cache}/connmgr-examples
mkdir -p "$state"

# post PATH: send the JSON on standard input with the token that 01-handshake.sh got, and print the answer.
# The token comes from a file, because other users can see the arguments of a program.
post() {
    curl -sS --fail-with-body -H @"$state/headers" --data-binary @- "$url$1"
}

# credential: print the "auth" of a handshake for the credential that a variable names, or else for the auth file.
# An empty variable or file is an error: it never means the owner.
credential() {
    case ${CONNMGR_TOKEN+1}${CONNMGR_TOKEN_FILE+1}${CONNMGR_API_KEY_FILE+1} in
        "") secret_of authFileContent local "${CONNMGR_AUTH_FILE-${XDG_RUNTIME_DIR:-$HOME/.local/state}/connmgr/auth}" ;;
        1)
            if [ "${CONNMGR_API_KEY_FILE+1}" ]; then
                secret_of key apiKey "$CONNMGR_API_KEY_FILE"
            elif [ "${CONNMGR_TOKEN_FILE+1}" ]; then
                secret_of token token "$CONNMGR_TOKEN_FILE"
            else
                printf %s "$CONNMGR_TOKEN" | secret_of token token /dev/stdin
            fi
            ;;
        *) echo "CONNMGR_TOKEN, CONNMGR_TOKEN_FILE, CONNMGR_API_KEY_FILE: set one of them at most." >&2; return 1 ;;
    esac
}

# secret_of MEMBER TYPE FILE: print the "auth" with the content of a file, which is one line.
secret_of() {
    python3 -c '
import json, sys
member, kind, file = sys.argv[1:]
lines = open(file).read().split("\n")
if not lines[0].strip() or any(lines[1:]):
    sys.exit(f"{file} does not contain one line with a credential.")
print(json.dumps({"type": kind, member: lines[0].strip()}))
' "$@"
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
