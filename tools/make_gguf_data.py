#!/usr/bin/env python3
"""Writes tests/data/gguf and the seeds of tests/fuzz/corpus/gguf.

types.gguf has a tensor of every type and a key of every type of value; types.safetensors what the
gguf package makes of the tensors.  llama.gguf, qwen2.gguf and qwen3.gguf are tiny models whose
NAME.safetensors has the tensors of the folder that they come from, less the embedding and the head.

Needs: gguf, numpy, safetensors.  Usage: make_gguf_data.py TESTS
"""
import math
import pathlib
import shutil
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

rng = np.random.default_rng(6)
K_SCALES = {T.Q4_K: (0, 2), T.Q5_K: (0, 2), T.Q6_K: (208,)}  # where a block's f16 numbers are


def random_blocks(kind, rows, columns):
    """Random bytes, the scales of the block finite f16 numbers."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in K_SCALES[kind]:
        scales = rng.normal(0, 0.1, (rows, columns // block, 1)).astype(np.float16)
        data[:, :, at:at + 2] = scales.view(np.uint8)
    return data.reshape(rows, -1)


def packed(kind, values):
    if kind in K_SCALES:
        return random_blocks(kind, *values.shape)
    if kind == T.F64:
        return values.astype(np.float64)
    return quantize(values.astype(np.float32), kind)


def unpacked(kind, data):
    return data.astype(np.float32) if kind == T.F64 else dequantize(data, kind).astype(np.float32)


def add(writer, name, kind, data):
    writer.add_tensor(name, data, raw_dtype=kind)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_types(folder):
    writer = gguf.GGUFWriter(folder / "types.gguf", "test")
    writer.add_uint8("an.u8", 200)
    writer.add_int8("an.i8", -100)
    writer.add_uint16("an.u16", 60000)
    writer.add_int16("an.i16", -30000)
    writer.add_uint32("an.u32", 4000000000)
    writer.add_int32("an.i32", -2000000000)
    writer.add_float32("an.f32", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Grüße")
    writer.add_uint64("an.u64", 1 << 62)
    writer.add_int64("an.i64", -(1 << 62))
    writer.add_float64("an.f64", 0.1)
    writer.add_array("an.array", [1, -2, 3])
    writer.add_array("a.string.array", ["a", "", "c"])
    expected = {}
    for kind in (T.F32, T.F16, T.BF16, T.F64, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q4_K, T.Q5_K, T.Q6_K):
        columns = 512 if kind in K_SCALES else 64
        data = packed(kind, rng.normal(0, 1, (2, columns)))
        add(writer, kind.name, kind, data)
        expected[kind.name] = unpacked(kind, data).reshape(2, columns)
    finish(writer)
    save_file(expected, folder / "types.safetensors")


def permuted(w, heads):
    """llama.cpp's order of q and k: the two rows that turn together lie side by side."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]


def add_tokenizer(writer, pre, bos, alphabet):
    merges = ["Ġ t", "h e", "Ġt he", "i n"]
    tokens = alphabet + [m.replace(" ", "") for m in merges] + ["<|begin|>", "<|end|>", "<think>", "[PAD]"]
    kinds = [1] * (len(tokens) - 4) + [3, 3, 4, 5]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 4)
    writer.add_eos_token_id(len(tokens) - 3)
    if bos is not None:
        writer.add_add_bos_token(bos)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}")
    return len(tokens)


def rope_factors(theta, dim, factor, low, high, original):
    factors = []
    for i in range(0, dim, 2):
        wavelength = 2 * math.pi * theta ** (i / dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(factor)
        else:
            s = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - s) / factor + s))
    return np.array(factors, np.float32)


