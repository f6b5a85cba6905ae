#!/bin/sh
# mpi.sh PART ACCRUE EXAMPLE WORK MPIRUN RANKS - the real command under mpirun: the files of one rank;
# signals; ranks that are killed or stopped.
set -u
part=$1
accrue=$2
example=$3
work=$4
mpirun=$5
ranks=$6
last=$((ranks - 1))
failed=0

complain() {
    echo "$name: $*"
    tail -n 5 "$work/$name.err" "$work/$name.mpirun" 2>/dev/null | sed 's/^/    /'
    failed=1
}

rm -rf "$work"
mkdir -p "$work"
# MPI itself leaves memory behind.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS

# Open MPI starts no ranks for root, and none beyond the cores, unless told.
case $("$mpirun" --version 2>&1) in
*"Open MPI"* | *OpenRTE*)
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    launcher=openmpi
    options="--oversubscribe --bind-to none"
    ;;
*)
    launcher=mpich
    options=
    ;;
esac

flags="--verifier-name-or-path $example/verifier --data-path $example/data --total-seq-len 128
    --global-window 12 --lr 0.01 --ttt-steps 2"
exact="--hidden-states-dtype float32 --reproducible"

# Each rank leaves its process's number behind; what they print goes to files, as mpirun reads
# nothing more once it has a signal.
cat >"$work/rank" <<'END'
#!/bin/sh
to=$1
shift
rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}
echo $$ >"$to.$rank.pid"
exec "$@" >>"$to.out" 2>>"$to.err"
END
chmod +x "$work/rank"

# launch NAME OPTIONS FLAG...: in the foreground; the exit status in $code
launch() {
    name=$1
    extra=$2
    shift 2
    # shellcheck disable=SC2086
    timeout -k 5 60 "$mpirun" $options $extra -n "$ranks" "$work/rank" "$work/$name" "$accrue" train $flags \
        --save-path "$work/$name" "$@" >"$work/$name.mpirun" 2>&1 </dev/null
    code=$?
}

# exits CODE, or "badly", or "" for what the launcher makes of it
exits() {
    if [ "$1" = badly ]; then
        [ "$code" != 0 ] || complain "exit status 0"
        [ "$code" != 124 ] || complain "did not end"
    elif [ -n "$1" ]; then
        [ "$code" = "$1" ] || complain "exit status $code, $1 expected"
    fi
}

# alone NAME FLAG...: one rank, without mpirun
alone() {
    name=$1
    shift
    # shellcheck disable=SC2086
    "$accrue" train $flags --save-path "$work/$name" "$@" >"$work/$name.out" 2>"$work/$name.err" ||
        complain "exit $?"
}

metrics() {
    sed 's/"profile": {[^}]*}, //' "$work/$1/metrics.jsonl" >"$work/$1.metrics"
}

# same EPOCH LIKE: the metrics of $name, and the bits of its checkpoint
same() {
    metrics "$name"
    metrics "$2"
    cmp "$work/$name.metrics" "$work/$2.metrics" || complain "other metrics"
    for file in model.safetensors state.tensors; do
        cmp "$work/$name/$1/$file" "$work/$2/$1/$file" || complain "another $file"
    done
}

says() {
    grep -q "$1" "$work/$name.err" || complain "does not say '$1'"
}

equal() {
    # shellcheck disable=SC2086
    alone one $exact --epochs 2
    for layout in "" --fsdp-shard "--fsdp-shard --defer-reduce"; do
        # shellcheck disable=SC2086
        launch "mpi$(echo "$layout" | tr -d ' ')" "" $exact --epochs 2 $layout
        exits 0
        same 1 one
        [ "$(grep -c '^epoch 1  validation' "$work/$name.out")" = 1 ] || complain "not one rank prints"
    done
    grep -q "^$ranks ranks, sharded, window of $ranks x $((12 / ranks)) micro-batches$" "$work/$name.out" ||
        complain "not told of the ranks"

    # To the middle on these, to the end on one.
    # shellcheck disable=SC2086
    alone straight $exact --epochs 2 --scheduler-total-steps 9
    # shellcheck disable=SC2086
    launch parts "" $exact --epochs 2 --scheduler-total-steps 9 --max-steps 3 --ranks "$ranks" \
        --logger csv --log-dir "$work/logs" --run-name "of-{rank}-{local_rank}"
    exits 0
    [ "$(ls "$work/logs")" = of-0-0 ] || complain "logs: $(ls "$work/logs")"
    # shellcheck disable=SC2086
    alone parts $exact --epochs 2 --scheduler-total-steps 9
    same 1 straight

    for wrong in "--epochs 0" "--data-path $work/nowhere" "--ranks 7" "--logger csv --log-dir $work/rank/x"; do
        # shellcheck disable=SC2086
        launch "wrong$(echo "$wrong" | tr -d ' /')" "" $wrong
        case $launcher-$wrong in
        mpich---log*) exits badly ;; # it kills who has not ended when rank 0 does
        *---log*) exits 1 ;;
        *) exits 2 ;;
        esac
        # Another rank may have the time to say the same before the launcher ends it.
        [ "$(sed -n 's/^accrue: \(rank [0-9]*: \)*//p' "$work/$name.err" | sort -u | wc -l)" = 1 ] ||
            complain "not one line"
    done
}

