# Finds the programs that compute SHA-256: for any file, the fastest for large ones, and whether one run takes many
# files.
computes() { case $($1 </dev/null 2>/dev/null) in *e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855*) ;; *) false;; esac; }
sum= fast="openssl dgst -sha256" many=
for tool in sha256sum "$fast" "shasum -a 256" "sha256 -q"; do ! computes "$tool" || { sum=$tool; break; }; done
computes "$fast" || fast=$sum
! computes "sha256sum -z" || many=1
