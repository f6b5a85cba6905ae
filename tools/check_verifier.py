#!/usr/bin/env python3
"""Compares the verifier's forward pass with transformers in float32, on a model given by its folder.

    tools/check_verifier.py VERIFIER_FULL MODEL DATASET PROMPTS [--reference FILE] [--limit N]

VERIFIER_FULL is tests/verifier_full, which the target of that name builds.  DATASET holds "input_ids" (as datasets saves it):
hidden states of every row, in f32 and bf16, relative l2 per slot, the largest over the rows.
PROMPTS is a JSON list of questions: greedy continuations of 64 tokens in f32, token for token.
--reference keeps what transformers computed for the next time."""
import argparse
import json
import os
import subprocess

import numpy as np


def reference(args):
    import torch
    from datasets import load_from_disk
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    layers = model.config.num_hidden_layers
    slots = [2, layers // 2, layers - 3, layers]
    last = {}
    model.model.norm.register_forward_pre_hook(lambda m, a: last.__setitem__("x", a[0].detach()))
    out = {"slots": np.array(slots)}
    rows = load_from_disk(args.dataset)
    with torch.no_grad():
        for i in range(min(args.limit, len(rows))):
            ids = torch.as_tensor(rows[i]["input_ids"]).long()
            states = model(ids[None], output_hidden_states=True).hidden_states
            states = [states[j][0] for j in slots[:-1]] + [last["x"][0]]
            out[f"ids_{i}"] = ids.numpy()
            out[f"states_{i}"] = torch.stack(states, 1).numpy()
        for i, text in enumerate(json.load(open(args.prompts))):
            text = tokenizer.apply_chat_template([{"role": "user", "content": text}],
                                                 add_generation_prompt=True, return_tensors="pt",
                                                 return_dict=True)
            ids = text["input_ids"]
            # The mask is given: generate would take the padding's id in a prompt for padding.
            answer = model.generate(ids, attention_mask=text["attention_mask"], max_new_tokens=64,
                                    do_sample=False, repetition_penalty=1.0)
            out[f"prompt_{i}"] = ids[0].numpy()
            out[f"answer_{i}"] = answer[0, ids.shape[1]:].numpy()
    return out


def run(args, dtype, slots, lines):
    text = "".join(f"{count} {' '.join(map(str, ids))}\n" for count, ids in lines)
    return subprocess.run([args.verifier_full, args.model, dtype, str(args.threads),
                           *map(str, slots)], input=text.encode(), stdout=subprocess.PIPE,
                          check=True).stdout


def compare_states(args, ref, dtype):
    slots = ref["slots"]
    rows = sum(key.startswith("ids_") for key in ref)
    got = np.frombuffer(run(args, dtype, slots, [(0, ref[f"ids_{i}"]) for i in range(rows)]),
                        np.float32)
    worst, at = np.zeros(len(slots)), 0
    squares = np.zeros((2, len(slots)))
    for i in range(rows):
        want = ref[f"states_{i}"].astype(np.float64)
        mine = got[at:at + want.size].reshape(want.shape)
        at += want.size
        error = np.square(mine - want).sum((0, 2))
        total = np.square(want).sum((0, 2))
        squares += error, total
        worst = np.maximum(worst, np.sqrt(error / total))
    assert at == got.size
    print(dtype, "slots", slots.tolist(), "rows", rows, "largest of a row",
          " ".join(f"{x:.2e}" for x in worst), "over all",
          " ".join(f"{x:.2e}" for x in np.sqrt(squares[0] / squares[1])), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("verifier_full", "model", "dataset", "prompts"):
        parser.add_argument(name)
    parser.add_argument("--reference")
    parser.add_argument("--limit", type=int, default=1 << 30)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.reference and os.path.exists(args.reference):
        ref = dict(np.load(args.reference))
    else:
        ref = reference(args)
        if args.reference:
            np.savez(args.reference, **ref)
    for dtype in ("f32", "bf16"):
        compare_states(args, ref, dtype)
    prompts = sum(key.startswith("prompt_") for key in ref)
    for dtype in ("f32", "bf16"):
        lines = run(args, dtype, [], [(len(ref[f"answer_{i}"]), ref[f"prompt_{i}"])
                                      for i in range(prompts)]).decode().splitlines()
        same = [[int(x) for x in line.split()] == list(ref[f"answer_{i}"])
                for i, line in enumerate(lines)]
        print(dtype, f"greedy continuations identical: {sum(same)} of {prompts}", flush=True)


main()
