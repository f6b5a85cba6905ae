#!/usr/bin/env python3
"""Writes tests/data/tokenizer with the package `tokenizers`: small vocabularies with the sections of real files, what
they make of some 1,500 strings, and how patterns split.

    tools/make_tokenizer_data.py [FOLDER]"""

import json
import os
import random
import struct
import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from tokenizer_strings import long_words, strings

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SAME = 0xFFFF


def byte_level(prefix=False, regex=True, trim=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex}


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def template(token):
    single = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = single + [{"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {token: {"id": token, "ids": [0], "tokens": [token]}}}


KINDS = {
    "gpt2": {"pre_tokenizer": byte_level(prefix=True), "post_processor": byte_level(), "decoder": byte_level()},
    "smollm2": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level()),
                "decoder": byte_level(prefix=True)},
    "llama3": {"pre_tokenizer": sequence(split(CONTRACTIONS % "{1,3}"), byte_level(regex=False)),
               "post_processor": {"type": "Sequence", "processors": [byte_level(trim=False), template("<|begin_of_text|>")]},
               "decoder": byte_level()},
    "qwen2": {"normalizer": {"type": "NFC"}, "pre_tokenizer": sequence(split(CONTRACTIONS % ""), byte_level(regex=False, trim=False)),
              "post_processor": byte_level(trim=False), "decoder": byte_level(regex=False, trim=False)},
}
SPECIAL = {
    "gpt2": ["<|endoftext|>"], "smollm2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<jupyter_output>"],
    "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
}
# Tokens with every flag: content, special, normalized, single_word, lstrip, rstrip.
FLAGGED = [
    ("<think>", 0, 0, 0, 0, 0), ("</think>", 0, 0, 0, 0, 0), ("<l>", 0, 0, 0, 1, 0), ("<r>", 1, 0, 0, 0, 1), ("<lr>", 1, 0, 0, 1, 1),
    ("<lr>x", 0, 0, 0, 0, 0), ("whole", 0, 0, 1, 0, 0), ("wh", 1, 0, 1, 1, 1), ("e\u0301toile", 0, 1, 0, 0, 0), ("caf\u00e9", 1, 1, 0, 0, 0),
    ("token\u212b", 1, 1, 0, 0, 0), ("\u00bfqu\u00e9?", 0, 1, 1, 0, 0), ("  ", 0, 1, 0, 0, 0), ("\u4f60", 0, 0, 0, 0, 0),
]
FLAGGED_KINDS = ("gpt2", "qwen2")


def train(kind, corpus):
    tokenizer = Tokenizer(models.BPE())
    part = KINDS[kind]["pre_tokenizer"]
    whole = json.loads(tokenizer.to_str())
    whole["pre_tokenizer"] = part
    tokenizer = Tokenizer.from_str(json.dumps(whole))
    alphabet = [] if kind == "smollm2" else pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False,
                                                              special_tokens=SPECIAL[kind] if kind != "qwen2" else []))
    return json.loads(tokenizer.to_str())


def whole_file(kind, corpus):
    file = train(kind, corpus)
    file.update({k: None for k in ("normalizer", "post_processor")})
    file.update(KINDS[kind])
    model = file["model"]
    if kind == "llama3":
        model["ignore_merges"] = True
        model["merges"] = [m for i, m in enumerate(model["merges"]) if i % 9 != 8]
    if kind in ("gpt2", "llama3"):
        model["merges"] = [" ".join(m) for m in model["merges"]]
    if kind == "gpt2":
        model.update(unk_token="<|endoftext|>", continuing_subword_prefix="", end_of_word_suffix="")
    added = [(t, 1, 0, 0, 0, 0) for t in SPECIAL[kind]] + (FLAGGED if kind in FLAGGED_KINDS else [])
    file["added_tokens"], following = [], len(model["vocab"])
    for content, *flags in added:
        token = model["vocab"].get(content)
        if token is None:
            token, following = following, following + 1
        names = ("special", "normalized", "single_word", "lstrip", "rstrip")
        file["added_tokens"].append({"id": token, "content": content, **{k: bool(v) for k, v in zip(names, flags)}})
    return file


def ids_record(ids, usual=None):
    if ids == usual:
        return struct.pack("<H", SAME)
    return struct.pack(f"<H{len(ids)}H", len(ids), *ids)


def text_record(text, usual=None):
    if text == usual:
        return struct.pack("<H", SAME)
    return struct.pack("<H", len(text.encode())) + text.encode()


def cases(tokenizer, texts):
    """For each text: ids; ids where special tokens are text; what the first decode to, whole and without special tokens."""
    out = b""
    for text in texts:
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        out += ids_record(ids) + ids_record(plain, ids)
        out += text_record(shown, text) + text_record(tokenizer.decode(ids, skip_special_tokens=True), shown)
    return out


