# common.sh - to be read by a script that is called with ACCRUE EXAMPLE WORK: the command, the folder of
# the example and one to work in.  A script goes on after a complaint and exits with $failed.
# shellcheck disable=SC2034
set -u
accrue=$1
example=$2
work=$3
failed=0

complain() {
    echo "$*"
    failed=1
}

# expect CODE ARGUMENT...: runs the command, its output in $work/out and $work/err
expect() {
    wanted=$1
    shift
    "$accrue" "$@" >"$work/out" 2>"$work/err"
    code=$?
    [ "$code" = "$wanted" ] || complain "accrue $*: exit $code, $wanted expected: $(cat "$work/err")"
}
