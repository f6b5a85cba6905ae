#!/bin/sh
# package.sh BUILD PREFIX COMPILER - installs into PREFIX and builds a program against it, through
# pkg-config alone, with the shared and with the static library.
set -eu
build=$1
prefix=$2
compiler=$3

rm -rf "$prefix"
cmake --install "$build" --prefix "$prefix" >/dev/null
for file in bin/accrue include/accrue/accrue.h include/accrue/workflow.h share/man/man1/accrue.1; do
    [ -s "$prefix/$file" ] || { echo "not installed: $file"; exit 1; }
done
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name accrue.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir accrue)
cat >"$prefix/program.c" <<'END'
#include <accrue/accrue.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
    accrue_error err;
    accrue_comm *comm = NULL;
    (void)argv;
    if (argc > 1 && accrue_comm_open_mpi(&comm, 1, &err)) /* links, or says that it cannot */
        return 1;
    accrue_window *window = NULL;
    accrue_window_options options;
    accrue_window_options_init(&options, sizeof options);
    options.gradient_accumulation_steps = 0;
    accrue_status status = accrue_window_create(&window, &options, &err);
    printf("%s %s\n", accrue_version(), accrue_status_name(status));
    return status == ACCRUE_EINVAL ? 0 : 1;
}
END
# shellcheck disable=SC2046
"$compiler" -std=c17 "$prefix/program.c" -o "$prefix/shared" $(pkg-config --cflags --libs accrue)
# shellcheck disable=SC2046
"$compiler" -std=c17 "$prefix/program.c" -o "$prefix/static" $(pkg-config --cflags accrue) \
    "$libdir/libaccrue.a" $(pkg-config --libs --static accrue | sed 's/-laccrue//')
readelf -d "$prefix/shared" | grep -q 'NEEDED.*libaccrue\.so\.[0-9]' ||
    { echo "the program does not name libaccrue's soname"; exit 1; }
LD_LIBRARY_PATH=$libdir "$prefix/shared"
"$prefix/static"
"$prefix/bin/accrue" --version
