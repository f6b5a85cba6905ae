#!/bin/sh
# prepare.sh ACCRUE DATA WORK - the real accrue prepare: what it writes, full disks, signals.
#
# Runs itself in a mount namespace of its own, where it may make small file systems.
. "$(dirname "$0")/common.sh"

if [ "${4:-}" != inside ]; then
    rm -rf "$work"
    mkdir -p "$work"
    if unshare -rm true 2>/dev/null; then
        exec unshare -rm sh "$0" "$accrue" "$example" "$work" inside
    fi
    echo "no namespaces here: a limit on the size of files stands for a full disk"
fi

cp -r "$example/chat" "$work/verifier"
printf "%s" "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + \
message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}\
{{ '<|im_start|>assistant\\n' }}{% endif %}" | tr -d '\n' >"$work/verifier/chat_template.jinja"
lines=$example/prepare/conversations.jsonl

# expect CODE NAME ARGUMENT...: output in $work/NAME.out and .err
expect() {
    wanted=$1
    name=$2
    shift 2
    "$accrue" prepare --verifier-name-or-path "$work/verifier" "$@" >"$work/$name.out" \
        2>"$work/$name.err"
    code=$?
    [ "$code" = "$wanted" ] || complain "$name: exit $code, $wanted expected: $(cat "$work/$name.err")"
    [ "$(wc -l <"$work/$name.err")" -le 1 ] || complain "$name: more than a line: $(cat "$work/$name.err")"
}

says() {
    grep -q "$2" "$work/$1" || complain "$1 does not say '$2': $(cat "$work/$1")"
}

# empty DIR: nothing is in it, hidden or not
empty() {
    [ -z "$(ls -A "$1")" ] || complain "left behind: $(ls -A "$1")"
}

expect 0 first "$lines" --output "$work/data" --draft-vocab-size 30
says first.out '^lines  *13$'
says first.out '^rows  *[0-9]* in '
expect 0 again "$lines" --output "$work/data" --draft-vocab-size 30
says again.out 'It was there already'
"$accrue" inspect "$work/data" >"$work/inspect.out" || complain "inspect does not take the data set"
expect 2 other "$lines" --output "$work/data" --seed 1
says other.err 'seed is 0, now 1; --overwrite replaces it'
expect 0 over "$lines" --output "$work/data" --seed 1 --overwrite --json
says over.out '"found": false'
[ ! -e "$work/data/d2t-30.npy" ] || complain "an older file is left in a data set made anew"

# The same bytes for any number of threads.
expect 0 one "$lines" --output "$work/one" --threads 1
expect 0 three "$lines" --output "$work/three" --threads 3
cmp "$work/one/data-00000-of-00001.arrow" "$work/three/data-00000-of-00001.arrow" ||
    complain "rows depend on the number of threads"

mkdir "$work/bad"
printf '{"text": "fine"}\n{"text": \n' >"$work/bad.jsonl"
expect 2 bad "$work/bad.jsonl" --output "$work/bad/data"
says bad.err 'bad.jsonl: line 2: column'
empty "$work/bad"
expect 0 skipped "$work/bad.jsonl" --output "$work/bad/data" --on-bad skip
says bad/data/skipped_lines.jsonl '"line":2'

# A limit that no data set is within.
mkdir "$work/limited"
(
    ulimit -f 4
    expect 1 limited "$lines" --output "$work/limited/data"
    says limited.err 'bytes written: File too large'
    exit "$failed"
) || failed=1
empty "$work/limited"

if [ "${4:-}" = inside ]; then
    disk=$work/disk
    mkdir "$disk"
    mount -t tmpfs -o size=12k none "$disk"
    expect 1 full "$lines" --output "$disk/data"
    says full.err 'bytes written: No space left on device'
    empty "$disk"
    mount -o remount,ro "$disk"
    expect 2 read-only "$lines" --output "$disk/data"
    says read-only.err 'Read-only file system'
    umount "$disk"
fi

# Stopped in the middle: nothing is left.
mkdir "$work/stopped"
awk 'BEGIN { for (i = 0; i < 400000; i++) print "{\"text\": \"What is the answer? It is " i ".\"}" }' \
    >"$work/many.jsonl"
"$accrue" prepare --verifier-name-or-path "$work/verifier" "$work/many.jsonl" \
    --output "$work/stopped/data" >"$work/stopped.out" 2>"$work/stopped.err" &
pid=$!
until [ -n "$(ls -A "$work/stopped")" ]; do sleep 0.01; done
kill -TERM $pid
wait $pid
code=$?
[ "$code" = 143 ] || complain "stopped: exit $code, 143 expected: $(cat "$work/stopped.err")"
says stopped.err 'canceled'
empty "$work/stopped"

[ "$failed" = 0 ] && echo "data sets are made whole or not at all"
exit "$failed"
