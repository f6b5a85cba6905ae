#!/usr/bin/env python3
"""Writes the small data sets of tests/data: make_test_data.py DIR

Needs the packages datasets, pyarrow, torch and safetensors.  The tests know the numbers."""
import json
import os
import shutil
import sys

import datasets
import pyarrow as pa
import torch
from safetensors.torch import save_file

LENGTHS = [5, 1, 9, 3, 12, 2, 7]
VOCAB, HIDDEN, AUX = 50, 4, 3


def rows():
    for r, n in enumerate(LENGTHS):
        ids = [(7 * r + 3 * j + j * j) % VOCAB for j in range(n)]
        mask = [int(j >= n // 2 and r != 5) for j in range(n)]
        yield {"input_ids": ids, "loss_mask": mask, "seq_len": n,
               "messages": [{"role": "user", "content": f"row {r}"}]}


def states(folder):
    os.makedirs(folder)
    dtypes = [torch.bfloat16, torch.bfloat16, torch.float16, torch.float32]
    for r, row in enumerate(rows()):
        n = row["seq_len"]
        t = torch.arange(n * (AUX + 1) * HIDDEN).reshape(n, AUX + 1, HIDDEN)
        t = (t % 64 - 32) / 8 + r  # exact in every dtype
        save_file({"hidden_states": t.to(dtypes[r % 4]), "token_ids": torch.tensor(row["input_ids"])},
                  f"{folder}/hs_{r}.safetensors")


def wide(folder):
    """The same rows as large lists of int32, two rows in a batch."""
    os.makedirs(folder)
    data = list(rows())
    ints = pa.large_list(pa.int32())
    table = pa.table({
        "category": pa.array([f"c{r % 2}" for r in range(len(data))]).dictionary_encode(),
        "seq_len": pa.array([r["seq_len"] for r in data], pa.int32()),
        "loss_mask": pa.array([r["loss_mask"] for r in data], ints),
        "input_ids": pa.array([r["input_ids"] for r in data], ints)})
    with pa.ipc.new_stream(f"{folder}/data-00000-of-00001.arrow", table.schema) as w:
        w.write_table(table, max_chunksize=2)
    with open(f"{folder}/state.json", "w") as f:
        json.dump({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}, f)


def bad(folder):
    """Streams that are valid Arrow but no data set."""
    os.makedirs(folder)
    lists, ints = pa.list_(pa.int64()), pa.int64()
    columns = {"input_ids": pa.array([[1, 2], [3]], lists),
               "loss_mask": pa.array([[0, 1], [1]], lists), "seq_len": pa.array([2, 1], ints)}
    changes = {
        "list_of_double": {"input_ids": pa.array([[1.0, 2.0], [3.0]])},
        "list_of_list": {"loss_mask": pa.array([[[0], [1]], [[1]]])},
        "flat": {"input_ids": pa.array([1, 2], ints)},
        "text": {"seq_len": pa.array(["2", "1"])},
        "missing_list": {"input_ids": pa.array([[1, 2], None], lists)},
        "missing_token": {"input_ids": pa.array([[1, None], [3]], lists)},
        "missing_length": {"seq_len": pa.array([2, None], ints)},
        "no_column": {"seq_len": None},
        "compressed": {},
        "bad_rows": {"loss_mask": pa.array([[0, 1], [1, 0]], lists)},
        "bad_length": {"seq_len": pa.array([2, 7], ints)},
        "bad_mask": {"loss_mask": pa.array([[0, 1], [-1]], lists)},
    }
    for name, change in changes.items():
        table = pa.table({k: v for k, v in (columns | change).items() if v is not None})
        options = pa.ipc.IpcWriteOptions(compression="lz4" if name == "compressed" else None)
        with pa.ipc.new_stream(f"{folder}/{name}.arrow", table.schema, options=options) as w:
            w.write_table(table)


def main(root):
    for name in ("tiny", "tiny_wide", "bad_arrow"):
        shutil.rmtree(f"{root}/{name}", ignore_errors=True)
    ints = datasets.List(datasets.Value("int64"))  # the default for input_ids is int32
    text = datasets.Value("string")
    features = datasets.Features({"input_ids": ints, "loss_mask": ints,
                                  "seq_len": datasets.Value("int64"),
                                  "messages": datasets.List({"role": text, "content": text})})
    datasets.Dataset.from_list(list(rows()), features).save_to_disk(f"{root}/tiny", num_shards=2)
    states(f"{root}/tiny/hidden_states")
    wide(f"{root}/tiny_wide")
    bad(f"{root}/bad_arrow")


if __name__ == "__main__":
    main(sys.argv[1])
