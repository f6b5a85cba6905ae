#!/bin/sh
# ranks.sh ACCRUE EXAMPLE WORK - the real command with ranks as threads: the files of one rank, whatever
# their number and layout, also when signals stop them and another number goes on.
. "$(dirname "$0")/common.sh"

rm -rf "$work"
mkdir -p "$work"
flags="--verifier-name-or-path $example/verifier --data-path $example/data --total-seq-len 128
    --global-window 12 --lr 0.01 --ttt-steps 2"
exact="--hidden-states-dtype float32 --reproducible"

# train NAME FLAG...: exits with 0
train() {
    name=$1
    shift
    # shellcheck disable=SC2086
    "$accrue" train $flags --save-path "$work/$name" "$@" >"$work/$name.out" 2>"$work/$name.err" ||
        complain "$name: exit $?: $(cat "$work/$name.err")"
}

metrics() {
    sed 's/"profile": {[^}]*}, //' "$work/$1/metrics.jsonl" >"$work/$1.metrics"
}

# same NAME EPOCH LIKE: the metrics, and the bits of the checkpoint
same() {
    metrics "$1"
    cmp "$work/$1.metrics" "$work/$3.metrics" || complain "$1: other metrics"
    for file in model.safetensors state.tensors; do
        cmp "$work/$1/$2/$file" "$work/$3/$2/$file" || complain "$1: another $file"
    done
}

# shellcheck disable=SC2086
train one $exact --epochs 2
metrics one
for ranks in 2 3 4; do
    for layout in "" --fsdp-shard "--fsdp-shard --defer-reduce"; do
        name=$ranks$(echo "$layout" | tr -d ' ')
        # shellcheck disable=SC2086
        train "$name" $exact --epochs 2 --ranks $ranks $layout
        same "$name" 1 one
    done
done
grep -q '^4 ranks, sharded, window of 4 x 3 micro-batches$' "$work/4--fsdp-shard.out" || complain "not told of the ranks"
grep -q '^--defer-reduce takes [0-9.]* kB of each rank$' "$work/4--fsdp-shard--defer-reduce.out" ||
    complain "not told what --defer-reduce takes"

# Without --reproducible the last digits differ, not those that are shown.
shown() {
    grep -E '^epoch.*(step|validation)' "$work/$1.out" | sed 's/  [0-9]* tok.*//' >"$work/$1.shown"
}
train double --hidden-states-dtype float64 --epochs 2
shown double
for ranks in 2 3; do
    train double$ranks --hidden-states-dtype float64 --epochs 2 --ranks $ranks
    shown double$ranks
    cmp "$work/double.shown" "$work/double$ranks.shown" || complain "$ranks ranks show other numbers"
done

# A dry run plans and writes what that of one rank does.
train dry --dry-run
train dry3 --dry-run --ranks 3 --fsdp-shard --defer-reduce
cmp "$work/dry/model.safetensors" "$work/dry3/model.safetensors" || complain "another initialised checkpoint"
for row in 'ranks  *3  sharded' 'training state .* of a rank' '.* of that for --defer-reduce'; do
    grep -q "^$row$" "$work/dry3.out" || complain "dry run: no '$row' in $(cat "$work/dry3.out")"
done

# refused TEXT FLAG...: one line, exit 2
refused() {
    text=$1
    shift
    # shellcheck disable=SC2086
    "$accrue" train $flags --save-path "$work/refused" "$@" >"$work/refused.out" 2>"$work/refused.err"
    code=$?
    [ "$code" = 2 ] || complain "$*: exit $code"
    grep -q "$text" "$work/refused.err" || complain "$*: $(cat "$work/refused.err")"
    [ "$(wc -l <"$work/refused.err")" = 1 ] || complain "not one line: $(cat "$work/refused.err")"
}
refused 'global-window: 12 is no multiple of the number of ranks, 5' --ranks 5
refused 'defer-reduce goes with --fsdp-shard' --ranks 2 --defer-reduce
refused "nowhere" --ranks 3 --data-path "$work/nowhere"

# shellcheck disable=SC2086
train alone $exact --epochs 60
metrics alone

# begin NAME FLAG...: in the background, until it has made some steps
begin() {
    name=$1
    shift
    # shellcheck disable=SC2086
    env --default-signal=INT "$accrue" train $flags $exact --epochs 60 --save-path "$work/$name" "$@" \
        >"$work/$name.out" 2>"$work/$name.err" &
    pid=$!
    until [ "$(cat "$work/$name/metrics.jsonl" 2>/dev/null | wc -l)" -gt 12 ]; do
        sleep 0.01
    done
}

ends() {
    wait "$pid"
    code=$?
    [ "$code" = "$1" ] || complain "$name: exit $code, $1 expected: $(cat "$work/$name.err")"
    grep -q "stopped by SIG$2 at optimizer step [0-9]*; saved as" "$work/$name.err" ||
        complain "$name: not told: $(cat "$work/$name.err")"
}

# goes_on NAME FLAG...: to the end of the run that nobody stopped
goes_on() {
    # shellcheck disable=SC2086
    train "$@" $exact --epochs 60
    grep -q 'goes on from ' "$work/$1.err" || complain "$1 is not resumed: $(cat "$work/$1.err")"
    same "$1" 59 alone
}

begin term --ranks 3
kill -TERM $pid
ends 0 TERM
goes_on term --ranks 4 --fsdp-shard
begin int --ranks 2 --fsdp-shard
kill -INT $pid
ends 130 INT
goes_on int

# A window of several ranks is not given up: it ends.
begin grace --ranks 4 --fsdp-shard --defer-reduce --grace 0
kill -TERM $pid
ends 0 TERM
goes_on grace --ranks 3

begin saved --ranks 2 --checkpoint-freq 50
kill -USR1 $pid
until [ "$(grep -c ' checkpoint ' "$work/saved.out")" -gt 1 ]; do
    kill -0 $pid 2>/dev/null || break
    sleep 0.01
done
[ "$(grep -c ' checkpoint ' "$work/saved.out")" -gt 1 ] || complain "SIGUSR1 saved nothing"
wait $pid || complain "after SIGUSR1: exit $?"
same saved 59 alone

# The second signal does not wait, and harms nothing.
begin twice --ranks 3
kill -STOP $pid # so that nothing is finished in between
kill -TERM $pid
kill -CONT $pid
sleep 0.01
kill -0 $pid 2>/dev/null && kill -INT $pid
wait "$pid"
goes_on twice --ranks 2

[ "$failed" = 0 ] && echo "2, 3 and 4 ranks train as one"
exit "$failed"
