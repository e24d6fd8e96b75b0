#!/usr/bin/env python3
"""Random batches with PyTorch's answers, as .npz files for `tandem verify --tensors`.

    python3 sdpa_dumps.py DIR N [FIRST_SEED]      writes DIR/sdpa-SEED.npz
    for f in DIR/*.npz; do tandem verify --tensors $f; done

O comes from torch.nn.functional.scaled_dot_product_attention on the CPU, math path, float64; LSE from logsumexp of the
same logits. What SDPA has no word for is said in its own terms: windows, custom masks and ALiBi as an additive mask, a
sink as one more key whose V is 0, RoPE and scales on the inputs; a soft cap is the one feature computed by hand.
Needs torch >= 2.5 and numpy; nothing in the repository needs either: a small set of these files is kept beside this
script. The last run: 300 files, seeds 1 to 300, torch 2.15.0, 2026-12-01, all ok.
"""
import math
import random
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

STORES = ["separate", "interleaved", "ragged", "latent", "block_table"]
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
         "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def raw(x):
    """A torch tensor as NumPy has it: bfloat16 and 8-bit floats as unsigned integers."""
    if x.dtype == torch.bfloat16:
        return x.view(torch.uint16).numpy()
    if x.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return x.view(torch.uint8).numpy()
    return x.numpy()


def rotate(x, positions, style, theta, scale, dim):
    """x [tokens, heads, d] in float64 turned by its positions."""
    half = dim // 2
    angle = positions[:, None].double() / scale * theta ** (-2.0 * torch.arange(half).double() / dim)
    c, s = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
    y = x.clone()
    first, second = ((slice(0, half), slice(half, dim)) if style == "llama" else
                     (slice(0, dim, 2), slice(1, dim, 2)))
    a, b = x[..., first], x[..., second]
    y[..., first], y[..., second] = a * c - b * s, a * s + b * c
    return y


def alibi_slopes(n):
    p = 2 ** math.floor(math.log2(n))
    return [2.0 ** (-8 * (h + 1) / p) if h < p else 2.0 ** (-4 * (2 * (h - p) + 1) / p) for h in range(n)]


def random_case(r):
    c = {"hk": r.choice([1, 2, 3]), "group": r.choice([1, 2, 4, 7]), "dk": r.choice([8, 16, 40, 64, 80]),
         "store": r.choice(STORES), "layout": r.choice(["NHD", "HND"]), "page": r.choice([1, 2, 5, 16]),
         "q_type": r.choice(["fp32", "fp16", "bf16"]), "kv_type": r.choice(list(TYPES)),
         "causal": r.random() < 0.7, "window": r.choice([-1, -1, 0, 3, 40]), "cap": r.choice([0, 0, 0, 3.0]),
         "alibi": r.random() < 0.2, "sink": r.random() < 0.25, "bits": r.random() < 0.25,
         "rope": r.choice([None, None, "llama", "interleaved"]), "scales": r.random() < 0.3,
         "sm_scale": r.choice([0, 0, 0.25]), "lse_base": r.choice(["e", "2"])}
    c["dv"] = c["dk"] if c["store"] == "interleaved" else r.choice([c["dk"], 8, 24])
    if c["store"] == "latent":
        c["dv"] = min(c["dv"], c["dk"])
    n = r.randint(1, 5)
    c["qo_len"] = [r.choice([1, 1, r.randint(0, 3), r.randint(2, 20)]) for _ in range(n)]
    c["kv_len"] = [r.choice([r.randint(0, 60), q + r.randint(0, 60), q + r.randint(20, 90)]) for q in c["qo_len"]]
    return c


