# $2 and $3 are the first block of each stream, $4 is the number of blocks of each.
out_block=$2 err_block=$3 blocks=$4
set -- "$1"
say ok
