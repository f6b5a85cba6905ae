#!/usr/bin/env python3
"""Runs speculators 0.9 on examples/smollm2-excerpt and writes its numbers for tests/test_golden.c:

    make_excerpt_golden.py EXAMPLE INIT OUT

INIT is the folder that `accrue train --dry-run` writes with the options of test_golden.c; should it
ever change, the numbers must be made anew.  OUT gets batch_plan.json, adamw.json and muon.json.
Needs the packages speculators==0.9.0, torch, datasets and safetensors; no accelerator."""
import collections
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zlib

LENGTH, DRAFT = 128, 256
SAMPLES, STRIDE = 64, 104729  # element (j * STRIDE) mod n for j below SAMPLES
RUNS = {
    "adamw": ["--optimizer", "adamw", "--lr", "1e-4", "--scheduler-type", "cosine",
              "--scheduler-warmup-steps", "2", "--epochs", "2"],
    "muon": ["--optimizer", "muon", "--lr", "3e-4", "--scheduler-type", "linear",
             "--scheduler-warmup-ratio", "0.2", "--epochs", "1"],
}


def prepare(example, init, work):
    """What the peer wants beside the example: token counts, and start weights in f32."""
    import datasets
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(f"{example}/dataset", f"{work}/dataset")
    shutil.copytree(f"{example}/verifier", f"{work}/verifier")
    counts = collections.Counter()
    for row in datasets.load_from_disk(f"{work}/dataset").with_format(None):
        counts.update(t for t, m in zip(row["input_ids"], row["loss_mask"]) if m)
    torch.save(dict(counts), f"{work}/dataset/token_freq.pt")
    os.makedirs(f"{work}/init")
    with open(f"{init}/config.json") as f:
        config = json.load(f)
    config["dtype"] = "float32"
    with open(f"{work}/init/config.json", "w") as f:
        json.dump(config, f)
    weights = load_file(f"{init}/model.safetensors")
    save_file({n: t.float() if t.is_floating_point() else t for n, t in weights.items()},
              f"{work}/init/model.safetensors", metadata={"format": "pt"})


def train(name, work):
    """One run in this process; its records and final weights into work/<name>.json."""
    import torch
    torch.accelerator.synchronize = lambda *a, **k: None
    from safetensors.torch import load_file
    from speculators.train import checkpointer, cli, trainer
    from speculators.train import distributed_batch_sampler as sampling
    from speculators.train.config import TrainConfig

    trainer.get_local_rank = lambda: "cpu"
    checkpointer.get_current_device = lambda: "cpu"
    records, batches, model = [], [], []
    init = trainer.Trainer.__init__
    order = sampling.MultipackDistributedBatchSamplerV2.__iter__

    def on_cpu(self, *a, **k):
        current = torch.accelerator.current_accelerator
        torch.accelerator.current_accelerator = lambda *a, **k: torch.device("cpu")
        try:
            init(self, *a, **k)
        finally:
            torch.accelerator.current_accelerator = current
        self.device_type = "cpu"
        model.append(self.model)

    def noted(self):
        micro_batches = [[int(i) for i in b] for b in self._generate_batches(self.epoch)]
        batches.append((len(self.lengths), micro_batches))
        return iter(micro_batches)

    class Keep(logging.Handler):
        def emit(self, record):
            if isinstance(record.msg, dict):
                records.append(record.msg)

    trainer.Trainer.__init__ = on_cpu
    sampling.MultipackDistributedBatchSamplerV2.__iter__ = noted
    log = logging.getLogger("speculators.metrics")
    setup = cli.setup_metric_logger

    def setup_and_keep(*a, **k):
        result = setup(*a, **k)
        log.setLevel(logging.INFO)
        log.addHandler(Keep())
        return result

    cli.setup_metric_logger = setup_and_keep
    cli.main(TrainConfig.resolve([
        "--verifier-name-or-path", f"{work}/verifier", "--data-path", f"{work}/dataset",
        "--from-pretrained", f"{work}/init", "--on-missing", "raise", "--num-workers", "0",
        "--total-seq-len", str(LENGTH), "--draft-vocab-size", str(DRAFT),
        "--draft-attn-impl", "eager", "--loss-implementation", "eager",
        "--hidden-states-dtype", "float32", "--speculator-type", "eagle3",
        "--save-path", f"{work}/{name}", "--log-dir", f"{work}/log"] + RUNS[name]))
    start = load_file(f"{work}/init/model.safetensors")
    weights = {}
    for key, p in model[0].named_parameters():
        if p.requires_grad:
            w, n = p.detach().double().flatten(), p.numel()
            moved = (w - start[key].double().flatten()).norm().item()
            weights[key] = {"elements": n, "moved": moved,
                            "sample": [w[j * STRIDE % n].item() for j in range(SAMPLES)]}
    with open(f"{work}/{name}.json", "w") as f:
        json.dump({"records": records, "batches": batches, "weights": weights}, f)


def collect(example, init, work, out):
    os.makedirs(out, exist_ok=True)
    with open(f"{init}/model.safetensors", "rb") as f:
        checksum = zlib.crc32(f.read())
    for name in RUNS:
        with open(f"{work}/{name}.json") as f:
            run = json.load(f)
        rows = max(n for n, _ in run["batches"])
        plan = {"total_seq_len": LENGTH,
                "train": [b for n, b in run["batches"] if n == rows],
                "val": [[[rows + i for i in m] for m in b]
                        for n, b in run["batches"] if n != rows]}
        steps = [dict(lr=r["lr"], **r["train"]) for r in run["records"] if "train" in r]
        val = [r["val"] for r in run["records"] if "val" in r]
        if name == "adamw":  # the longer one
            with open(f"{out}/batch_plan.json", "w") as f:
                json.dump(plan, f)
                f.write("\n")
        with open(f"{out}/{name}.json", "w") as f:
            json.dump({"options": RUNS[name], "init_crc32": checksum, "train": steps, "val": val,
                       "weights": run["weights"]}, f, indent=0)
            f.write("\n")


def main(example, init, out):
    with tempfile.TemporaryDirectory() as work:
        prepare(example, init, work)
        for name in RUNS:
            subprocess.run([sys.executable, __file__, "--run", name, work], check=True)
        collect(example, init, work, out)


if __name__ == "__main__":
    if sys.argv[1] == "--run":
        train(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