def make_pools(c, g):
    """K and V as stored (float64 of what the type holds), and the arrays of the file."""
    hk, dk, dv, page, kv_len = c["hk"], c["dk"], c["dv"], c["page"], c["kv_len"]
    ragged = c["store"] == "ragged"
    counts = [n if ragged else (n + page - 1) // page for n in kv_len]
    pages = sum(counts) + (0 if ragged else 2)
    shape = (pages, hk) if ragged else (pages, page, hk)
    order = torch.randperm(pages, generator=g)[:sum(counts)] if not ragged else torch.arange(pages)
    nan = float("nan")
    k, v = torch.full((*shape, dk), nan), torch.full((*shape, dv), nan)
    keys, values, at = [], [], 0
    t = TYPES[c["kv_type"]]
    for count, n in zip(counts, kv_len):
        kr, vr = (torch.randn(n, hk, d, generator=g).to(t).float() for d in (dk, dv))
        if c["store"] == "latent":
            vr = kr[..., :dv]
        for i in range(n):
            where = (int(order[at + i]),) if ragged else (int(order[at + i // page]), i % page)
            k[where], v[where] = kr[i], vr[i]
        keys.append(kr.double())
        values.append(vr.double())
        at += count
    heads_first = (lambda x: x.transpose(-3, -2).contiguous()) if c["layout"] == "HND" else (lambda x: x)
    k, v = heads_first(k).to(t), heads_first(v).to(t)
    out = {"kv_indptr": np.cumsum([0] + counts).astype(np.int32)}
    if c["store"] == "interleaved":
        out["kv"] = raw(torch.stack([k, v], dim=1).contiguous())
    else:
        out["k"] = raw(k)
        if c["store"] == "latent":
            out["head_dim_vo"] = np.int64(dv)
        else:
            out["v"] = raw(v)
    if c["store"] == "block_table":
        table = np.full((len(kv_len), max(counts + [1])), -1, dtype=np.int32)
        for i, count in enumerate(counts):
            begin = out["kv_indptr"][i]
            table[i, :count] = order[begin:begin + count].numpy()
        del out["kv_indptr"]
        out["block_table"], out["kv_len"] = table, np.array(kv_len, dtype=np.int64)
    elif not ragged:
        out["kv_indices"] = order.numpy().astype(np.int64)
        out["last_page_len"] = np.array([n - (m - 1) * page if m else 1 for n, m in zip(kv_len, counts)], np.int32)
    return keys, values, out


def attend(c, q, k, v, first_bit, sink, slopes, scale):
    """One request in float64: q [t, H, dk], k [n, hk, dk] -> o [t, H, dv], lse [t, H]."""
    t, h, n = q.shape[0], q.shape[1], k.shape[0]
    i, j = torch.arange(t)[:, None] + n - t, torch.arange(n)[None, :]
    sees = torch.ones(t, n, dtype=torch.bool)
    if c["causal"]:
        sees &= j <= i
    if c["window"] >= 0:
        sees &= j >= i - c["window"]
    if first_bit is not None:
        sees &= first_bit
    bias = torch.zeros(h, t, n, dtype=torch.float64).masked_fill(~sees, -math.inf)
    if slopes is not None:
        bias = bias + torch.tensor(slopes, dtype=torch.float64)[:, None, None] * (j - i)
    qh = q.transpose(0, 1)
    kh, vh = (x.transpose(0, 1).repeat_interleave(c["group"], 0) for x in (k, v))
    if c["cap"]:
        s = qh @ kh.transpose(1, 2) * scale
        if slopes is not None:
            s = s + torch.tensor(slopes, dtype=torch.float64)[:, None, None] * (j - i)
        s = (c["cap"] * torch.tanh(s / c["cap"])).masked_fill(~sees, -math.inf)
    else:
        s = qh @ kh.transpose(1, 2) * scale + bias
    if sink is not None:
        s = torch.cat([s, sink[:, None, None].expand(h, t, 1)], 2)
    lse = torch.logsumexp(s, 2)
    if c["cap"]:
        p = torch.nan_to_num(torch.softmax(s, 2))
        o = p[..., :n] @ vh
    else:
        if sink is not None:
            kh = torch.cat([kh, torch.zeros_like(qh[:, :1, :])], 1)
            vh = torch.cat([vh, torch.zeros(h, 1, vh.shape[2], dtype=torch.float64)], 1)
            bias = torch.cat([bias, sink[:, None, None].expand(h, t, 1)], 2)
        with sdpa_kernel(SDPBackend.MATH):
            o = F.scaled_dot_product_attention(qh[None], kh[None], vh[None], attn_mask=bias[None], scale=scale)[0]
        o = torch.nan_to_num(o)  # rows that see nothing
    return o.transpose(0, 1), lse.transpose(0, 1)


def dump(seed, path):
    r, g = random.Random(seed), torch.Generator().manual_seed(seed)
    c = random_case(r)
    hq, n = c["hk"] * c["group"], len(c["qo_len"])
    keys, values, out = make_pools(c, g)
    q = torch.randn(sum(c["qo_len"]), hq, c["dk"], generator=g).to(TYPES[c["q_type"]])
    out.update(q=raw(q), dtype=c["q_type"], kv_dtype=c["kv_type"], layout=c["layout"], causal=c["causal"],
               qo_indptr=np.cumsum([0] + c["qo_len"]).astype(np.int32), lse_base=c["lse_base"])
    if c["window"] >= 0:
        out["window_left"] = c["window"]
    if c["cap"]:
        out["logits_soft_cap"] = c["cap"]
    if c["sm_scale"]:
        out["sm_scale"] = c["sm_scale"]
    scale = c["sm_scale"] or 1 / math.sqrt(c["dk"])
    slopes = alibi_slopes(hq) if c["alibi"] else None
    if slopes:
        out["alibi"] = True
    sink = None
    if c["sink"]:
        sink = torch.randn(hq, generator=g)
        out["sink"] = sink.numpy()
        sink = sink.double()
    ks = vs = torch.ones(c["hk"], dtype=torch.float64)
    if c["scales"]:
        ks, vs = (torch.rand(c["hk"], generator=g) + 0.5 for _ in range(2))
        out["k_scale"], out["v_scale"] = ks.numpy(), vs.numpy()
        ks, vs = ks.double(), vs.double()
    masks = [None] * n
    if c["bits"]:
        masks = [torch.rand(a, b, generator=g) < 0.6 for a, b in zip(c["qo_len"], c["kv_len"])]
        packed = [np.packbits(m.numpy().reshape(-1), bitorder="little") for m in masks]
        out["custom_mask"] = np.concatenate(packed) if packed else np.zeros(0, np.uint8)
        out["mask_indptr"] = np.cumsum([0] + [len(p) for p in packed]).astype(np.int64)
    theta, rope_scale, dim = 500000.0, 2.0, c["dk"]
    if c["rope"]:
        out.update(rope_style=c["rope"], rope_theta=theta, rope_scale=rope_scale)
    os, lses = [], []
    for i in range(n):
        a, b = out["qo_indptr"][i], out["qo_indptr"][i + 1]
        qi, k = q[a:b].double(), keys[i] * ks[:, None]
        if c["rope"]:
            t, m = c["qo_len"][i], c["kv_len"][i]
            qi = rotate(qi, torch.arange(m - t, m), c["rope"], theta, rope_scale, dim)
            k = rotate(k, torch.arange(m), c["rope"], theta, rope_scale, dim)
        o, lse = attend(c, qi, k, values[i] * vs[:, None], masks[i], sink, slopes, scale)
        os.append(o)
        lses.append(lse)
    out["o"] = torch.cat(os).numpy()
    out["lse"] = torch.cat(lses).numpy() / (math.log(2) if c["lse_base"] == "2" else 1)
    np.savez_compressed(path, **{name: np.asarray(x) for name, x in out.items()})


if __name__ == "__main__":
    first = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    for s in range(first, first + int(sys.argv[2])):
        dump(s, f"{sys.argv[1]}/sdpa-{s}.npz")
