#!/bin/sh
# export.sh ACCRUE DATA WORK - accrue export on the drafts of tests/data/export: the table, JSON, and what is refused.
. "$(dirname "$0")/common.sh"

# says FILE TEXT: whether what was printed has the text
says() {
    grep -qF -- "$2" "$work/$1" || complain "'$2' is not in: $(cat "$work/$1")"
}

rm -rf "$work"
mkdir -p "$work"
draft=$example/tiny-draft-v0.2
verifier="--verifier-name-or-path $example/verifier"

for type in f32 f16 bf16 q8_0; do
    # shellcheck disable=SC2086
    expect 0 export "$draft" $verifier --out "$work/draft.gguf" --dtype $type
    sum=$(sha256sum <"$work/draft.gguf" | cut -c1-64)
    grep -q "\"dtype\":\"$type\",\"bytes\":[0-9]*,\"sha256\":\"$sum\"" "$example/goldens.json" ||
        complain "$type: other bytes than those of llama.cpp's converter"
done
says out 'blk.0.attn_q.weight       layers.0.self_attn.q_proj.weight          Q8_0  32 x 64  2,176'
says out 'norm_output: llama.cpp feeds the state before the last norm'
says out 'sliding_window: '
says out 'blk.0.ffn_down.weight: its rows of 48'

# Without a type, bf16; what nothing is lost of says so but for the made-up tokenizer.
# shellcheck disable=SC2086
expect 0 export "$example/whole" $verifier --out "$work/whole.gguf" --json
says out '"what": "tokenizer.ggml.pre"'
[ "$(grep -c '"what"' "$work/out")" = 1 ] || complain "more is lost than one thing: $(cat "$work/out")"

# shellcheck disable=SC2086
expect 2 export "$draft" $verifier
says err 'accrue: export: --out FILE expected'
expect 2 export "$draft" --out "$work/x.gguf"
says err 'accrue: export: --verifier-name-or-path DIR expected'
# shellcheck disable=SC2086
expect 2 export $verifier --out "$work/x.gguf"
says err "accrue: export: a checkpoint's folder expected"
# shellcheck disable=SC2086
expect 2 export "$draft" $verifier --out "$work/x.gguf" --format onnx
says err '--format'
# shellcheck disable=SC2086
expect 2 export "$draft" $verifier --out "$work/x.gguf" --dtype q4_0
says err '--dtype'
# shellcheck disable=SC2086
expect 2 export "$example/verifier" $verifier --out "$work/x.gguf"
says err 'transformer_layer_config'
echo text >"$work/notes"
# shellcheck disable=SC2086
expect 2 export "$draft" $verifier --out "$work/notes"
says err 'notes: it is there and no GGUF file, so it stays'
# shellcheck disable=SC2086
expect 2 export "$draft" $verifier --out "$work/x.gguf" --lr 1
says err 'unknown flag --lr'
[ ! -e "$work/x.gguf" ] || complain "a refused export left a file"
expect 0 export --help
says out '--dtype={f32,f16,bf16,q8_0}'
exit "$failed"
