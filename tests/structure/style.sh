#!/bin/sh
# style.sh ROOT - files of at most 700 lines and lines of at most 100 columns.
set -u
failed=0

for file in $(find "$1/src" "$1/include" "$1/tests" "$1/examples" -name '*.[ch]' 2>/dev/null); do
    lines=$(wc -l <"$file")
    [ "$lines" -le 700 ] || { echo "$file: $lines lines, at most 700"; failed=1; }
    awk -v file="$file" 'length($0) > 100 { print file ":" NR ": " length($0) " columns"; bad = 1 }
        /\t/ { print file ":" NR ": a tab"; bad = 1 }
        END { exit bad }' "$file" || failed=1
done
exit "$failed"