def make_model(folder, arch, pre, bos, layers, tied, alphabet):
    heads, kv_heads, dim, hidden, inner = 4, 2, 8, 32, 32
    writer = gguf.GGUFWriter(folder / f"{arch}.gguf", arch)
    writer.add_name("tiny")
    writer.add_block_count(layers)
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    if arch != "llama":
        writer.add_key_length(dim)
        writer.add_value_length(dim)
    else:
        writer.add_rope_dimension_count(dim)
    vocab = add_tokenizer(writer, pre, bos, alphabet)
    expected = {}

    def put(name, hf, kind, shape, permute=0):
        w = rng.normal(0, 0.05, shape).astype(np.float32)
        if len(shape) == 1:  # of a model in bf16
            w = dequantize(quantize(w[None], T.BF16), T.BF16)[0].astype(np.float32)
        data = packed(kind, w)
        rows = data.reshape(shape[0], -1)
        add(writer, name, kind, permuted(rows, permute).reshape(data.shape) if permute else data)
        if hf:
            expected[hf] = unpacked(kind, data).reshape(shape)

    put("token_embd.weight", None, T.Q8_0, (vocab, hidden))
    put("output_norm.weight", "model.norm.weight", T.F32, (hidden,))
    if not tied:
        put("output.weight", None, T.Q5_0, (vocab, hidden))
    for i in range(layers):
        b, m = f"blk.{i}.", f"model.layers.{i}."
        turn = arch == "llama"
        put(b + "attn_norm.weight", m + "input_layernorm.weight", T.F32, (hidden,))
        put(b + "attn_q.weight", m + "self_attn.q_proj.weight", T.Q8_0, (heads * dim, hidden), turn * heads)
        put(b + "attn_k.weight", m + "self_attn.k_proj.weight", T.Q4_0, (kv_heads * dim, hidden), turn * kv_heads)
        put(b + "attn_v.weight", m + "self_attn.v_proj.weight", T.F16, (kv_heads * dim, hidden))
        put(b + "attn_output.weight", m + "self_attn.o_proj.weight", T.BF16, (hidden, heads * dim))
        if arch == "qwen2":
            put(b + "attn_q.bias", m + "self_attn.q_proj.bias", T.F32, (heads * dim,))
            put(b + "attn_k.bias", m + "self_attn.k_proj.bias", T.F32, (kv_heads * dim,))
            put(b + "attn_v.bias", m + "self_attn.v_proj.bias", T.F32, (kv_heads * dim,))
        if arch == "qwen3":
            put(b + "attn_q_norm.weight", m + "self_attn.q_norm.weight", T.F32, (dim,))
            put(b + "attn_k_norm.weight", m + "self_attn.k_norm.weight", T.F32, (dim,))
        put(b + "ffn_norm.weight", m + "post_attention_layernorm.weight", T.F32, (hidden,))
        put(b + "ffn_gate.weight", m + "mlp.gate_proj.weight", T.Q5_1, (inner, hidden))
        put(b + "ffn_up.weight", m + "mlp.up_proj.weight", T.Q4_1, (inner, hidden))
        put(b + "ffn_down.weight", m + "mlp.down_proj.weight", T.Q5_0, (hidden, inner))
    if arch == "llama":
        add(writer, "rope_freqs.weight", T.F32, rope_factors(500000.0, dim, 8.0, 1.0, 4.0, 8192))
    finish(writer)
    return expected


def main():
    tests = pathlib.Path(sys.argv[1])
    folder, seeds = tests / "data/gguf", tests / "fuzz/corpus/gguf"
    folder.mkdir(parents=True, exist_ok=True)
    seeds.mkdir(parents=True, exist_ok=True)
    make_types(folder)
    shutil.copy(folder / "types.gguf", seeds)
    for arch, pre, layers in (("llama", "llama-bpe", 1), ("qwen2", "qwen2", 1), ("qwen3", "qwen2", 2)):
        bos, tied = (None, False) if arch == "llama" else (False, True)
        expected = make_model(folder, arch, pre, bos, layers, tied, byte_alphabet())
        save_file(expected, folder / f"{arch}.safetensors")
        make_model(seeds, arch, pre, bos, 1, tied, list("Ġthein"))
    for file in folder.iterdir():
        file.chmod(0o644)


main()
