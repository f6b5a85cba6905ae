#!/usr/bin/env python3
"""The counterpart of bench_step: the same step with speculators' EAGLE-3 model and optimizers.

    peer_step.py SHAPE DTYPE SUPERVISED OPTIMIZER [THREADS]

Same arguments, same protocol: prints "ready", then the seconds of one step per line read, then the
peak resident memory in MiB.  bf16 is autocast over f32 masters, as speculators' trainer does."""
import contextlib
import resource
import sys
import time

import torch
from speculators.losses import resolve_loss_config
from speculators.models.eagle3 import Eagle3SpeculatorConfig
from speculators.models.eagle3.core import Eagle3DraftModel
from speculators.train.optimizers import build_optimizers
from speculators.train.trainer import TrainerConfig
from transformers import LlamaConfig

ROWS, DRAFT_VOCAB, TTT_STEPS = 512, 8192, 3
SHAPES = {
    "small": dict(hidden_size=576, intermediate_size=1536, num_attention_heads=9,
                  num_key_value_heads=3, head_dim=64, vocab_size=49152),
    "large": dict(hidden_size=2048, intermediate_size=5632, num_attention_heads=32,
                  num_key_value_heads=4, head_dim=64, vocab_size=32000),
}


def make_model(shape):
    layer = LlamaConfig(num_hidden_layers=1, max_position_embeddings=2048, rms_norm_eps=1e-5,
                        tie_word_embeddings=False, layer_types=["full_attention"], **shape)
    layer._attn_implementation = "sdpa"  # the fastest of its choices without an accelerator
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=DRAFT_VOCAB, norm_before_residual=True,
        norm_before_fc=True, norm_output=True, eagle_aux_hidden_state_layer_ids=[2, 3, 4])
    model = Eagle3DraftModel(config)
    t2d = torch.zeros(shape["vocab_size"], dtype=torch.bool)
    t2d[:DRAFT_VOCAB] = True
    model.load_vocab_mappings(t2d, torch.zeros(DRAFT_VOCAB, dtype=torch.long))
    with torch.no_grad():
        for name in ("embed_tokens", "lm_head", "verifier_lm_head"):
            getattr(model, name).weight.normal_(0, 0.02)
    return model.train()


def make_batch(shape, dtype, half):
    length = ROWS // 2
    position = torch.arange(1, length + 1).repeat(2)
    mask = (position > length // 2) if half else torch.ones(ROWS, dtype=torch.bool)
    hidden = shape["hidden_size"]
    return dict(
        hidden_states=torch.randn(1, ROWS, 3 * hidden).to(dtype),
        verifier_last_hidden_states=torch.randn(1, ROWS, hidden).to(dtype),
        input_ids=torch.randint(0, shape["vocab_size"], (1, ROWS)),
        document_ids=torch.arange(2).repeat_interleave(length)[None],
        loss_mask=mask.long()[None], position_ids=position[None])


def main():
    shape_name, dtype_name, supervised, optimizer = sys.argv[1:5]
    if len(sys.argv) > 5 and int(sys.argv[5]) > 0:
        torch.set_num_threads(int(sys.argv[5]))
    torch.manual_seed(0)
    shape = SHAPES[shape_name]
    bf16 = dtype_name == "bf16"
    model = make_model(shape)
    batch = make_batch(shape, torch.bfloat16 if bf16 else torch.float32, supervised == "half")
    optimizers = build_optimizers(model, TrainerConfig(
        lr=1e-4, num_epochs=1, save_path="out", optimizer=optimizer, muon_lr=1e-4))
    loss_config = resolve_loss_config("kl_div", "eager")
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext():
            _, loss, _ = model(**batch, ttt_steps=TTT_STEPS, ttt_step_loss_decay=1.0,
                               loss_config=loss_config)
        for o in optimizers:
            o.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for o in optimizers:
            o.step()
        print(f"{time.perf_counter() - start:.6f}", flush=True)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f}", flush=True)


main()
