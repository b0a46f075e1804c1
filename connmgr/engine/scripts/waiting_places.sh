# The numbers of the system calls that read, and of those that wait for several files, as /proc/PID/syscall shows them
# (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h of Linux).
wait_reads= wait_selects= wait_polls=
case $(uname -m) in
  x86_64) wait_reads=" 0 19 " wait_selects=" 23 270 " wait_polls=" 7 271 232 281 441 ";;
  aarch64|riscv64|loongarch64) wait_reads=" 63 65 " wait_selects=" 72 " wait_polls=" 73 22 441 ";;
esac
