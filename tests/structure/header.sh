#!/bin/sh
# header.sh HEADER COMPILER... - the public header compiles alone as C17 and as C++17.
set -u
header=$1
shift
failed=0
flags="-Wall -Wextra -Wpedantic -Werror -fsyntax-only"

for compiler in "$@"; do
    for language in c c++; do
        standard=$([ "$language" = c ] && echo c17 || echo c++17)
        # shellcheck disable=SC2086
        if printf '#include "%s"\n' "$header" | "$compiler" $flags -std=$standard -x $language -; then
            echo "$compiler $standard: compiles"
        else
            failed=1
        fi
    done
done
exit "$failed"
