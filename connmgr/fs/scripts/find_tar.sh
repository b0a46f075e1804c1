# Finds tar, and the options with which it writes the format and block size that are needed.
# What the user's programs get as options by the environment, ours do not.
unset TAR_OPTIONS TAR_READER_OPTIONS TAR_WRITER_OPTIONS
tar=tar
if ! command -v tar; then tar=
else case $(tar --version 2>&1) in
  *bsdtar*) tar_create="--format gnutar -b 128";;
  *GNU*) tar_create="--format=gnu --no-unquote -b 128";;
  *) tar_create=;;
esac; fi </dev/null >/dev/null 2>&1
