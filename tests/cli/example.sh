#!/bin/sh
# example.sh ACCRUE EXAMPLE WORK - the real command on the example, from data set to checkpoint.
. "$(dirname "$0")/common.sh"

rm -rf "$work"
mkdir -p "$work"
flags="--verifier-name-or-path $example/verifier --data-path $example/data --total-seq-len 256
    --gradient-accumulation-steps 2 --hidden-states-dtype float32 --lr 0.01 --ttt-steps 2 --threads 1"

# shellcheck disable=SC2086
expect 0 train $flags --dry-run --save-path "$work/init"
grep -q '^trainable parameters  *14,560$' "$work/out" || complain "dry run: $(cat "$work/out")"
[ -s "$work/init/model.safetensors" ] || complain "the dry run wrote no checkpoint"

# shellcheck disable=SC2086
expect 0 train $flags --epochs 2 --save-path "$work/run" --dump-batch-plan "$work/plan.json"
for file in 0/config.json 0/model.safetensors 1/model.safetensors 1/training_state.json \
    metrics.jsonl run.yaml training.svg; do
    [ -s "$work/run/$file" ] || complain "not written: $file"
done
# vLLM loads every *.safetensors of a folder.
[ "$(echo "$work"/run/1/*.safetensors)" = "$work/run/1/model.safetensors" ] ||
    complain "more than the model: $(echo "$work"/run/1/*.safetensors)"
[ "$(grep -c '"train"' "$work/run/metrics.jsonl")" = 12 ] || complain "metrics.jsonl: not 12 steps"
[ "$(grep -c '"val"' "$work/run/metrics.jsonl")" = 2 ] || complain "metrics.jsonl: not 2 validations"
grep -q '"gradient_accumulation_steps": 2' "$work/run/1/training_state.json" ||
    complain "training_state.json does not hold N"

# What the run did, replayed from its own batch plan, gives the same losses.
# shellcheck disable=SC2086
expect 0 train $flags --epochs 2 --save-path "$work/again" --batch-plan "$work/plan.json"
for run in run again; do
    sed 's/"profile": {[^}]*}, //' "$work/$run/metrics.jsonl" >"$work/$run.metrics"
done
cmp -s "$work/run.metrics" "$work/again.metrics" || complain "a replayed run has other losses"

# A finished run trains nothing more and leaves its files as they are.
cp "$work/run/metrics.jsonl" "$work/before"
# shellcheck disable=SC2086
expect 0 train $flags --epochs 2 --save-path "$work/run"
grep -q 'this training is finished' "$work/err" || complain "not told: $(cat "$work/err")"
cmp -s "$work/before" "$work/run/metrics.jsonl" || complain "a finished run touched metrics.jsonl"

# One stopped in mid-epoch and continued ends as one never stopped, metrics and plot included.
whole="--epochs 2 --scheduler-total-steps 9"
# shellcheck disable=SC2086
expect 0 train $flags $whole --save-path "$work/straight"
# shellcheck disable=SC2086
expect 0 train $flags $whole --max-steps 2 --save-path "$work/parts"
printf '{"train": {"loss": 1' >>"$work/parts/metrics.jsonl" # as a kill in mid-write leaves it
# shellcheck disable=SC2086
expect 0 train $flags $whole --save-path "$work/parts"
grep -q 'goes on from .*/parts/0' "$work/err" || complain "not resumed: $(cat "$work/err")"
for run in straight parts; do
    sed 's/"profile": {[^}]*}, //' "$work/$run/metrics.jsonl" >"$work/$run.metrics"
done
cmp "$work/straight.metrics" "$work/parts.metrics" || complain "a continued run has other metrics"
for file in model.safetensors state.tensors training_state.json val_metrics.json; do
    cmp "$work/straight/1/$file" "$work/parts/1/$file" || complain "a continued run ends otherwise"
done
cmp "$work/straight/training.svg" "$work/parts/training.svg" || complain "another plot"

# Killed again and again: the metrics too end as those of one that was left alone.
often="--epochs 4 --checkpoint-freq 0.01 --logger tensorboard,csv,jsonl --log-dir $work/logs"
# shellcheck disable=SC2086
expect 0 train $flags $often --save-path "$work/alone" --run-name alone
for seconds in 0.02 0.05 0.08 0.03 0.06 0.09; do
    # shellcheck disable=SC2086
    "$accrue" train $flags $often --save-path "$work/killed" --run-name killed >/dev/null 2>&1 &
    sleep "$seconds"
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
done
# shellcheck disable=SC2086
expect 0 train $flags $often --save-path "$work/killed" --run-name killed
for run in alone killed; do
    cmp "$work/$run/metrics.jsonl" "$work/logs/$run/metrics.jsonl" || complain "another log"
    cut -d, -f1-10 "$work/logs/$run/metrics.csv" >"$work/$run.csv"
    sed 's/"profile": {[^}]*}, //' "$work/$run/metrics.jsonl" >"$work/$run.metrics"
