# Prints the first of the programs "$@" that exists.
for one; do
  if command -v "$one" >/dev/null 2>&1; then echo "relay $one"; exit 0; fi
done
exit 1
