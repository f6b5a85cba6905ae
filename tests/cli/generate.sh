#!/bin/sh
# generate.sh ACCRUE EXAMPLE WORK MAKE_VERIFIER DATA - the real accrue generate: killed or stopped at any
# moment it goes on to the same bytes; its answers can be prepared, extracted and trained on.
. "$(dirname "$0")/common.sh"
make_verifier=$4
tests=$5

rm -rf "$work"
mkdir -p "$work/verifier"
"$make_verifier" "$work/verifier" 397 7 "$tests" plain || exit 1
i=0
while [ $i -lt 40 ]; do
    echo "{\"id\": $i, \"messages\": [{\"role\": \"user\", \"content\": \"Question $i?\"}, {\"role\": \"assistant\", \"content\": \"old\"}, {\"role\": \"user\", \"content\": \"And $i more?\"}]}"
    i=$((i + 1))
done >"$work/prompts.jsonl"
cp "$work/prompts.jsonl" "$work/before.jsonl"

# begin NAME FLAG...: in the background, where sh ignores SIGINT
begin() {
    name=$1
    shift
    env --default-signal=INT "$accrue" generate "$work/prompts.jsonl" --verifier-name-or-path "$work/verifier" \
        --output "$work/$name.jsonl" --max-new-tokens 40 --temperature 0.8 --dtype float32 --threads 1 "$@" \
        >"$work/$name.out" 2>"$work/$name.err" &
    pid=$!
}

# ends CODE
ends() {
    wait $pid
    code=$?
    [ "$code" = "$1" ] || complain "$name: exit $code, $1 expected: $(cat "$work/$name.err")"
}

lines() {
    wc -l <"$work/$1.jsonl" 2>/dev/null || echo 0
}

begin whole
ends 0
[ "$(lines whole)" = 40 ] || complain "$(lines whole) lines of 40"
cmp "$work/prompts.jsonl" "$work/before.jsonl" || complain "the prompts were changed"

# Killed when there are some lines more, until all are there; each time with half a line behind.
kills=0
: >"$work/killed.jsonl"
while [ "$(lines killed)" -lt 40 ] && [ $kills -lt 100 ]; do
    before=$(lines killed)
    begin killed --batch-size 2
    until [ "$(lines killed)" -gt "$before" ]; do :; done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    [ "$(lines killed)" -lt 40 ] && printf '{"conversations": [{"role"' >>"$work/killed.jsonl"
    kills=$((kills + 1))
done
begin killed --batch-size 5
ends 0
cmp "$work/whole.jsonl" "$work/killed.jsonl" || complain "killed $kills times it ends otherwise"

# Stopped by Ctrl-C.
: >"$work/stopped.jsonl"
begin stopped --batch-size 1
until [ "$(lines stopped)" -gt 0 ]; do :; done
kill -INT $pid
ends 130
grep -q '^accrue: stopped with [0-9]* of 40 rows done by SIGINT; the same command goes on$' "$work/stopped.err" ||
    complain "not told: $(cat "$work/stopped.err")"
begin stopped
ends 0
cmp "$work/whole.jsonl" "$work/stopped.jsonl" || complain "stopped, it ends otherwise"

# Not with other settings.
begin whole --seed 1
ends 2
grep -q '^accrue: .*whole.jsonl: was begun with "seed" 42, now it is 1 ' "$work/whole.err" ||
    complain "not told: $(cat "$work/whole.err")"

# The whole way to a draft.
"$accrue" prepare "$work/whole.jsonl" --verifier-name-or-path "$work/verifier" --output "$work/data" \
    --draft-vocab-size 64 >"$work/prepare.out" 2>&1 || complain "cannot prepare: $(cat "$work/prepare.out")"
"$accrue" extract --verifier-name-or-path "$work/verifier" --data-path "$work/data" --hidden-states-dtype float32 \
    >"$work/extract.out" 2>&1 || complain "cannot extract: $(cat "$work/extract.out")"
"$accrue" check "$work/data" --verifier-name-or-path "$work/verifier" --draft-vocab-size 64 >"$work/check.out" 2>&1 ||
    complain "faults: $(cat "$work/check.out")"
"$accrue" train --verifier-name-or-path "$work/verifier" --data-path "$work/data" --draft-vocab-size 64 --epochs 1 \
    --total-seq-len 256 --save-path "$work/draft" >"$work/train.out" 2>&1 ||
    complain "cannot train: $(tail -1 "$work/train.out")"

[ "$failed" = 0 ] && echo "answers are the same however often it is stopped ($kills kills)"
exit "$failed"
