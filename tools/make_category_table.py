#!/usr/bin/env python3
"""Prints the table of src/text/newer.c: the characters whose general category `tokenizers` knows and Unicode 14 does not.

Needs a Python whose unicodedata is of Unicode 14 (3.11)."""

import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()


def known(text, category):
    split = pre_tokenizers.Split(Regex(r"\P{%s}+" % category), "removed")
    return {c for piece, _ in split.pre_tokenize_str(text) for c in piece}


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit("Unicode 14 needed, not " + unicodedata.unidata_version)
    every = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    ranges = []
    for c, category in sorted((ord(c), k) for k in CATEGORIES for c in known(every, k)):
        if unicodedata.category(chr(c)) != "Cn":
            continue
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == category:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, category])
    for first, last, category in ranges:
        print(f'{{0x{first:x}, 0x{last:x}, "{category}"}},')


if __name__ == "__main__":
    main()
