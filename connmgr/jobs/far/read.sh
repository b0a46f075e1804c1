# $2 and $3 are the block of each stream to begin at, $4 the number of blocks of each.
out_block=$2 err_block=$3 blocks=$4
set -- "$1"
say ok