done
cmp "$work/alone.metrics" "$work/killed.metrics" || complain "a killed run has other metrics"
cmp "$work/alone.csv" "$work/killed.csv" || complain "a killed run has another metrics.csv"
cmp "$work/logs/alone/validation.csv" "$work/logs/killed/validation.csv" || complain "validation.csv"
expect 0 plot "$work/alone" "$work/logs/killed" --out "$work/both.png"
[ -s "$work/both.png" ] || complain "no picture"
diff -r --no-dereference -x 'metrics.jsonl*' -x run.yaml "$work/alone" "$work/killed" ||
    complain "a killed run ends otherwise"

# Another N is refused with one line, and nothing is touched.
# shellcheck disable=SC2086
expect 2 train $flags --epochs 2 --save-path "$work/run" --gradient-accumulation-steps 3
grep -q 'Cannot resume: .* is 2, .* is 3' "$work/err" || complain "$(cat "$work/err")"
[ "$(wc -l <"$work/err")" = 1 ] || complain "not one line: $(cat "$work/err")"
cmp -s "$work/before" "$work/run/metrics.jsonl" || complain "a refused run touched metrics.jsonl"
# shellcheck disable=SC2086
expect 0 train $flags --epochs 1 --save-path "$work/run" --no-resume-from-checkpoint

# A window longer than the epoch, a missing folder: one line, exit 2, nothing written.
# shellcheck disable=SC2086
expect 2 train $flags --gradient-accumulation-steps 1000 --save-path "$work/none"
grep -q 'exceeds the number of batches per epoch' "$work/err" || complain "$(cat "$work/err")"
# shellcheck disable=SC2086
expect 2 train $flags --data-path "$work/nowhere" --save-path "$work/none"
[ "$(wc -l <"$work/err")" = 1 ] || complain "not one line: $(cat "$work/err")"
[ ! -e "$work/none" ] || complain "a refused run wrote its save folder"

for normalization in microbatch token; do
    # shellcheck disable=SC2086
    expect 0 verify $flags --hidden-states-dtype float64 --loss-normalization $normalization
    grep -q 'layers.0.* pass$' "$work/out" || complain "verify: $(cat "$work/out")"
done

# The sums have another order, so equal updates would mean that none was made.
grep -q 'layers.0 .*[1-9]\.[0-9]*e-[0-9]* *[1-9]\.[0-9]*e-[0-9]*  pass$' "$work/out" ||
    complain "verify compared updates of zero: $(cat "$work/out")"

# A set with faults: each in the table, a run that leaves the rows out and lists them.
expect 0 check "$example/data" --verifier-name-or-path "$example/verifier"
cp -r "$example/data" "$work/bad"
chmod -R u+w "$work/bad"
: >"$work/bad/hidden_states/hs_3.safetensors"
: >"$work/bad/hidden_states/hs_9.safetensors.lock"
expect 2 check "$work/bad"
grep -q 'hs_3.safetensors: 0 bytes are too few' "$work/out" || complain "check: $(cat "$work/out")"
grep -q '^stale_lock (notice) *1 ' "$work/out" || complain "check: $(cat "$work/out")"
# shellcheck disable=SC2086
expect 2 train $flags --data-path "$work/bad" --save-path "$work/left"
grep -q 'row 3: .*too few' "$work/err" || complain "$(cat "$work/err")"
# shellcheck disable=SC2086
expect 0 train $flags --data-path "$work/bad" --save-path "$work/left" --on-bad skip --epochs 1
grep -q '^{"row":3,"kind":"format",' "$work/left/skipped_samples.jsonl" || complain "no list of skipped samples"
grep -q '"error_records": 1}' "$work/left/metrics.jsonl" || complain "no count of skipped samples"

for folder in "$example/data" "$example/verifier" "$work/run/0" "$work/init"; do
    expect 0 inspect "$folder"
    expect 0 inspect --json "$folder"
done
[ "$failed" = 0 ] && echo "the example trains, replays, verifies and is inspected"
exit "$failed"