# begin NAME OPTIONS FLAG...: in the background, until it has made some steps
begin() {
    name=$1
    extra=$2
    shift 2
    # shellcheck disable=SC2086
    "$mpirun" $options $extra -n "$ranks" "$work/rank" "$work/$name" "$accrue" train $flags $exact --epochs 100 \
        --save-path "$work/$name" "$@" >"$work/$name.mpirun" 2>&1 </dev/null &
    pid=$!
    until [ "$(cat "$work/$name/metrics.jsonl" 2>/dev/null | wc -l)" -gt 12 ]; do
        kill -0 $pid 2>/dev/null || break
        sleep 0.01
    done
}

rank() {
    cat "$work/$name.$1.pid"
}

# Until a rank answers SIGTERM itself: number 15, bit 14 of the mask.
until_caught() {
    for _ in $(seq 1000); do
        mask=$(sed -n 's/^SigCgt:.*\(....\)$/\1/p' "/proc/$(rank "$1" 2>/dev/null)/status" 2>/dev/null)
        [ $((0x${mask:-0} & 0x4000)) = 0 ] || return 0
        sleep 0.02
    done
}

# ends CODE: within half a minute
ends() {
    (
        sleep 30 &
        nap=$!
        trap 'kill $nap; exit' TERM
        wait $nap
        for r in $(seq 0 "$last"); do
            kill -KILL "$(rank "$r")"
        done
        kill -KILL $pid
    ) >/dev/null 2>&1 &
    alarm=$!
    wait $pid
    code=$?
    kill $alarm 2>/dev/null || complain "did not end within 30 s"
    exits "$1"
}

# goes_on: on one rank, to the end of the run that nobody stopped
goes_on() {
    # shellcheck disable=SC2086
    alone "$name" $exact --epochs 100 --checkpoint-freq 50
    says 'goes on from '
    same 99 alone
}

signals() {
    # shellcheck disable=SC2086
    alone alone $exact --epochs 100 --checkpoint-freq 50
    begin term ""
    kill -TERM "$(rank "$last")"
    ends 0
    says 'stopped by SIGTERM at optimizer step [0-9]*; saved as'
    goes_on
    begin int "" --fsdp-shard
    kill -INT "$(rank 1)"
    ends 130
    says 'stopped by SIGINT at optimizer step [0-9]*; saved as'
    goes_on

    # One rank hangs, so that the window does not end; the second signal does not wait for it.
    begin twice ""
    kill -STOP "$(rank 1)"
    kill -TERM "$(rank 0)"
    sleep 0.7
    kill -TERM "$(rank 0)"
    ends badly
    goes_on

    # Before the first step there is nothing to save, and others wait for who leaves.
    cp -r "$example/data" "$work/data"
    (
        flock 9
        exec sleep 30
    ) 9>"$work/data/hidden_states/hs_0.safetensors.lock" &
    holder=$!
    name=early
    # shellcheck disable=SC2086
    "$mpirun" $options -n "$ranks" "$work/rank" "$work/early" "$accrue" train $flags --save-path "$work/early" \
        --data-path "$work/data" --lock-timeout 25 >"$work/early.mpirun" 2>&1 </dev/null &
    pid=$!
    until_caught 0
    kill -TERM "$(rank 0)"
    ends badly
    kill $holder
    says 'stopped before training began'

    [ "$launcher" = openmpi ] || return 0
    begin mpirun ""
    kill -TERM $pid # which gives it to the ranks a second later
    ends 1
    says 'stopped by SIGTERM at optimizer step [0-9]*; saved as'
    goes_on
    begin saved "" --checkpoint-freq 90
    kill -USR1 $pid
    ends 0
    [ "$(grep -c ' checkpoint ' "$work/saved.out")" -gt 3 ] || complain "SIGUSR1 saved nothing"
    same 99 alone
}

faults() {
    # shellcheck disable=SC2086
    alone alone $exact --epochs 100 --checkpoint-freq 50
    silent=".*, optimizer step [0-9]*: nothing from rank"
    begin stopped "" --comm-timeout 5
    kill -STOP "$(rank "$last")"
    ends badly
    says "^accrue: rank [0-9]*: $silent $last for 5 s (--comm-timeout)$"
    [ "$(grep -c '^accrue: rank' "$work/$name.err")" = 1 ] || complain "not one rank tells"
    goes_on
    begin first-stopped "" --comm-timeout 3 --fsdp-shard
    kill -STOP "$(rank 0)"
    ends badly
    says "^accrue: rank [1-9]*: $silent 0 for 3 s (--comm-timeout)$"
    goes_on
    begin killed "" --fsdp-shard # mpirun sees it, tells and ends the others
    kill -KILL "$(rank "$last")"
    ends badly
    [ "$launcher" = mpich ] || grep -q "rank $last .*signal 9" "$work/$name.mpirun" || complain "not named"
    goes_on
    [ "$launcher" = openmpi ] || return 0
    begin alone-killed "--mca orte_abort_on_non_zero_status 0 --enable-recovery" --comm-timeout 3
    kill -KILL "$(rank "$last")"
    ends ""
    says "^accrue: rank [0-9]*: $silent $last for 3 s (--comm-timeout)$"
    goes_on
}

$part
[ "$failed" = 0 ] && echo "$launcher, $ranks ranks: $part hold"
exit "$failed"
