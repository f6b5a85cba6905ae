#!/usr/bin/env python3
"""Writes tests/data/verifier: tiny random models and what transformers computes with them in float64.

    tools/make_verifier_data.py tests/data/verifier

transformers computes norms and the rotation in float32 whatever the model's type; both are replaced
here by the same formulas in float64, and the result is held against the unchanged model in float32."""
import copy
import json
import math
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = 21
COMMON = dict(vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=2,
              num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
              bos_token_id=None, pad_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
# name: model_type, fields, type of the file, size of a shard, whether config.json is of transformers 4
MODELS = {
    "llama": ("llama", dict(head_dim=6, tie_word_embeddings=False, attention_bias=True,
                            mlp_bias=True, eos_token_id=[3, 5],
                            rope_parameters=dict(rope_theta=500.0, **LLAMA3)),
              torch.bfloat16, "1GB", True),
    "llama_tied": ("llama", dict(head_dim=10, tie_word_embeddings=True, eos_token_id=2,
                                 num_key_value_heads=1, rms_norm_eps=1e-5,
                                 rope_parameters=dict(rope_theta=10000.0, rope_type="default")),
                   torch.float32, "12KB", False),
    "qwen2": ("qwen2", dict(tie_word_embeddings=True, eos_token_id=7,
                            rope_parameters=dict(rope_theta=1000.0, rope_type="default")),
              torch.float16, "1GB", True),
    "qwen3": ("qwen3", dict(head_dim=16, tie_word_embeddings=False, eos_token_id=7,
                            rope_parameters=dict(rope_theta=1000.0, **LLAMA3)),
              torch.bfloat16, "1GB", False),
}


def frequencies(rope, head_dim):
    f = rope["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if rope["rope_type"] == "default":
        return f
    length = 2 * math.pi / f
    old, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor",
                                        "high_freq_factor"))
    smooth = ((old / length - low) / (high - low)).clamp(0, 1)
    return f * ((1 - smooth) / rope["factor"] + smooth)


def in_float64(model):
    """Replaces what casts to float32."""
    c = model.config
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    f = frequencies(c.rope_parameters, head_dim)
    assert torch.allclose(model.model.rotary_emb.inv_freq.double(), f, rtol=1e-6)

    def rotation(x, position_ids):
        angle = position_ids[..., None].double() * f
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()

    def normalise(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True)
                                             + self.variance_epsilon)

    model.model.rotary_emb.forward = rotation
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = normalise.__get__(module)
    return model.double()


def run(model, ids):
    last = {}
    hook = model.model.norm.register_forward_pre_hook(lambda m, a: last.__setitem__("x", a[0]))
    with torch.no_grad():
        out = model(ids[None], output_hidden_states=True)
    hook.remove()
    states = [h[0] for h in out.hidden_states[:-1]] + [last["x"][0]]
    return torch.stack(states, 1), out.logits[0]


def older(config):
    """config.json as transformers 4 wrote it."""
    rope = dict(config.pop("rope_parameters"))
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    return config


def make(out, name, number):
    kind, fields, dtype, shard, old = MODELS[name]
    config = AutoConfig.for_model(kind, **{**COMMON, **fields})
    torch.manual_seed(number)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with torch.no_grad():
        for key, p in model.named_parameters():
            spread = 0.3 if p.dim() == 2 or key.endswith("bias") else 0.2
            p.copy_((torch.randn_like(p) * spread + (key.endswith("norm.weight"))).to(dtype))
    folder = os.path.join(out, name)
    # A copy: its rotation is rounded too.
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=shard)
    if old:
        path = os.path.join(folder, "config.json")
        text = older(json.load(open(path)))
        json.dump(text, open(path, "w"), indent=2, sort_keys=True)
    ids = torch.randint(0, config.vocab_size, (TOKENS,))
    rough = run(model, ids)
    states, logits = run(in_float64(model), ids)
    assert torch.allclose(rough[0].double(), states, rtol=1e-4, atol=1e-4)
    assert torch.allclose(rough[1].double(), logits, rtol=1e-4, atol=1e-4)
    save_file({"ids": ids, "states": states.contiguous(), "logits": logits.contiguous()},
              os.path.join(out, name + ".safetensors"))


def main():
    out = sys.argv[1]
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    for number, name in enumerate(MODELS):
        make(out, name, number)


main()
