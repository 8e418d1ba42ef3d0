#!/bin/sh
# Prints the packages whose names are in a file (the image's, without an argument) with their hashes, for pip's --require-hashes.
set -eu
cd "$(dirname "$0")/../.."
awk 'NR == FNR { if (!/^#/) wanted[$1 "=="]; next }
    /^[^ ]/ { split($1, part, "=="); take = (part[1] "==") in wanted }
    take' "${1:-conf/docker/packages.txt}" conf/requirements.txt
