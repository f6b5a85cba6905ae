"""Strings that tell tokenizers apart, for make_tokenizer_data.py and compare_tokenizer.py."""

import random

WORDS = """the quick brown fox jumps over lazy dog naïve café Straße façade coöperate I'm you're we've they'll
he'd it's don't I'LL YOU'RE O'Neill rock'n'roll 'tis ’s ’ll hello world return self print list value error
model token draft speculative decoding attention hidden state 3.14 1,000 2024 10:30 v1.2.3 0xff 1e-5 $9.99
don'T 'S 'ſ I'M'RE a'b C++ C# .NET snake_case camelCase UPPER lower MiXeD www.example.org a@b.c""".split()
CODE = [
    "def f(x):\n    return x + 1\n", "for (int i = 0; i < n; i++) {\n\ta[i] *= 2;\n}\n", "#include <stdio.h>\r\n",
    "SELECT * FROM t WHERE a >= 10 AND b != 'x';", "x = {'a': [1, 2, 3], \"b\": None}\n\n\n", "<div class=\"a\">&nbsp;</div>",
    "std::vector<std::pair<int,int>> v{{1,2}};", "if (a && b || !c) { return -1; }  // why?\n", "λ = lambda *a, **k: (a, k)",
    "```python\nprint('hi')\n```\n", "    \t\tindent\n        deeper\n", "$ ls -la | grep '^d' > /dev/null 2>&1", "\\frac{a}{b} \\alpha_{1}^2",
]
OTHER = [
    "你好，世界！今天天气很好。", "日本語のテキストです。カタカナとひらがな", "한국어 문장입니다. 조선말", "漢字かな交じり文", "مرحبا بالعالم، كيف حالك؟",
    "السلام عليكم ورحمة الله", "שלום עולם, מה שלומך?", "בְּרֵאשִׁית בָּרָא", "สวัสดีชาวโลก ภาษาไทย", "नमस्ते दुनिया, आप कैसे हैं?", "क्षत्रिय ज्ञान",
    "Привет, мир! Как дела?", "Γειά σου Κόσμε", "Ελληνικά ΑΒΓ", "ქართული ენა", "Հայերեն", "தமிழ் மொழி", "ಕನ್ನಡ", "বাংলা ভাষা", "မြန်မာ", "ខ្មែរ",
    "አማርኛ", "བོད་སྐད", "Tiếng Việt có dấu", "Türkçe İstanbul ıI", "ﬁne ﬂow ﬃ", "ǅ ǈ ǋ titlecase",
]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "☃️", "1️⃣", "🧑🏿‍🚀", "👨‍💻", "🫠", "🏴\U000e0067\U000e0062\U000e007f", "🤷‍♀️"]
MARKS = ["é", "e\u0301", "n\u0303", "A\u030a", "\u212b", "\u2126", "o\u0302\u0301", "o\u0301\u0302", "q\u0307\u0323", "q\u0323\u0307",
         "\u1100\u1161\u11a8", "\uac01", "\u0915\u093c", "\u0958", "\u05d0\u05b7\u05bc", "\u0344", "\u0340a", "\uf900", "\u2adc", "\u0f73\u0f71",
         "a\u0315\u0300\u05ae\u0062", "\u1e9b\u0323", "\u0301 alone", "\u0300\u0316" * 6, "ﷺ", "①②", "½", "x\u200dy", "\u3099か\u3099"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u180e", "\u2000", "\u2003",
          "\u2009", "\u200a", "\u200b", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\ufeff", " \n", "\n ", "\t\n\t", "  \r\n  ", " " * 17, "\n" * 9]
DIGITS = ["0123456789", "1", "12", "1234", "12345678", "٠١٢٣٤", "۰۱۲", "०१२३", "๐๑๒", "０１２", "Ⅷ", "ↀ", "²³", "¼", "一二三", "〇", "𝟘𝟙", "௧௰", "①", "0.1.2", "-5", "1_000"]
CONTROL = ["\x00", "\x01", "\x04", "\x06", "\x07", "\x08", "\x0e", "\x13", "\x1b[0m", "\x1d", "\x7f", "\x80", "\x9f", "\xad", "\u200c", "\u200d", "\u200e",
           "\u202a", "\u2060", "\ufff9", "\ufffd", "\uffff", "\ue000", "\U000f0000", "\U0010ffff", "\U00050000", "\ud7ff"]


def random_character(r):
    while True:
        c = r.choice([r.randrange(0x80), r.randrange(0x300), r.randrange(0x3000), r.randrange(0x10000), r.randrange(0x20000), r.randrange(0x110000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def piece(r, added):
    kind = r.randrange(13)
    if kind < 3:
        return r.choice(WORDS)
    if kind == 3:
        return r.choice(CODE)
    if kind == 4:
        return r.choice(OTHER)
    if kind == 5:
        return r.choice(EMOJI)
    if kind == 6:
        return r.choice(MARKS)
    if kind == 7:
        return r.choice(SPACES)
    if kind == 8:
        return r.choice(DIGITS)
    if kind == 9:
        return r.choice(CONTROL)
    if kind == 10 and added:
        token = r.choice(added)
        return r.choice([token, token, token + token, token[:-1], token[1:], " " + token + " ", "a" + token + "b"])
    if kind == 11:
        return "".join(random_character(r) for _ in range(r.randrange(1, 6)))
    return "".join(r.choice("aZ9 _-.,'\"!?\n\t(){}[]<>|/\\@#$%^&*+=~`:;") for _ in range(r.randrange(1, 12)))


def strings(n, seed, added=(), longest=9):
    """n strings of 1 to `longest` pieces, with a blank or nothing between them; `added`: tokens that stand in some."""
    r = random.Random(seed)
    added = list(added)
    out = ["", " ", "  ", "\n", "a", "\ufeff"]
    while len(out) < n:
        text = ""
        for _ in range(r.randrange(1, longest + 1)):
            text += r.choice(["", "", " ", "  ", "\n"]) + piece(r, added) if text else piece(r, added)
        out.append(text)
    return out[:n]


def long_words(n, seed):
    """n words of 30 to 150 letters, of pieces that merge with each other in many ways."""
    r = random.Random(seed)
    parts = [w for w in WORDS if w.isascii() and w.isalpha()] + list("aeinorst") + ["aaaa", "ing", "ation"]
    return ["".join(r.choice(parts) for _ in range(60))[:r.randrange(30, 150)] for _ in range(n)]
