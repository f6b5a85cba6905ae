#!/bin/sh
# import.sh ACCRUE DATA WORK - the real command on tiny GGUF files: the folder, the table, and that a
# failure leaves nothing.
. "$(dirname "$0")/common.sh"

rm -rf "$work"
mkdir -p "$work"
gguf=$example

# expect CODE NAME ARGUMENT...: output in $work/NAME.out and .err
expect() {
    wanted=$1
    name=$2
    shift 2
    "$accrue" import "$@" >"$work/$name.out" 2>"$work/$name.err"
    code=$?
    [ "$code" = "$wanted" ] || complain "$name: exit $code, $wanted expected: $(cat "$work/$name.err")"
    lines=$(wc -l <"$work/$name.err")
    [ "$lines" -le 1 ] || complain "$name: $lines lines on stderr, at most one expected"
}

# says NAME PATTERN: on either stream
says() {
    cat "$work/$1.out" "$work/$1.err" | grep -q -e "$2" ||
        complain "$1 does not say '$2': $(cat "$work/$1.out" "$work/$1.err")"
}

none() {
    [ ! -e "$work/$1" ] || complain "$1 is there"
    for left in "$work"/.*.tmp-*; do
        [ ! -e "$left" ] || complain "$left was left"
    done
}

expect 0 first "$gguf/llama.gguf" --out "$work/llama"
says first '^Q8_0  *2  *9,472 '
says first '^all  *12  *'
says first '^model  *llama, 1 layer, vocabulary 264, bfloat16$'
says first '^tokenizer  *tokenizer.json, chat_template.jinja$'
says first '^folder  *.*/llama, .* in [0-9.]* s$'
for file in config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json \
    chat_template.jinja import.json; do
    [ -s "$work/llama/$file" ] || complain "$file is not there"
done
[ "$(ls "$work/llama" | wc -l)" = 7 ] || complain "other files: $(ls "$work/llama")"
grep -q '"rope_type": "llama3"' "$work/llama/config.json" || complain "no llama3 scaling"

# The folder is what accrue inspect takes for a verifier.
"$accrue" inspect "$work/llama" >"$work/inspect.out" 2>&1 || complain "inspect: $(cat "$work/inspect.out")"

expect 0 again "$gguf/llama.gguf" --out "$work/llama"
says again 'an import of this file already; nothing was written'
expect 0 json "$gguf/qwen3.gguf" --out "$work/qwen3" --dtype float32 --json
says json '"dtype": "float32"'
says json '"architecture": "qwen3"'
says json '"tokenizer_why": null'
expect 2 other "$gguf/qwen3.gguf" --out "$work/llama"
says other 'is the import of another file'
expect 2 dtype "$gguf/llama.gguf" --out "$work/llama" --dtype float16
says dtype 'is an import as auto, float16 expected'

# What is wrong from the start.
expect 2 nothing --out "$work/x"
says nothing 'import: a GGUF file expected; see accrue import --help'
expect 2 nowhere "$gguf/llama.gguf"
says nowhere '--out: a folder expected'
expect 2 two "$gguf/llama.gguf" "$gguf/qwen3.gguf" --out "$work/x"
says two "unexpected argument '.*qwen3.gguf'"
expect 2 unknown "$gguf/llama.gguf" --out "$work/x" --dtype int8
says unknown "'int8'"
expect 2 flag "$gguf/llama.gguf" --out "$work/x" --lr 1
says flag 'unknown flag --lr'
expect 2 absent "$work/absent.gguf" --out "$work/x"
says absent 'absent.gguf: cannot open'
expect 2 arch "$gguf/types.gguf" --out "$work/x"
says arch 'general.architecture is test; supported: llama, qwen2, qwen3'
head -c 20000 "$gguf/llama.gguf" >"$work/cut.gguf"
expect 2 cut "$work/cut.gguf" --out "$work/x"
says cut 'cut.gguf: tensor .* are not within'
none x
expect 0 help --help
says help 'Usage: accrue import \[FLAG...\] MODEL.gguf'
says help '--dtype={auto,bfloat16,float16,float32}'

# A limit within model.safetensors; the shells count in 512 or 1024 bytes.
(
    ulimit -f 40
    expect 1 limited "$gguf/llama.gguf" --out "$work/x"
    says limited 'model.safetensors: cannot write: [0-9]* of [0-9]* bytes written: File too large'
    none x
    exit "$failed"
) || failed=1
expect 2 readonly "$gguf/llama.gguf" --out /proc/x
says readonly '/proc'

exit "$failed"
