#!/bin/sh
# mpi_comm.sh PART PROGRAM RANKS MPIRUN - collectives between processes, failures of ranks, and ranks
# that vanish: the job ends, soon, badly, and says for whom.
set -u
part=$1
program=$2
ranks=$3
mpirun=$4
last=$((ranks - 1))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# MPI itself leaves memory behind; what the library does with its own the program checks.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS

# Open MPI starts no ranks for root, and none beyond the cores, unless told.
case $("$mpirun" --version 2>&1) in
*"Open MPI"* | *OpenRTE*)
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    launcher=openmpi
    options=--oversubscribe
    keep="--mca orte_abort_on_non_zero_status 0 --enable-recovery"
    ;;
*)
    launcher=mpich
    options=
    keep=-disable-auto-cleanup
    ;;
esac

complain() {
    echo "$case: $*"
    sed 's/^/    /' "$work/out" "$work/err"
    failed=1
}

# job OPTIONS CASE...: runs it; its exit status in $code, one line a rank in $work/out.
job() {
    extra=$1
    shift
    case="$*"
    # shellcheck disable=SC2086
    timeout -k 5 40 "$mpirun" $options $extra -n "$ranks" "$program" "$@" \
        >"$work/out" 2>"$work/err" </dev/null
    code=$?
    [ "$code" != 124 ] || complain "did not end"
}

# ended CODE: with it, or with any but 0.  Hydra may give that of a rank that it has killed itself.
ended() {
    if [ "$1" = badly ] || { [ "$launcher" = mpich ] && [ "$code" = 9 ] && [ "$1" != 0 ]; }; then
        [ "$code" != 0 ] || complain "exit status 0"
    else
        [ "$code" = "$1" ] || complain "exit status $code, $1 expected"
    fi
}

# said RANKS TEXT: so many ranks report the same, with this text in it
said() {
    [ "$(grep -c '^of ' "$work/out")" = "$1" ] || complain "not $1 reports"
    [ "$(sed -n 's/^of [0-9]*: //p' "$work/out" | sort -u | wc -l)" = 1 ] || complain "reports differ"
    grep -q "$2" "$work/out" || complain "no '$2'"
}

# rank 0 reports, with this text in it
rank_0_said() {
    grep '^of 0:' "$work/out" | grep -q "$1" || complain "rank 0 does not say '$1'"
}

collectives() {
    job "" checks
    ended 0
    said "$ranks" ACCRUE_OK
}

failures() {
    for who in 0 $last; do
        for n in 1 2 9; do
            job "$keep" inject "$who" "$n"
            said "$ranks" "ACCRUE_ECOMM rank $who: .* fails, as a test has asked"
        done
        for how in fail compute load; do
            job "$keep" "$how" "$who"
            said "$ranks" "ACCRUE_EIO rank $who: disk: on fire"
            job "" "$how" "$who" # as it is used: the first to end ends all
            ended 4
            rank_0_said "ACCRUE_EIO rank $who: disk: on fire"
        done
        job "$keep" disagree "$who"
        said "$ranks" "ACCRUE_ECOMM rank"
        job "$keep" absent "$who"
        said "$ranks" "the gradient of layers.0, optimizer step 1: nothing from rank $who for 2 s"
        job "" absent "$who"
        ended 12
    done
}

faults() {
    job "" kill "$last" # the launcher sees it
    ended badly
    job "$keep" leave "$last"
    said "$last" "nothing from rank $last for 2 s"
    job "" stop "$last"
    ended badly
    rank_0_said "nothing from rank $last for 2 s"
    job "" stop 0
    ended badly
    grep -q "nothing from rank 0 for 2 s" "$work/out" || complain "rank 0 is not named"
    [ "$launcher" = openmpi ] || return 0
    job "$keep" kill "$last" # the launcher is to let it be; Hydra sends the others a signal
    said "$last" "nothing from rank $last for 2 s"
    job "" leave "$last" # Hydra takes it for a good end
    ended badly
}

$part
[ "$failed" = 0 ] && echo "$launcher, $ranks ranks: $part hold"
exit "$failed"
