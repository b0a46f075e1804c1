# For putting a file back where it was, and nowhere else. `reach` takes a real path, enters its directory and looks where
# that is, because whoever may write above it could have put a link there. Afterwards p is ./name in the current
# directory, and no program follows a link of that name.
# shellcheck disable=SC2329 # the programs call what this defines
pin() {
  pinned=1
  reach() {
    resolve "$1"; trim; parent
    cd -P "$d" 2>/dev/null || no permission_denied
    h=$(physical && echo x) || no file_operation_failed
    h=${h%??}
    [ "${h%/}/$b" = "$p" ] || no file_changed "Its directory has become a link that leads elsewhere."
    d=. p=./$b
  }
  enter() { [ "$1" = . ]; }
  # Enters the directory p itself.
  go_in() {
    cd -P "$p" 2>/dev/null || no permission_denied
    there=$(physical && echo x)
    [ "${there%??}" = "${h%/}/$b" ] || swapped
  }
}
