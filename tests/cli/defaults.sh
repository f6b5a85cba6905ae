#!/bin/sh
# defaults.sh ACCRUE - every flag of `speculators train` 0.9 that accrue uses is there, with the
# peer's default; the differences are the documented ones.
set -u
manual=$("$1" man) || exit 1
failed=0
n=0

# "--flag" and its default, as the man page words them; "-" for a flag whose default follows the
# model or the data.
while read -r name value; do
    n=$((n + 1))
    roff=$(echo "--$name" | sed 's/-/\\-/g')
    text=$(echo "$manual" | grep -F -A1 -e ".B $roff" | grep -v '^\.B' | head -1)
    [ -n "$text" ] || { echo "--$name: missing"; failed=1; continue; }
    [ "$value" = - ] && continue
    wanted="(default: $(echo "$value" | sed 's/-/\\-/g'))"
    case $text in
    *"$wanted"*) ;;
    *) echo "--$name: default $value expected, found: $text" && failed=1 ;;
    esac
done <<'END'
dry-run no
seed 42
config -
dump-config no
verifier-name-or-path -
from-pretrained -
draft-config -
num-layers 1
draft-arch llama
draft-hidden-act silu
target-layer-ids -
draft-vocab-size -
d2t-path -
t2d-path -
norm-before-residual yes
embed-requires-grad no
norm-before-fc yes
fc-norm no
norm-output yes
sliding-window 2048
full-attention-indices none
data-path ./output
hidden-states-path -
total-seq-len 8192
train-data-ratio 0.9
hidden-states-dtype bfloat16
on-missing raise
loss-fn kl_div
ttt-steps 3
ttt-step-loss-decay 1
across-documents no
gradient-accumulation-steps 1
loss-normalization microbatch
accumulation-tail drop
optimizer muon
lr 0.001
weight-decay 0.01
muon-lr --lr
muon-momentum 0.95
muon-weight-decay 0.1
muon-ns-steps 5
muon-ns-dtype --hidden-states-dtype
muon-adjust-lr-fn match_rms_adamw
scheduler-type linear
scheduler-warmup-steps -
scheduler-warmup-ratio none
scheduler-total-steps -
scheduler-num-cosine-cycles 0.5
epochs 20
checkpoint-freq 1
save-best no
log-freq 1
save-path ./output/checkpoints
max-steps -
on-nonfinite stop
threads 0
batch-plan -
dump-batch-plan -
logger none
log-dir ./logs
run-name {time}
END
[ "$failed" = 0 ] && echo "$n flags with the defaults that they should have"
exit "$failed"
