"""transformers' side of bench/compare_verifier, and the GGUF file that llama.cpp reads.

    peer_verifier.py step MODEL DTYPE THREADS DECODE PREFILL   as bench_verifier without ROUNDS
    peer_verifier.py gguf MODEL OUT                            MODEL in bf16, without a vocabulary"""
import json
import os
import resource
import sys
import time


def step(folder, dtype, threads, decode, prefill):
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype={"f32": torch.float32, "bf16": torch.bfloat16}[dtype]).eval()
    decode, prefill = int(decode), int(prefill)
    ids = torch.arange(max(decode, prefill))[None] * 2654435761 % model.config.vocab_size

    def once():
        start = time.monotonic()
        model(ids[:, :prefill], use_cache=True, logits_to_keep=1)
        prompt, past, start = time.monotonic() - start, None, time.monotonic()
        for i in range(decode):
            past = model(ids[:, i:i + 1], past_key_values=past, use_cache=True).past_key_values
        print(decode / (time.monotonic() - start), prefill / prompt, flush=True)

    print("ready", flush=True)
    with torch.inference_mode():
        for _ in sys.stdin:
            once()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, flush=True)


def permuted(w, heads):
    """llama.cpp turns neighbours where transformers turns halves."""
    return w.view(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(folder, out):
    import gguf
    import torch
    from safetensors.torch import load_file

    c = json.load(open(os.path.join(folder, "config.json")))
    rope = c.get("rope_parameters") or c
    w = gguf.GGUFWriter(out, "llama")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    w.add_vocab_size(c["vocab_size"])
    w.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c["num_hidden_layers"])
    for name, t in load_file(os.path.join(folder, "model.safetensors")).items():
        if "q_proj" in name or "k_proj" in name:
            t = permuted(t, c["num_attention_heads" if "q_proj" in name
                              else "num_key_value_heads"])
        to = names.get_name(name, try_suffixes=(".weight",))
        if t.dim() == 1:
            w.add_tensor(to, t.float().numpy())
        else:
            t = t.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            w.add_tensor(to, t, raw_dtype=gguf.GGMLQuantizationType.BF16)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


{"step": step, "gguf": write_gguf}[sys.argv[1]](*sys.argv[2:])
