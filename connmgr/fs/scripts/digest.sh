# Prints the SHA-256 of a file, with whatever computes it here; for a large $size by the fastest.
checksum() {
  case $size in ???????*) openssl dgst -sha256 "$1" && return;; esac
  sha256sum "$1" || openssl dgst -sha256 "$1" || shasum -a 256 "$1" || sha256 -q "$1"
} 2>/dev/null
still() {
  case $(checksum "$1") in
    *"$2"*) ;;
    "") no file_operation_failed "No program that computes a SHA-256 is there.";;
    *) no file_changed
  esac
}
