#!/bin/sh
# extract.sh ACCRUE EXAMPLE WORK MAKE_VERIFIER DATA - the real accrue extract: killed at any moment it
# goes on to the same files, on disks that are full it says so, and what it makes can be trained on.
. "$(dirname "$0")/common.sh"
make_verifier=$4

if [ "${6:-}" != inside ]; then
    rm -rf "$work"
    mkdir -p "$work/verifier"
    "$make_verifier" "$work/verifier" 96 7 || exit 1
    if unshare -rm true 2>/dev/null; then
        exec unshare -rm sh "$0" "$accrue" "$example" "$work" "$make_verifier" "$5" inside
    fi
    echo "no namespaces here: no full disks are made"
fi

# data NAME: a copy of the example's rows, without states
data() {
    mkdir -p "$work/$1"
    cp "$example"/data/*.* "$work/$1"
}

extract() {
    name=$1
    shift
    "$accrue" extract --verifier-name-or-path "$work/verifier" --hidden-states-dtype float32 --threads 1 "$@" \
        >"$work/$name.out" 2>"$work/$name.err"
}

# expect CODE NAME FLAG...
expect() {
    wanted=$1
    shift
    extract "$@"
    code=$?
    [ "$code" = "$wanted" ] || complain "$1: exit $code, $wanted expected: $(cat "$work/$1.err")"
}

data whole
expect 0 whole --data-path "$work/whole"
grep -q '^60 of 60 rows to make, [0-9.]* kB; .* free$' "$work/whole.out" ||
    complain "not told before: $(cat "$work/whole.out")"
expect 0 again --data-path "$work/whole"
grep -q '60, 60 were there already' "$work/again.out" || complain "made again: $(cat "$work/again.out")"

# Killed as soon as another file is there, until nothing is left to do.
data killed
kills=0
while [ "$(find "$work/killed" -name '*.safetensors' 2>/dev/null | wc -l)" -lt 60 ] && [ $kills -lt 100 ]; do
    before=$(find "$work/killed" -name '*.safetensors' 2>/dev/null | wc -l)
    "$accrue" extract --verifier-name-or-path "$work/verifier" --hidden-states-dtype float32 --threads 1 \
        --data-path "$work/killed" >"$work/killed.out" 2>&1 &
    pid=$!
    until [ "$(find "$work/killed" -name '*.safetensors' 2>/dev/null | wc -l)" -gt "$before" ]; do :; done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    kills=$((kills + 1))
done
touch "$work/killed/hidden_states/hs_3.safetensors.tmp"
expect 0 killed --data-path "$work/killed"
diff -r "$work/whole/hidden_states" "$work/killed/hidden_states" || complain "killed $kills times it ends otherwise"

# Trained on with the files, and without them.
flags="--verifier-name-or-path $work/verifier --total-seq-len 128 --hidden-states-dtype float32 --threads 1
    --epochs 2 --draft-vocab-size 48"
data none
# shellcheck disable=SC2086
"$accrue" train $flags --data-path "$work/whole" --save-path "$work/files" >"$work/files.out" 2>&1 ||
    complain "cannot train: $(tail -1 "$work/files.out")"
# shellcheck disable=SC2086
"$accrue" train $flags --data-path "$work/none" --on-missing extract --save-path "$work/made" >"$work/made.out" 2>&1 ||
    complain "cannot train without files: $(tail -1 "$work/made.out")"
cmp "$work/files/1/model.safetensors" "$work/made/1/model.safetensors" || complain "without files it ends otherwise"
cmp "$work/files/1/state.tensors" "$work/made/1/state.tensors" || complain "without files it ends otherwise"
grep -q '60 of 60 rows have no hidden states' "$work/made.out" || complain "not told: $(cat "$work/made.out")"
[ ! -e "$work/none/hidden_states" ] || complain "training wrote hidden states"

if [ "${6:-}" = inside ]; then
    disk=$work/disk
    mkdir "$disk"

    # No room for all: nothing is begun.
    mount -t tmpfs -o size=300k none "$disk"
    expect 2 full --data-path "$work/whole" --hidden-states-path "$disk/states"
    grep -q "^accrue: $disk/states: no room for the hidden states of 60 rows: [0-9]* bytes and [0-9]* to spare needed, [0-9]* free$" \
        "$work/full.err" || complain "not told: $(cat "$work/full.err")"
    [ "$(wc -l <"$work/full.err")" = 1 ] || complain "not one line: $(cat "$work/full.err")"
    [ ! -e "$disk/states" ] || complain "something stays: $(ls -A "$disk/states")"
    mount -o remount,size=8m "$disk"
    expect 0 roomy --data-path "$work/whole" --hidden-states-path "$disk/states"
    diff -r "$work/whole/hidden_states" "$disk/states" || complain "on another disk they are others"
    umount "$disk"

    # Fewer files than rows.
    mount -t tmpfs -o size=8m,nr_inodes=40 none "$disk"
    expect 2 files --data-path "$work/whole" --hidden-states-path "$disk/states"
    grep -q 'no room for 60 files more, the disk can hold' "$work/files.err" || complain "$(cat "$work/files.err")"
    umount "$disk"

    # Read-only.
    mount -t tmpfs -o size=8m,ro none "$disk"
    expect 2 read-only --data-path "$work/whole" --hidden-states-path "$disk/states"
    grep -q "^accrue: $disk/states: cannot create: Read-only file system$" "$work/read-only.err" ||
        complain "$(cat "$work/read-only.err")"
    umount "$disk"
fi

[ "$failed" = 0 ] && echo "hidden states are whole or not there ($kills kills)"
exit "$failed"
