#!/usr/bin/env python3
"""Writes the example of examples/tiny: make_example.py DIR

A made-up language of 96 tokens in which each token has three possible successors, and a verifier
that knows their probabilities: its hidden states are computed from the chain, not by a model.  So
a draft can learn it in seconds.  Needs the packages datasets, torch and safetensors."""
import json
import os
import shutil
import sys

import datasets
import torch
from safetensors.torch import save_file

VOCAB, HIDDEN, LAYERS, ROWS = 96, 32, 8, 60
AUX = [2, LAYERS // 2, LAYERS - 3]
ODDS = torch.tensor([0.75, 0.17, 0.08])


def verifier(folder, embed, head):
    os.makedirs(folder)
    config = {"architectures": ["LlamaForCausalLM"], "attention_bias": False, "dtype": "bfloat16",
              "head_dim": 8, "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": 64,
              "max_position_embeddings": 512, "model_type": "llama", "num_attention_heads": 4,
              "num_hidden_layers": LAYERS, "num_key_value_heads": 2, "rms_norm_eps": 1e-05,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
              "tie_word_embeddings": False, "vocab_size": VOCAB}
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    save_file({"model.embed_tokens.weight": embed, "lm_head.weight": head,
               "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)},
              f"{folder}/model.safetensors", {"format": "pt"})


def main(root):
    g = torch.Generator().manual_seed(1)
    embed = torch.randn(VOCAB, HIDDEN, generator=g).bfloat16()
    head = (0.3 * torch.randn(VOCAB, HIDDEN, generator=g)).bfloat16()
    successors = torch.stack([torch.randperm(VOCAB, generator=g)[:3] for _ in range(VOCAB)])
    shutil.rmtree(root, ignore_errors=True)
    verifier(f"{root}/verifier", embed, head)

    rows = []
    for _ in range(ROWS):
        n = int(torch.randint(36, 72, (1,), generator=g))
        ids = [int(torch.randint(VOCAB, (1,), generator=g))]
        while len(ids) < n:
            ids.append(int(successors[ids[-1], torch.multinomial(ODDS, 1, generator=g)]))
        rows.append({"input_ids": ids, "loss_mask": [int(i >= n // 3) for i in range(n)],
                     "seq_len": n})
    ints = datasets.List(datasets.Value("int64"))
    features = datasets.Features({"input_ids": ints, "loss_mask": ints,
                                  "seq_len": datasets.Value("int64")})
    datasets.Dataset.from_list(rows, features).save_to_disk(f"{root}/data")

    os.makedirs(f"{root}/data/hidden_states")
    for r, row in enumerate(rows):
        ids = torch.tensor(row["input_ids"])
        now, before = embed[ids].float(), embed[torch.cat([ids[:1], ids[:-1]])].float()
        last = (ODDS[None, :, None] * head[successors[ids]].float()).sum(1)
        last = last / last.norm(dim=1, keepdim=True) * HIDDEN ** 0.5
        states = torch.stack([now, (now + before) / 2, last, last], 1)
        save_file({"hidden_states": states.bfloat16(), "token_ids": ids},
                  f"{root}/data/hidden_states/hs_{r}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1])
