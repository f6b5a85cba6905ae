#!/bin/sh
# signals.sh ACCRUE EXAMPLE WORK - the real command under signals: what is saved, how it exits, and
# that the same command ends as one that was left alone.
. "$(dirname "$0")/common.sh"

rm -rf "$work"
mkdir -p "$work"
flags="--verifier-name-or-path $example/verifier --data-path $example/data --total-seq-len 128
    --gradient-accumulation-steps 4 --hidden-states-dtype float32 --lr 0.01 --ttt-steps 2 --threads 1
    --epochs 40"

# begin NAME FLAG...: in the background, where sh ignores SIGINT, until it has made some steps
begin() {
    name=$1
    shift
    # shellcheck disable=SC2086
    env --default-signal=INT "$accrue" train $flags --save-path "$work/$name" "$@" >"$work/$name.out" 2>"$work/$name.err" &
    pid=$!
    until [ "$(cat "$work/$name/metrics.jsonl" 2>/dev/null | wc -l)" -gt 20 ]; do
        sleep 0.01
    done
}

# ends CODE: what the background run exits with
ends() {
    wait "$pid"
    code=$?
    [ "$code" = "$1" ] || complain "exit $code, $1 expected: $(cat "$work/$name.err")"
}

# same NAME: continued, it ends as the run that nobody stopped
same() {
    # shellcheck disable=SC2086
    "$accrue" train $flags --save-path "$work/$1" >"$work/$1.out" 2>"$work/$1.err" ||
        complain "cannot go on: $(cat "$work/$1.err")"
    grep -q 'goes on from ' "$work/$1.err" || complain "not resumed: $(cat "$work/$1.err")"
    diff -r --no-dereference -x metrics.jsonl -x run.yaml "$work/alone" "$work/$1" ||
        complain "$1 ends otherwise"
    sed 's/"profile": {[^}]*}, //' "$work/$1/metrics.jsonl" | cmp - "$work/alone.metrics" ||
        complain "$1 has other metrics"
}

# shellcheck disable=SC2086
"$accrue" train $flags --save-path "$work/alone" >"$work/alone.out" 2>&1 ||
    complain "$(cat "$work/alone.out")"
sed 's/"profile": {[^}]*}, //' "$work/alone/metrics.jsonl" >"$work/alone.metrics"

for signal in TERM INT HUP; do
    begin $signal
    kill -$signal $pid
    [ $signal = INT ] && ends 130 || ends 0
    grep -q "^accrue: notice: stopped by SIG$signal at optimizer step [0-9]*; saved as $work/$signal/[0-9]*; the same command" \
        "$work/$signal.err" || complain "not told: $(cat "$work/$signal.err")"
    same $signal
done

# No time for the window: it is given up, and made again.
begin given-up --grace 0
kill -TERM $pid
ends 0
same given-up

# A save in between changes nothing.
begin saved
while kill -USR1 $pid 2>/dev/null; do sleep 0.02; done
ends 0
[ "$(grep -c ' checkpoint ' "$work/saved.out")" -gt 40 ] || complain "SIGUSR1 saved nothing"
diff -r --no-dereference -x metrics.jsonl -x run.yaml "$work/alone" "$work/saved" ||
    complain "a run with extra saves ends otherwise"

# The second signal does not wait, and harms nothing.
begin twice
kill -STOP $pid # so that nothing is finished in between
kill -TERM $pid
kill -CONT $pid
sleep 0.01
kill -0 $pid 2>/dev/null && kill -INT $pid
wait "$pid"
same twice

# Before training begins there is nothing to wait for, were it a lock on the data.
cp -r "$example/data" "$work/data"
(
    flock 9
    exec sleep 60
) 9>"$work/data/hidden_states/hs_0.safetensors.lock" &
holder=$!
sleep 0.2
"$accrue" train --verifier-name-or-path "$example/verifier" --data-path "$work/data" --save-path "$work/early" \
    --lock-timeout 50 >"$work/early.out" 2>"$work/early.err" &
pid=$!
sleep 0.3
kill -TERM $pid
wait $pid || complain "before training: exit $?"
kill $holder
grep -q 'stopped before training began' "$work/early.err" || complain "early: $(cat "$work/early.err")"

# timeout sends its signal to the process and to its group: one stop, not two.
# shellcheck disable=SC2086
timeout -s TERM 0.5 "$accrue" train $flags --epochs 4000 --save-path "$work/timeout" >"$work/timeout.out" \
    2>"$work/timeout.err"
grep -q 'stopped by SIGTERM' "$work/timeout.err" || complain "under timeout: $(cat "$work/timeout.err")"

# What the parent ignores stays ignored.
(
    trap '' HUP
    # shellcheck disable=SC2086
    exec "$accrue" train $flags --save-path "$work/nohup"
) >"$work/nohup.out" 2>&1 &
pid=$!
until [ -s "$work/nohup/metrics.jsonl" ]; do sleep 0.01; done
kill -HUP $pid
wait "$pid" || complain "SIGHUP stopped a run under nohup: $(cat "$work/nohup.out")"

# What a file that is cut while it is mapped does to the process.
begin cut
kill -BUS $pid
ends 1
grep -qxF 'accrue: a file was cut while it was read, or its disk failed (SIGBUS)' "$work/cut.err" ||
    complain "SIGBUS is not told: $(cat "$work/cut.err")"
same cut

# Who reads the progress leaves: the training ends as any, and says what was not shown.
# shellcheck disable=SC2086
{
    "$accrue" train $flags --save-path "$work/piped" 2>"$work/piped.err"
    echo $? >"$work/piped.code"
} | head -1 >"$work/piped.out"
[ "$(cat "$work/piped.code")" = 1 ] || complain "into head: exit $(cat "$work/piped.code")"
[ "$(grep -v "^accrue: notice: epoch" "$work/piped.err")" = "accrue: standard output: Broken pipe" ] ||
    complain "into head: $(cat "$work/piped.err")"
diff -r --no-dereference -x metrics.jsonl -x run.yaml "$work/alone" "$work/piped" ||
    complain "a run into head ends otherwise"

# What goes on after a run that was to begin anew.
begin anew --no-resume-from-checkpoint
kill -TERM $pid
ends 0
grep -q '; the same command without --no-resume-from-checkpoint goes on from there$' "$work/anew.err" ||
    complain "not told how to go on: $(cat "$work/anew.err")"
same anew

[ "$failed" = 0 ] && echo "signals save, and the same command goes on"
exit "$failed"
