# For putting a file back where it was, and nowhere else. `reach` takes a real path, enters its directory and looks where
# that is, because whoever may write above it could have put a link there. Afterwards p is ./name in the current
# directory, and no program follows a link of that name.
# shellcheck disable=SC2329 # the programs call what this defines
pin() {
  pinned=1
  reach() {
    resolve "$1"; trim; parent
    whole=$p
    hold_above
    [ "${h%/}/$b" = "$whole" ] || no file_changed "Its directory has become a link that leads elsewhere."
  }
  enter() { [ "$1" = . ]; }
}
