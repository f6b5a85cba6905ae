#!/bin/sh
# layers.sh SRC - fails when a file under SRC includes a header of a layer that is not below its own.
#
# base < tensor < {kernel | data | comm | text} < tape < model < {infer | convert} < train; cli sees the public header alone.
# Two numbers equal and two layers different are siblings, which never include each other.
set -u
src=$1
failed=0

rank() {
    case $1 in
    base) echo 0 ;;
    tensor) echo 1 ;;
    kernel | data | comm | text) echo 2 ;;
    tape) echo 3 ;;
    model) echo 4 ;;
    infer | convert) echo 5 ;;
    train) echo 6 ;;
    *) echo none ;;
    esac
}

complain() {
    echo "$1: $2"
    failed=1
}

files=$(find "$src" -name '*.[ch]' | sort)
[ -n "$files" ] || complain "$src" "no sources found"
for file in $files; do
    layer=${file#"$src"/}
    layer=${layer%%/*}
    for header in $(sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' "$file"); do
        [ "$header" = accrue/accrue.h ] && continue
        # A dependency's header, which some quote.
        [ "${header%%/*}" != "$header" ] && [ "${header%%/*}" != .. ] && [ ! -d "$src/${header%%/*}" ] &&
            continue
        # A header without a folder is the includer's neighbour.
        case $header in
        ../* | */../*) complain "$file" "includes $header by a path upwards" && continue ;;
        */*) target=${header%%/*} ;;
        *) target=$layer ;;
        esac
        [ -f "$(dirname "$file")/$header" ] || [ -f "$src/$header" ] ||
            complain "$file" "includes $header, which is not in the tree"
        [ "$target" = "$layer" ] && continue
        from=$(rank "$layer")
        to=$(rank "$target")
        if [ "$from" = none ]; then
            complain "$file" "includes $header; $layer may include the public header alone"
        elif [ "$to" = none ]; then
            complain "$file" "includes $header, which belongs to no layer below"
        elif [ "$to" -ge "$from" ]; then
            complain "$file" "includes $header; $target is not below $layer"
        fi
    done
done
[ "$failed" = 0 ] && echo "layers hold in $(echo "$files" | wc -l) files"
exit "$failed"
