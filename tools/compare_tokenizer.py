#!/usr/bin/env python3
"""Compares ids and decoded text with the package `tokenizers` on many strings.

    tools/compare_tokenizer.py PROGRAM FOLDER [COUNT]

PROGRAM is tests/tokenize_lines as built, FOLDER has a tokenizer.json."""

import os
import struct
import subprocess
import sys
import time

from tokenizers import Tokenizer
from tokenizer_strings import long_words, strings


def answers(program, folder, texts):
    data = b"".join(struct.pack("=I", len(t)) + t for t in texts)
    out = subprocess.run([program, folder], input=data, stdout=subprocess.PIPE, check=True).stdout
    at = 0
    for _ in texts:
        (n,) = struct.unpack_from("=I", out, at)
        at += 4
        if n == 0xFFFFFFFF:
            yield None, None
            continue
        ids = list(struct.unpack_from(f"={n}I", out, at))
        at += 4 * n
        (size,) = struct.unpack_from("=I", out, at)
        yield ids, out[at + 4:at + 4 + size]
        at += 4 + size
    assert at == len(out)


def compare(program, folder, texts, tokenizer):
    wrong = 0
    for text, (ids, decoded) in zip(texts, answers(program, folder, [t.encode() for t in texts])):
        expected = tokenizer.encode(text, add_special_tokens=False).ids
        shown = tokenizer.decode(expected, skip_special_tokens=False).encode()
        if ids != expected or decoded != shown:
            wrong += 1
            if wrong <= 10:
                print(f"{text!r}: {ids} {decoded!r}, expected {expected} {shown!r}")
    return wrong


def speed(program, folder, texts, tokenizer):
    text = "\n".join(texts)
    data = text.encode()
    out = subprocess.run([program, folder, "5"], input=data, stdout=subprocess.PIPE, check=True).stdout.decode()
    best = 1e9
    for _ in range(5):
        start = time.process_time()
        tokenizer.encode(text, add_special_tokens=False)
        best = min(best, time.process_time() - start)
    start = time.process_time()
    Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    print(out.strip().replace("\n", ", "), f"; tokenizers: opened in {time.process_time() - start:.3f} s, {len(data) / best / 1e6:.1f} MB/s")


def main():
    program, folder = sys.argv[1:3]
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 10000
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    texts = strings(count - count // 20, 1, added) + long_words(count // 20, 3)
    wrong = compare(program, folder, texts, tokenizer)
    print(f"{len(texts)} strings, {sum(len(t.encode()) for t in texts)} bytes: {wrong} differ")
    every = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    lines = ["x" + c + "y" + c + c + " " + c + "1" + c + "<div" + c + "\n" for c in every]
    wrong_characters = compare(program, folder, lines, tokenizer)
    print(f"{len(lines)} characters: {wrong_characters} differ")
    speed(program, folder, strings(20000, 2), tokenizer)
    return 1 if wrong or wrong_characters else 0


if __name__ == "__main__":
    sys.exit(main())
