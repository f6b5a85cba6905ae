#!/bin/sh
# symbols.sh LIBRARY HEADER - the shared library exports accrue_* and nothing else, and every
# function that the header declares.
set -u
library=$1
header=$2
failed=0

exported=$(nm -D --defined-only "$library" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort)
declared=$(grep -v '^#' "$header" | tr '\n' ' ' | grep -o 'ACCRUE_API [^;(]*(' |
    sed 's/.*[ *]\(accrue_[a-z0-9_]*\)($/\1/' | sort -u)
[ -n "$declared" ] || { echo "no declarations found in $header"; failed=1; }
for name in $exported; do
    case $name in
    accrue_*) ;;
    *) echo "exported: $name" && failed=1 ;;
    esac
done
for name in $declared; do
    echo "$exported" | grep -qx "$name" || { echo "declared, not exported: $name"; failed=1; }
done
[ "$failed" = 0 ] && echo "exported: $(echo "$exported" | wc -l) symbols, all of them the header's"
exit "$failed"
