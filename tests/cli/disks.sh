#!/bin/sh
# disks.sh ACCRUE EXAMPLE WORK - the real command on disks that are full, read-only, or gone.
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

flags="--verifier-name-or-path $example/verifier --data-path $example/data --total-seq-len 128
    --gradient-accumulation-steps 4 --hidden-states-dtype float32 --lr 0.01 --ttt-steps 2 --threads 1"

# expect CODE NAME ARGUMENT...: output in $work/NAME.out and .err
expect() {
    wanted=$1
    name=$2
    shift 2
    # shellcheck disable=SC2086
    "$accrue" train $flags "$@" >"$work/$name.out" 2>"$work/$name.err"
    code=$?
    [ "$code" = "$wanted" ] || complain "$name: exit $code, $wanted expected: $(cat "$work/$name.err")"
}

says() {
    grep -q "$2" "$work/$1.err" || complain "$1 does not say '$2': $(cat "$work/$1.err")"
}

# same DIR: its last checkpoint is that of the run with a large disk
same() {
    for file in config.json model.safetensors state.tensors training_state.json; do
        cmp "$work/alone/3/$file" "$1/3/$file" || complain "$1 ends otherwise"
    done
}

expect 0 alone --epochs 4 --save-path "$work/alone"

# A limit that lies within state.tensors (120 kB); the shells count in 512 or 1024 bytes.
(
    ulimit -f 110
    expect 1 limited --epochs 4 --save-path "$work/limited"
    says limited 'state.tensors: cannot write: [0-9]* of 120416 bytes written: File too large'
    exit "$failed"
) || failed=1
[ "$(ls -A "$work/limited")" = metrics.jsonl ] || [ -z "$(ls "$work/limited" | grep -v '[jy][sa][om]')" ] ||
    complain "a failed save left something: $(ls -A "$work/limited")"
expect 0 unlimited --epochs 4 --save-path "$work/limited"
same "$work/limited"

if [ "${4:-}" = inside ]; then
    disk=$work/disk
    mkdir "$disk"

    # Room for one checkpoint, not for the next beside it.
    mount -t tmpfs -o size=580k none "$disk"
    expect 1 full --epochs 4 --save-path "$disk/run"
    says full "$disk/run: no room for a checkpoint: [0-9]* bytes needed, [0-9]* free"
    "$accrue" inspect "$disk/run/0" >/dev/null || complain "the older checkpoint is not whole"
    [ -z "$(find "$disk" -name '*.tmp-*')" ] || complain "temporary files stay"
    expect 1 full-on --epochs 4 --save-path "$disk/run" --on-save-error continue
    says full-on 'not saved, training goes on: .*no room for a checkpoint'
    says full-on '^accrue: the last checkpoint was not saved: '
    mount -o remount,size=4m "$disk"
    expect 0 roomy --epochs 4 --save-path "$disk/run"
    says roomy 'goes on from '
    same "$disk/run"
    umount "$disk"

    # Room enough, but no more files: the save fails when it is half done.
    mount -t tmpfs -o size=8m,nr_inodes=13 none "$disk"
    expect 1 files --epochs 4 --save-path "$disk/run"
    says files 'No space left on device'
    "$accrue" inspect "$disk/run/0" >/dev/null || complain "the older checkpoint is not whole"
    [ -z "$(find "$disk" -name '*.tmp-*')" ] || complain "temporary files stay"
    mount -o remount,nr_inodes=1000 "$disk"
    expect 0 more-files --epochs 4 --save-path "$disk/run"
    same "$disk/run"
    umount "$disk"

    # The logs' disk is full, that of the checkpoints is not.
    mount -t tmpfs -o size=8k none "$disk"
    expect 1 logs-full --epochs 4 --save-path "$work/logs-full" --log-dir "$disk" --logger csv
    says logs-full "^accrue: $disk/.*/metrics.csv: No space left on device; no records from step [0-9]* on$"
    says logs-full "stopped by a log that cannot be written at optimizer step [0-9]*; saved as $work/logs-full/[0-9]*;"
    expect 0 logs-none --epochs 4 --save-path "$work/logs-full"
    says logs-none 'goes on from '
    same "$work/logs-full"
    expect 1 logs-on --epochs 4 --save-path "$work/logs-on" --log-dir "$disk" --logger csv --on-save-error continue
    says logs-on 'metrics.csv: No space left on device; no records from step [0-9]* on; training goes on'
    same "$work/logs-on"
    umount "$disk"

    # Read-only from the beginning: nothing is trained.
    mount -t tmpfs -o size=8m none "$disk"
    mkdir "$disk/run"
    mount -o remount,ro "$disk"
    expect 2 read-only --epochs 4 --save-path "$disk/run"
    says read-only "save-path: $disk/run is no folder that can be written to"
    [ "$(wc -l <"$work/read-only.err")" = 1 ] || complain "not one line: $(cat "$work/read-only.err")"
    umount "$disk"
fi

# What has the name of a checkpoint and is none is moved, whatever is in it.
mkdir -p "$work/taken/1/full-of/things"
expect 0 aside --epochs 4 --save-path "$work/taken"
says aside 'was no whole checkpoint'
[ -d "$work/taken/1.aside-1/full-of/things" ] || complain "what had the name is gone"
same "$work/taken"

# A FIFO in a log's place is refused; opening it would wait.
mkdir "$work/fifo"
mkfifo "$work/fifo/metrics.jsonl"
expect 1 fifo-log --epochs 1 --save-path "$work/fifo"
says fifo-log 'fifo/metrics.jsonl: '

# The folder is removed under the run: the next save makes it again.
# shellcheck disable=SC2086
"$accrue" train $flags --epochs 60 --save-path "$work/gone" --on-save-error continue \
    >"$work/gone.out" 2>"$work/gone.err" &
pid=$!
until [ -d "$work/gone/1" ]; do sleep 0.01; done
rm -rf "$work/gone" 2>/dev/null || rm -rf "$work/gone"
wait $pid || complain "without its folder: $(tail -1 "$work/gone.err")"
"$accrue" inspect "$work/gone/59" >/dev/null || complain "no checkpoint in the folder made again"

[ "$failed" = 0 ] && echo "full and read-only disks lose nothing"
exit "$failed"
