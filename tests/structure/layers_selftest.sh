#!/bin/sh
# layers_selftest.sh LAYERS WORK - the layer check finds what it is there to find.
set -eu
check=$1
work=$2
failed=0

# try NAME EXPECTED FILE INCLUDE: one offending (or fine) #include in a tree of all layers
try() {
    rm -rf "$work"
    for layer in base tensor kernel data comm tape model train cli; do
        mkdir -p "$work/$layer"
        echo "/* $layer */" >"$work/$layer/$layer.h"
    done
    echo "#include \"$4\"" >"$work/$3"
    status=0
    sh "$check" "$work" >"$work.out" 2>&1 || status=$?
    if [ "$status" != "$2" ]; then
        echo "$1: exit $status, $2 expected"
        failed=1
    fi
}

try down 0 model/a.c tape/tape.h
try neighbour 0 train/a.c train.h
try public 0 cli/a.c accrue/accrue.h
try dependency 0 data/a.c nanoarrow/nanoarrow.h
try up 1 base/a.c tensor/tensor.h
try far_up 1 kernel/a.c train/train.h
try sideways 1 kernel/a.c data/data.h
try cli_in 1 cli/a.c base/base.h
try of_cli 1 train/a.c cli/cli.h
try dotted 1 tensor/a.c ../tape/tape.h
try nowhere 1 tensor/a.c base/none.h
rm -rf "$work" "$work.out"
[ "$failed" = 0 ] && echo "11 cases judged as they should be"
exit "$failed"