def random_ids(r, file):
    """Some of any tokens, some of bytes that begin, go on or break a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = file["model"]["vocab"]
    printable = [c for c in range(256) if 0x21 <= c <= 0x7E or 0xA1 <= c <= 0xAC or c >= 0xAE]
    others = [c for c in range(256) if c not in printable]
    character = {**{c: chr(c) for c in printable}, **{c: chr(256 + i) for i, c in enumerate(others)}}
    assert sorted(character.values()) == alphabet
    lead = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF]
    count = r.randrange(1, 9)
    if r.random() < 0.3:
        return [r.randrange(len(vocab) + 40) for _ in range(count)]
    return [vocab[character[r.choice(lead)]] for _ in range(count)]


def decodes(tokenizer, file):
    r = random.Random(5)
    out = b""
    for _ in range(400):
        ids = random_ids(r, file)
        out += ids_record(ids) + text_record(tokenizer.decode(ids, skip_special_tokens=False))
    return out


PATTERNS = [
    KINDS["llama3"]["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],
    KINDS["qwen2"]["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"],
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    "[一-龥\u3040-ゟ゠-ヿ]+", r"\p{N}{1,3}", r"\d{3}(?=\d)", r"\s*", r"\s+$", r"^.", r"a|", r"x{,2}y", r"x{y|\{", r"\p{Han}+", r"\P{L}", r"\p{^Lu}+",
    r"[\S\n]+", r"[^\S\n]+", r"\S+", r"\D+", r"(?<=\s)a|(?<!b)c", r"(?>a+)b|(c|d)+?", r"(?:ab)*+b?", r"\u0041|\x{1F600}|\t", r"(?i:k[s-u]|\u0041)", r"\A\S|\S\z",
    r"[a\-z.]+", r"[-a]+|[a-]", r"é+", r"[\p{L}\d_]+", r"\v|\f|\e", r"a??b{2,3}?",
]
SPLIT_TEXTS = [
    "I'm WE'RE don'T 'ſ 'ﬆ the-final--countdown 12345 +x++y\n\n  z", " a\u180eb\u00a0c\u2028d\u3000e\x85f\x0b\x0cg\x1b", "aab xxy xyy xxxy{ x{y abab cdc bbb", "漢字かな々〇ー 한국 ١٢٣ Ⅷ½",
    "\nab\ncd \n", "ééa\u0301😀 A K\u212as KT ku ks", "camelCaseString HTTPServer's v2/\n\n/x", "", "a-z.b_1 -- [x] \\ $9", "\r\n\r\n \t x  ",
    "\U0001d2c0<a\U0001e4d0<a\U00010d50<a\U0001e4ec<a\U00011b00<a\U0001cc00<a\U00010d41a",  # of Unicode 15 and 16
]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def pieces(step, text):
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": step,
             "post_processor": None, "decoder": None, "model": {"type": "BPE", "vocab": {}, "merges": []}}
    return [p for p, _ in Tokenizer.from_str(json.dumps(whole)).pre_tokenizer.pre_tokenize_str(text)]


def splits():
    out = []
    for i, pattern in enumerate(PATTERNS):
        kinds = [("Isolated", False)] + ([(b, v) for b in BEHAVIORS for v in (False, True)][1:] if i >= 6 and i % 3 == 0 else [])
        for behavior, invert in kinds:
            step = dict(split(pattern), behavior=behavior, invert=invert)
            out.append({"step": step, "pieces": [pieces(step, t) for t in SPLIT_TEXTS]})
    for behavior in BEHAVIORS:
        step = {"type": "Split", "pattern": {"String": "b"}, "behavior": behavior, "invert": False}
        out.append({"step": step, "pieces": [pieces(step, t) for t in SPLIT_TEXTS]})
    for individual in (False, True):
        step = {"type": "Digits", "individual_digits": individual}
        out.append({"step": step, "pieces": [pieces(step, t) for t in SPLIT_TEXTS]})
    return {"texts": SPLIT_TEXTS, "cases": out}


def write(folder, name, data):
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)


def compact(value):
    return (json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "tests", "data", "tokenizer")
    corpus = strings(4000, 7)
    added = [t for tokens in SPECIAL.values() for t in tokens] + [t[0] for t in FLAGGED]
    texts = strings(1440, 11, added, longest=4) + long_words(60, 12)
    os.makedirs(folder, exist_ok=True)
    write(folder, "texts.bin", b"".join(text_record(t) for t in texts))
    write(folder, "splits.json", compact(splits()))
    for kind in KINDS:
        file = whole_file(kind, corpus)
        os.makedirs(os.path.join(folder, kind), exist_ok=True)
        write(os.path.join(folder, kind), "tokenizer.json", compact(file))
        tokenizer = Tokenizer.from_file(os.path.join(folder, kind, "tokenizer.json"))
        for token in file["added_tokens"]:
            assert tokenizer.token_to_id(token["content"]) == token["id"]
        write(os.path.join(folder, kind), "cases.bin", cases(tokenizer, texts))
        if kind == "gpt2":
            write(os.path.join(folder, kind), "decodes.bin", decodes(tokenizer, file))


if __name__ == "__main__":
    main()
