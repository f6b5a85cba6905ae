#!/usr/bin/env python3
"""Cuts examples/smollm2-excerpt out of a prepared data set: make_excerpt.py SOURCE DEST

SOURCE holds verifier-lite/ (config.json, model.safetensors with a tied head) and dataset/ (as
`speculators prepare-data` writes it, with hidden_states/).  The shortest rows are kept, and of the
vocabulary the tokens that occur in them, filled up with the most frequent ones of the other rows.
Hidden states are copied bit for bit.
Needs the packages datasets, torch and safetensors."""
import collections
import json
import os
import shutil
import sys

import datasets
import torch
from safetensors.torch import load_file, save_file

ROWS = 14
VOCABULARY = 512
SPECIAL = ("unk_token_id", "bos_token_id", "eos_token_id", "pad_token_id")
EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"


def shortest(table):
    """The shortest rows, in their old order, so that lengths stay mixed within the file."""
    order = sorted(range(len(table)), key=lambda i: (table[i]["seq_len"], i))
    return [(i, table[i]) for i in sorted(order[:ROWS])]


def kept_ids(table, rows, config):
    ids = {config[k] for k in SPECIAL}
    for _, row in rows:
        ids.update(row["input_ids"])
    counts = collections.Counter(t for row in table for t in row["input_ids"])
    spare = (t for t in sorted(counts, key=lambda t: (-counts[t], t)) if t not in ids)
    return sorted(ids | {next(spare) for _ in range(VOCABULARY - len(ids))})


def write_verifier(source, dest, config, ids, new_id):
    os.makedirs(f"{dest}/verifier")
    weights = load_file(f"{source}/verifier-lite/model.safetensors")
    save_file({EMBED: weights[EMBED][torch.tensor(ids)].contiguous(), NORM: weights[NORM]},
              f"{dest}/verifier/model.safetensors", metadata={"format": "pt"})
    for key in SPECIAL:
        config[key] = new_id[config[key]]
    config["vocab_size"] = len(ids)
    config["_model_name_or_path"] = "SmolLM2-135M-Instruct"
    with open(f"{dest}/verifier/config.json", "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def write_dataset(source, dest, rows, new_id):
    ints = datasets.List(datasets.Value("int64"))
    features = datasets.Features({"input_ids": ints, "loss_mask": ints,
                                  "seq_len": datasets.Value("int64")})
    table = [{"input_ids": [new_id[t] for t in row["input_ids"]], "loss_mask": row["loss_mask"],
              "seq_len": row["seq_len"]} for _, row in rows]
    datasets.Dataset.from_list(table, features).with_format("torch").save_to_disk(f"{dest}/dataset")
    os.makedirs(f"{dest}/dataset/hidden_states")
    for new, (old, row) in enumerate(rows):
        states = load_file(f"{source}/dataset/hidden_states/hs_{old}.safetensors")
        assert states["token_ids"].tolist() == row["input_ids"]
        states["token_ids"] = torch.tensor(table[new]["input_ids"])
        save_file(states, f"{dest}/dataset/hidden_states/hs_{new}.safetensors")


def main(source, dest):
    with open(f"{source}/verifier-lite/config.json") as f:
        config = json.load(f)
    table = datasets.load_from_disk(f"{source}/dataset").with_format(None)
    rows = shortest(table)
    ids = kept_ids(table, rows, config)
    new_id = {old: new for new, old in enumerate(ids)}
    for folder in ("verifier", "dataset"):
        shutil.rmtree(f"{dest}/{folder}", ignore_errors=True)
    write_verifier(source, dest, config, ids, new_id)
    write_dataset(source, dest, rows, new_id)
    supervised = sum(sum(row["loss_mask"]) for _, row in rows)
    print(f"rows {[i for i, _ in rows]}; {sum(r['seq_len'] for _, r in rows)} tokens, "
          f"{supervised} supervised, vocabulary {len(ids)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
