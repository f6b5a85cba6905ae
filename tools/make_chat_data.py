#!/usr/bin/env python3
"""Writes tests/data/chat and tests/data/prepare: make_chat_data.py TESTS_DATA

A made-up byte-level vocabulary, chat templates with the statements of those that models have (what
they say of tools is cut short), what transformers and speculators 0.9 make of conversations.
Needs the packages tokenizers, transformers, datasets and speculators."""
import json
import os
import shutil
import sys

import datasets
from speculators.data_generation import preprocessing
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>",
           "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
PLAIN = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
CORPUS = ["system user assistant tool You are a helpful model of the tests. What is the answer? It "
          "is forty-two, and then nothing.\n\nThe quick brown fox jumps over the lazy dog.\n"
          "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"] * 20

TURN = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
PROMPT = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
QWEN_HEAD = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
"""
QWEN_TOOL = """    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
"""
QWEN_CALLS = """        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {{- tool_call.name }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
"""
QWEN_QUESTION = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and @not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
"""
QWEN_SHOW = """        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
"""
QWEN_THINKING = """    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
CONTENT = """    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
"""
LLAMA_TURN = ("'<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content']"
              " | trim + '<|eot_id|>'")
LLAMA_PROMPT = ("{% if add_generation_prompt %}"
                "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")

TEMPLATES = {
    "plain": "{% for message in messages %}" + TURN + "{% endfor %}" + PROMPT,
    "plain_default": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = "
                     "false %}{% endif %}{% for message in messages %}" + TURN + "{% endfor %}"
                     + PROMPT,
    "smollm2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
               "{{ '<|im_start|>system\nYou\\'re a helpful \"model\" of the tests.<|im_end|>\n' }}"
               "{% endif %}" + TURN + "{% endfor %}" + PROMPT,
    "qwen2.5": QWEN_HEAD.replace("{%- endif %}\n{%- endif %}\n", "{%- else %}\n        {{- "
                                 "'<|im_start|>system\\nYou are a helpful model.<|im_end|>\\n' }}\n"
                                 "    {%- endif %}\n{%- endif %}\n")
    + """{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {{- tool_call.name }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
""" + QWEN_TOOL + "{%- endif %}\n",
    "qwen3_first": QWEN_HEAD + QWEN_QUESTION.replace("@", "")
    + """    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in message.content %}
                {%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
                {%- set reasoning_content = message.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
""" + QWEN_SHOW + QWEN_CALLS + QWEN_TOOL + QWEN_THINKING,
    "qwen3": QWEN_HEAD + QWEN_QUESTION.replace("@", "message.content is string and ") + CONTENT
    + """    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
""" + QWEN_SHOW + QWEN_CALLS + QWEN_TOOL + QWEN_THINKING,
    "qwen3_plain": QWEN_HEAD + "{%- for message in messages %}\n" + CONTENT
    + """    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
""" + QWEN_CALLS + QWEN_TOOL + "{%- endif %}",
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
              + LLAMA_TURN + " %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
              "{% endif %}{{ content }}{% endfor %}" + LLAMA_PROMPT,
    "llama3.1": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not tools_in_user_message is defined %}
    {%- set tools_in_user_message = true %}
{%- endif %}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}

{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{%- if builtin_tools is defined %}
    {{- "Tools: " + builtin_tools | join(", ") }}
{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none and not tools_in_user_message %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}

{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("no message") }}
    {%- endif %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}

{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("one tool at a time") }}
        {%- endif %}
        {{- message.tool_calls[0].name }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {{- message.content }}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
}


def says(*turns):
    names = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": names[t[0]], "content": t[1:]} for t in turns]


CONVERSATIONS = [
    says("uWhat is the answer?", "aIt is forty-two."),
    says("sYou are terse.", "uHi", "aHi.", "uAnd then?", "aNothing."),
    says("u", "a"),
    says("u\n  leading", "a\n\nlines before", "u after \n", "a after\n\n"),
    says("uq", "a<think>\nIt is\n\n</think>\n\nforty-two.", "uand?", "a<think>then</think>nothing"),
    says("uq", "a</think>", "uq", "a<think>a</think><think>b</think>\n\nc"),
    says("s  ", "u\u00a0\u2003both\u3000", "a\x1c\x85Ünïcödé 漢字 🙂 e\u0301\u2028"),
    says("uone", "sin between", "uquestion", "aanswer"),
    says("aI begin.", "uWell.", "aYes."),
    says("u<tool_response>\n1\n</tool_response>", "aone"),
    says("uq", "a\tdef f(x):\n\treturn x\r\n", "uq", "a'quoted' \"twice\" \\n"),
]
REASONING = says("uq", "aand so on", "uand?", "aforty-two")
for message in REASONING:
    if message["role"] == "assistant":
        message["reasoning_content"] = "\n\nfirst this\n"
CONVERSATIONS.append(REASONING)
UNSTABLE = says("uq", "afirst", "asecond")


def vocabulary(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=420, special_tokens=CONTROL, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PLAIN])
    tokenizer.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer_config.json", "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>",
                   "eos_token": "<|im_end|>", "pad_token": "<|im_end|>",
                   "model_max_length": 10 ** 30}, f)
    with open(f"{folder}/config.json", "w") as f:
        json.dump({"model_type": "llama", "vocab_size": tokenizer.get_vocab_size()}, f)


def render(tokenizer):
    def ids(endpoint, messages, *, add_generation_prompt, tools=None, truncate_prompt_tokens=None,
            truncation_side=None):
        got = tokenizer.apply_chat_template(messages, add_generation_prompt=add_generation_prompt,
                                            tokenize=True, return_dict=False)
        return got[:truncate_prompt_tokens]
    return ids


def chat(folder):
    cases = []
    for name, template in TEMPLATES.items():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = template
        preprocessing.render_conversation = ids = render(tokenizer)
        for messages in CONVERSATIONS:
            case = {"template": name, "messages": messages,
                    "ids": ids("", messages, add_generation_prompt=False),
                    "prompt": ids("", messages, add_generation_prompt=True)}
            rows = preprocessing._render_boundary_rows(messages, "", 10 ** 6)
            case["answer"] = rows[-1]["loss_mask"].index(1)
            assert rows[-1]["input_ids"] == case["ids"], (name, messages)
            cases.append(case)
    with open(f"{folder}/cases.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    with open(f"{folder}/templates.json", "w") as f:
        json.dump(TEMPLATES, f, indent=1)


RUNS = [
    {"files": ["conversations.jsonl"], "template": "smollm2", "seq_length": 8192, "seed": 0},
    {"files": ["conversations.jsonl", "sharegpt.jsonl"], "template": "smollm2", "seq_length": 40,
     "seed": 7, "minimum_valid_tokens": 4},
    {"files": ["conversations.jsonl"], "template": "qwen3", "seq_length": 60, "seed": 1,
     "max_samples": 4},
    {"files": ["conversations.jsonl"], "template": "llama3.1", "seq_length": 90,
     "seed": 123456789012345},
    {"files": ["tokens.jsonl"], "template": "smollm2", "seq_length": 4, "seed": 0},
]


def prepared(folder, verifier):
    os.makedirs(folder)
    lines = [json.dumps({"conversations": c}) for c in CONVERSATIONS + [UNSTABLE]]
    lines.insert(2, "  ")
    open(f"{folder}/conversations.jsonl", "w").write("\n".join(lines) + "\n")
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    with open(f"{folder}/sharegpt.jsonl", "w") as f:
        for c in CONVERSATIONS[:8]:
            turns = [{"from": names[m["role"]], "value": m["content"]} for m in c]
            f.write(json.dumps({"conversations": turns}) + "\n")
    with open(f"{folder}/tokens.jsonl", "w") as f:
        for n in range(1, 8):
            f.write(json.dumps({"input_ids": list(range(n, 2 * n)),
                                "loss_mask": [int(i >= n // 2) for i in range(n)]}) + "\n")
    for i, run in enumerate(RUNS):
        tokenizer = AutoTokenizer.from_pretrained(verifier)
        tokenizer.chat_template = TEMPLATES[run["template"]]
        preprocessing.render_conversation = render(tokenizer)
        data, _ = preprocessing.load_and_preprocess_dataset(
            verifier, [f"{folder}/{name}" for name in run["files"]],
            seq_length=run["seq_length"], seed=run["seed"], max_samples=run.get("max_samples"),
            minimum_valid_tokens=run.get("minimum_valid_tokens"), render_endpoint="none",
            build_dataset_num_proc=None)
        run["rows"] = [[r["input_ids"], r["loss_mask"]] for r in data.with_format(None)]
    with open(f"{folder}/expected.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(r) for r in RUNS) + "\n]\n")


def main(root):
    datasets.disable_caching()
    for name in ("chat", "prepare"):
        shutil.rmtree(f"{root}/{name}", ignore_errors=True)
    os.makedirs(f"{root}/chat")
    vocabulary(f"{root}/chat")
    chat(f"{root}/chat")
    prepared(f"{root}/prepare", f"{root}/chat")


if __name__ == "__main__":
    main(sys.argv[1])
