#!/bin/sh
# eval.sh ACCRUE EVAL_FILES WORK - accrue eval on small models, whole: what it prints, writes and
# returns.
set -u
accrue=$1
work=$3
failed=0

complain() {
    echo "$*"
    failed=1
}

rm -rf "$work"
"$2" "$work" || exit 1
cd "$work" || exit 1
echo '["Why is the sky blue?", "Name a fruit.", "And then?"]' >prompts.json
echo '{"messages": [{"role": "user", "content": "Why is the sky blue?"}, {"role": "assistant", "content": "So."}]}' >chat.jsonl

# refuse MESSAGE ARGUMENT...: exit status 2, one line on stderr that has the message, nothing else.
refuse() {
    message=$1
    shift
    "$accrue" eval "$@" >out 2>err
    status=$?
    [ $status = 2 ] || complain "eval $*: exit status $status, 2 expected"
    [ "$(wc -l <err)" = 1 ] || complain "eval $*: $(cat err)"
    grep -qF -e "$message" err || complain "eval $*: '$message' expected, found: $(cat err)"
    [ -s out ] && complain "eval $*: printed $(cat out)"
}

"$accrue" eval draft --prompts prompts.json --max-new-tokens 16 --out plot.svg >out 2>err ||
    complain "eval: exit status $?, $(cat err)"
grep -qF '3 of 3 prompts' out || complain "no progress: $(cat out)"
grep -qF "Every answer is the verifier's own, token for token." out || complain "no verdict: $(cat out)"
grep -q '^acceptance length  [0-9.]* drafted tokens a round, [0-9.]* with the bonus token$' out ||
    complain "no acceptance length: $(cat out)"
grep -q '<svg' plot.svg || complain "plot.svg is no picture"

# A limit that no picture is within: the one that is there stays.
cp plot.svg before.svg
(
    ulimit -f 4
    "$accrue" eval draft --prompts prompts.json --max-new-tokens 4 --out plot.svg >out 2>err
    [ $? = 1 ] || complain "a picture over the limit: exit status not 1, $(cat err)"
    exit "$failed"
) || failed=1
grep -qF 'plot.svg: File too large' err || complain "a picture over the limit: $(cat err)"
cmp -s plot.svg before.svg || complain "a picture that cannot be written costs the one that is there"
[ -e plot.svg.tmp ] && complain "a part of a picture is left"

# The same answers whatever is drafted, in whatever way prompts are given, on any number of threads.
for flags in '--num-speculative-tokens 1' '--num-speculative-tokens 7' '--threads 1' \
    '--verifier-name-or-path verifier'; do
    # shellcheck disable=SC2086
    "$accrue" eval draft --prompts prompts.json --max-new-tokens 16 --json $flags >json 2>err ||
        complain "eval $flags: exit status $?, $(cat err)"
    sed -n '/"tokens": \[/,/\]/p' json >answers
    [ -s answers ] || complain "eval $flags: no answers"
    [ -e first ] || cp answers first
    cmp -s answers first || complain "eval $flags: other answers"
    grep -q '"differing_prompts": 0' json || complain "eval $flags: answers differ"
done
for a in 1 2; do
    case $a in 1) prompts=prompts.json ;; *) prompts=chat.jsonl ;; esac
    "$accrue" eval draft --prompts $prompts --limit 1 --max-new-tokens 16 --json 2>err |
        sed -n '/"tokens": \[/,/\]/p' >answer.$a
    [ -s answer.$a ] || complain "$prompts: no answer, $(cat err)"
done
cmp -s answer.1 answer.2 || complain "a conversation is answered otherwise than its question"

refuse 'no/such: no folder of a checkpoint' no/such --verifier-name-or-path verifier --prompts prompts.json
refuse 'no/such.json' draft --prompts no/such.json
refuse 'tokenizer.json' draft --prompts prompts.json --verifier-name-or-path draft
refuse 'eval: --prompts expected' draft
mkdir other
sed 's/"hidden_size": 16/"hidden_size": 24/' draft/config.json >other/config.json
cp draft/model.safetensors other
refuse 'hidden size 24, the verifier'"'"'s is 16' other --prompts prompts.json
sed 's/\[2, 3, 5\]/[2, 3, 9]/' draft/config.json >other/config.json
refuse 'layer 9, the verifier has layers 0 to 6' other --prompts prompts.json

# That the picture cannot be written is told before anything is measured.
refuse 'no/such/plot.svg: No such file' draft --prompts prompts.json --out no/such/plot.svg
exit $failed
