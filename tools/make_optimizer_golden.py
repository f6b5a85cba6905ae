#!/usr/bin/env python3
"""Write tests/data/optimizers.json: what torch's AdamW, Muon and clip_grad_norm_ do to small arrays.

Run with torch 2.10 (CPU):  python3 tools/make_optimizer_golden.py tests/data/optimizers.json
Each case lists the gradients of every step and the arrays after the last one.  `ns` names the type
of Muon's Newton-Schulz products: bfloat16 is torch as shipped, the others have its cast removed.
"""
import inspect
import json
import sys

import torch
import torch.optim._muon as muon_module

STEPS = 4
SHIPPED = muon_module._zeropower_via_newtonschulz


def without_cast():
    source = inspect.getsource(SHIPPED)
    assert source.count("grad.bfloat16()") == 1
    namespace = dict(vars(muon_module))
    exec(source.replace("grad.bfloat16()", "grad.clone()"), namespace)
    return namespace["_zeropower_via_newtonschulz"]


def numbers(tensor):
    return tensor.detach().double().flatten().tolist()


def case(name, optimizer, dtype, shapes, seed, clip=0.0, ns=None, **options):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda shape, scale: (torch.randn(shape, generator=generator) * scale).to(dtype)
    params = [torch.nn.Parameter(draw(s, 0.5)) for s in shapes]
    muon_module._zeropower_via_newtonschulz = SHIPPED if ns in (None, "bfloat16") else without_cast()
    opt = optimizer(params, **options)
    out = {
        "name": name,
        "optimizer": optimizer.__name__.lower(),
        "dtype": str(dtype).split(".")[1],
        "ns": ns or "",
        "clip": clip,
        "options": {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()},
        "shapes": [list(s) for s in shapes],
        "init": [numbers(p) for p in params],
        "grads": [],
        "norms": [],
    }
    for step in range(STEPS):
        for p in params:
            p.grad = draw(p.shape, 0.1 * (step + 1))
        out["grads"].append([numbers(p.grad) for p in params])
        out["norms"].append(
            float(torch.nn.utils.clip_grad_norm_(params, clip if clip else float("inf")))
        )
        opt.step()
    out["params"] = [numbers(p) for p in params]
    keys = ["momentum_buffer"] if optimizer is torch.optim.Muon else ["exp_avg", "exp_avg_sq"]
    out["state"] = [{k: numbers(opt.state[p][k]) for k in keys} for p in params]
    return out


def main():
    torch.set_num_threads(1)
    f32, f64 = torch.float32, torch.float64
    adamw, muon = torch.optim.AdamW, torch.optim.Muon
    usual = dict(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    other = dict(lr=3e-2, betas=(0.3, 0.7), eps=1e-3, weight_decay=0.2)
    wide, tall, square = (6, 10), (11, 5), (7, 7)
    match = dict(lr=0.02, momentum=0.95, weight_decay=0.1, ns_steps=5, adjust_lr_fn="match_rms_adamw")
    original = dict(lr=0.05, momentum=0.4, weight_decay=0.3, ns_steps=3, adjust_lr_fn="original")
    cases = []
    for dtype, suffix in ((f32, "f32"), (f64, "f64")):
        cases += [
            case(f"adamw_{suffix}", adamw, dtype, [(5, 3), (4, 1)], 1, **usual),
            case(f"adamw_clipped_{suffix}", adamw, dtype, [(5, 3), (4, 1)], 2, clip=0.25, **usual),
            case(f"adamw_other_betas_{suffix}", adamw, dtype, [(3, 3)], 3, **other),
        ]
        for ns in ("bfloat16", "float32" if dtype is f32 else "float64"):
            cases += [
                case(f"muon_{suffix}_ns_{ns}", muon, dtype, [wide, tall, square], 4, ns=ns, **match),
                case(f"muon_original_{suffix}_ns_{ns}", muon, dtype, [wide, tall], 5, clip=0.5, ns=ns,
                     **original),
            ]
    text = json.dumps({"torch": torch.__version__, "cases": cases}, separators=(",", ":"))
    with open(sys.argv[1], "w") as file:
        file.write(text.replace('{"name"', '\n{"name"') + "\n")


main()
