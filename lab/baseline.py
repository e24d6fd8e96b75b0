#!/usr/bin/env python3
"""baseline.py: other people's attention over a batch that tandem wrote, timed on the GPU that is here.

    baseline.py --in tensors.npz [--sample sample.npz] [--out DIR] [--runs N] [--cpu]

tensors.npz is what README, "Tensors in and out", describes. sample.npz: row [n] (token * num_qo_heads +
head), o [n, head_dim] and lse [n]; without it the o of tensors.npz is what answers are compared with. One
JSON line a peer on stdout, times in microseconds, and in DIR/PEER.npz its own o (and lse, natural log) at
those rows, float32. What cannot run says why in its line. A package that is not installed has no
line, but a remark on stderr.

--cpu: no times. PyTorch's plain arithmetic in double checks how pages are gathered, requests grouped, masks
aligned.

Exit status: 0; 1 --cpu found a difference; 2 bad input; 3 the machine lacks PyTorch or a GPU.
"""

import argparse
import contextlib
import importlib
import json
import os
import sys


def lacking(text):
    print(f"baseline.py: {text}", file=sys.stderr)
    sys.exit(3)


try:
    import numpy as np
except ImportError:
    lacking("numpy: not installed: expected a python3 with numpy and torch (TANDEM_PYTHON)")

torch = None  # imported by main: the functions of the next two sections work on NumPy arrays alone


class Unsupported(Exception):
    """A peer cannot do this batch; the text says what it lacks."""


# ---- lengths and pages: pure -------------------------------------------------------------------------------


def nhd(pool, layout):
    """[.., heads, positions, dim] (HND) -> [.., positions, heads, dim]; NHD as it is. A view."""
    return pool.swapaxes(-3, -2) if layout == "HND" else pool


def gather_pages(pool, pages, kv_len):
    """Pool [pages, page_size, heads, dim] -> a request's keys in a row, [kv_len, heads, dim]."""
    taken = pool[pages]
    return taken.reshape((-1,) + tuple(taken.shape[2:]))[:kv_len]


def lengths_of(indptr):
    """[0, 3, 3, 7] -> [3, 0, 4]."""
    return [int(b) - int(a) for a, b in zip(indptr[:-1], indptr[1:])]


def indptr_of(lengths):
    """[3, 0, 4] -> [0, 3, 3, 7]."""
    return [0] + [int(x) for x in np.cumsum(np.asarray(lengths, dtype=np.int64))]


def last_page_len(kv_len, page_size):
    """Keys in the last page of a request that has some: 17 keys in pages of 16 -> 1, 16 -> 16."""
    return (kv_len - 1) % page_size + 1


def group_by_length(requests, qo_len, kv_len):
    """{(qo_len, kv_len): [request, ..]}: what one batched call can do; prefills first, decodes behind."""
    groups = {}
    for r in sorted(requests, key=lambda r: (qo_len[r] == 1, qo_len[r], kv_len[r])):
        groups.setdefault((qo_len[r], kv_len[r]), []).append(r)
    return groups


def causal_kind(qo_len, kv_len, causal):
    """How to say "row i sees keys [0, kv_len - qo_len + i + 1)": nothing to say for one row at the end; where
    the two lengths are equal, top-left and bottom-right are the same."""
    if not causal or qo_len == 1:
        return "none"
    return "square" if qo_len == kv_len else "bottom_right"


def lower_right(qo_len, kv_len):
    """[qo_len, kv_len] of bool: may row i see key j?"""
    return np.arange(kv_len)[None, :] <= np.arange(qo_len)[:, None] + (kv_len - qo_len)


def block_table(kv_indptr, kv_indices, requests):
    """[requests, most pages] int32, filled up with page 0, which nobody reads there."""
    pages = [kv_indices[kv_indptr[r] : kv_indptr[r + 1]] for r in requests]
    table = np.zeros((len(pages), max(len(p) for p in pages)), dtype=np.int32)
    for i, p in enumerate(pages):
        table[i, : len(p)] = p
    return table


def tokens_of(qo_indptr, requests):
    """Token numbers of these requests, one request behind another."""
    parts = [np.arange(qo_indptr[r], qo_indptr[r + 1]) for r in requests]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


# ---- the batch ---------------------------------------------------------------------------------------------


def text(file, name, default):
    return str(file[name]) if name in file else default


def number(file, name, default):
    return float(file[name]) if name in file else default


def dtype_name(array, named):
    if named:
        return named
    return {"f2": "fp16", "f4": "fp32"}.get(array.dtype.str[1:], "bf16")


class Batch:
    """What the file says: raw arrays, lengths, the page table, and the features that a peer must have."""

    def __init__(self, file):
        self.q = file["q"]
        layout = text(file, "layout", "NHD")
        one = file["kv"] if "kv" in file else None
        self.k = nhd(one[:, 0] if one is not None else file["k"], layout)
        self.v = (
            None
            if one is None and "v" not in file
            else nhd(one[:, 1] if one is not None else file["v"], layout)
        )
        self.dtype = dtype_name(self.q, text(file, "dtype", ""))
        self.kv_dtype = dtype_name(self.k, text(file, "kv_dtype", ""))
        self.ragged = self.k.ndim == 3
        self.qo_indptr = [int(x) for x in file["qo_indptr"]]
        self.qo_len = lengths_of(self.qo_indptr)
        self.kv_len = [int(x) for x in file["kv_len"]]
        self.kv_indptr = [int(x) for x in file["kv_indptr"]]  # in pages; ragged: in tokens
        self.kv_indices = file["kv_indices"] if "kv_indices" in file else None
        self.page_size = 1 if self.ragged else self.k.shape[1]
        self.heads, self.kv_heads, self.head_dim = self.q.shape[1], self.k.shape[-2], self.q.shape[2]
        self.causal = bool(number(file, "causal", 1))
        self.window_left = int(number(file, "window_left", -1))
        self.soft_cap = number(file, "logits_soft_cap", 0)
        self.sm_scale = number(file, "sm_scale", 0) or self.head_dim**-0.5
        self.active = [r for r, n in enumerate(self.qo_len) if n > 0 and self.kv_len[r] > 0]
        self.features = self.find_features(file)

    def find_features(self, file):
        """Beyond plain attention of fp16 or bf16 over one head_dim, in the words of an error."""
        found = {
            "a sliding window": self.window_left >= 0,
            "a soft cap": self.soft_cap > 0,
            "ALiBi": number(file, "alibi", 0) != 0,
            "an attention sink": "sink" in file,
            "scales of K or V": "k_scale" in file or "v_scale" in file,
            "RoPE inside attention": "rope_style" in file,
            "a custom mask": "custom_mask" in file,
            "a latent cache": self.v is None,
            "head_dim_vo other than head_dim": self.v is not None and self.v.shape[-1] != self.head_dim,
            "fp32": "fp32" in (self.dtype, self.kv_dtype),
            "8-bit K and V": self.kv_dtype.startswith("fp8"),
            "K and V of another type than Q": self.kv_dtype != self.dtype,
            "ragged K and V": self.ragged,
            "rows without keys": any(
                self.causal and 0 < self.kv_len[r] < self.qo_len[r] for r in self.active
            ),
        }
        return [name for name, is_there in found.items() if is_there]

    def pages(self, r):
        return self.kv_indices[self.kv_indptr[r] : self.kv_indptr[r + 1]].astype(np.int64)

    def keys(self, pool, r):
        """A request's K or V in a row, of the pool as array or tensor."""
        if self.ragged:
            return pool[self.kv_indptr[r] : self.kv_indptr[r] + self.kv_len[r]]
        return gather_pages(pool, self.pages(r), self.kv_len[r])


class Sample:
    """Rows to check: numbers among all, what the oracle says."""

    def __init__(self, sample, tensors):
        if sample is None and "o" not in tensors:
            raise SystemExit("baseline.py: expected --sample, or an o in --in")
        source = tensors if sample is None else sample
        self.row = np.arange(source["o"].shape[0] * source["o"].shape[1]) if sample is None else source["row"]
        self.o = source["o"].reshape(len(self.row), -1).astype(np.float64)


# ---- tensors -----------------------------------------------------------------------------------------------


def to_tensor(array, dtype, device):
    """Raw bits to a tensor: bf16 comes as uint16."""
    if dtype == "bf16":
        return torch.from_numpy(array.view(np.int16)).to(device).view(torch.bfloat16)
    return torch.from_numpy(array).to(device)


class Tensors:
    """Q and the pools on the device; page tails and pages nobody owns, which hold NaN, as zeros: engines'
    caches hold finite leftovers there."""

    def __init__(self, b, device, widen):
        self.device = device
        self.q, self.k, self.v = (
            to_tensor(*x, device) for x in ((b.q, b.dtype), (b.k, b.kv_dtype), (b.v, b.kv_dtype))
        )
        if widen:
            self.q, self.k, self.v = self.q.double(), self.k.double(), self.v.double()
        for pool in (self.k, self.v):
            pool.nan_to_num_(nan=0.0)

    def ints(self, values):
        return torch.tensor(np.asarray(values, dtype=np.int32), device=self.device)


class Peer:
    """run() -> results, nothing else is timed; collect(results) -> [(tokens, o [tokens, heads, dim], lse)],
    where lse [tokens, heads] may be None."""

    def __init__(self, run, collect, options):
        self.run, self.collect, self.options = run, collect, options


def at_sample(b, sample, parts):
    """Results of some tokens each -> o [n, dim], lse [n] or None at the sample. No keys: 0, -inf."""
    device = parts[0][1].device if parts else "cpu"
    wide = parts[0][1].dtype if parts and parts[0][1].dtype == torch.float64 else torch.float32
    o = torch.zeros((b.qo_indptr[-1], b.heads, b.head_dim), dtype=wide, device=device)
    lse = torch.full((b.qo_indptr[-1], b.heads), -np.inf, device=device)
    for tokens, part, part_lse in parts:
        index = torch.from_numpy(np.asarray(tokens)).to(device)
        o[index] = part.to(wide)
        if part_lse is not None:
            lse[index] = part_lse.float()
    rows = torch.from_numpy(sample.row.astype(np.int64)).to(device)
    picked = o.reshape(-1, b.head_dim)[rows].cpu().numpy()
    has_lse = bool(parts) and all(part_lse is not None for _, _, part_lse in parts)
    return picked, lse.reshape(-1)[rows].cpu().numpy() if has_lse else None


# ---- PyTorch -----------------------------------------------------------------------------------------------


def call_of(b, t, requests, shape, dense):
    """Arguments of one scaled_dot_product_attention: q, k, v [n, heads, length, dim], k and v contiguous."""
    from torch.nn.attention.bias import causal_lower_right

    qo_len, kv_len = shape
    kind = causal_kind(qo_len, kv_len, b.causal)
    q = torch.stack([t.q[b.qo_indptr[r] : b.qo_indptr[r + 1]] for r in requests])
    k, v = (torch.stack([b.keys(pool, r) for r in requests]).contiguous() for pool in (t.k, t.v))
    args = {"is_causal": kind == "square", "scale": b.sm_scale, "enable_gqa": b.heads != b.kv_heads}
    if kind == "bottom_right" and dense:
        seen = torch.from_numpy(lower_right(qo_len, kv_len)).to(t.device)
        bias = torch.zeros(seen.shape, dtype=t.q.dtype, device=t.device).masked_fill_(~seen, -np.inf)
        args["attn_mask"] = bias.expand(len(requests), b.heads, qo_len, kv_len)
    elif kind == "bottom_right":
        args["attn_mask"] = causal_lower_right(qo_len, kv_len)
    return [x.transpose(1, 2) for x in (q, k, v)], args


def torch_serial(b, t, backend, dense):
    """Prefills, then decodes, on one stream; requests of one length in one call."""
    from torch.nn.attention import sdpa_kernel

    attention = torch.nn.functional.scaled_dot_product_attention
    groups = group_by_length(b.active, b.qo_len, b.kv_len)
    calls = [call_of(b, t, requests, shape, dense) for shape, requests in groups.items()]

    def run():
        with sdpa_kernel(backend):
            return [attention(*tensors, **args) for tensors, args in calls]

    def collect(results):
        return [
            (tokens_of(b.qo_indptr, requests), o.transpose(1, 2).reshape(-1, b.heads, b.head_dim), None)
            for requests, o in zip(groups.values(), results)
        ]

    decodes = sum(qo_len == 1 for qo_len, _ in groups)
    options = f"kv=contiguous prefill_calls={len(groups) - decodes} decode_calls={decodes}"
    return Peer(run, collect, options + (" mask=dense" if dense else ""))


def needs_bottom_right(b):
    return any(causal_kind(b.qo_len[r], b.kv_len[r], b.causal) == "bottom_right" for r in b.active)


def torch_cudnn_serial(b, t):
    if needs_bottom_right(b):
        raise Unsupported(
            "cuDNN's causal mask in PyTorch is top-left: qo_len < kv_len needs a dense mask, "
            "see torch_cudnn_mask_serial"
        )
    return torch_serial(b, t, torch.nn.attention.SDPBackend.CUDNN_ATTENTION, False)


def torch_cudnn_mask_serial(b, t):
    """Only where a mask is needed: elsewhere it would be torch_cudnn_serial again."""
    if not needs_bottom_right(b):
        return None
    return torch_serial(b, t, torch.nn.attention.SDPBackend.CUDNN_ATTENTION, True)


def torch_flash_serial(b, t):
    return torch_serial(b, t, torch.nn.attention.SDPBackend.FLASH_ATTENTION, False)


def torch_math_serial(b, t):
    return torch_serial(b, t, torch.nn.attention.SDPBackend.MATH, False)


def torch_flash_varlen(b, t):
    """One call for the whole batch over K and V in a row. Its causal is bottom-right; lse [heads, tokens]."""
    tokens = tokens_of(b.qo_indptr, b.active)
    q = t.q[torch.from_numpy(tokens).to(t.device)]
    k, v = (torch.cat([b.keys(pool, r) for r in b.active]).contiguous() for pool in (t.k, t.v))
    qo, kv = [b.qo_len[r] for r in b.active], [b.kv_len[r] for r in b.active]
    cu_q, cu_k = t.ints(indptr_of(qo)), t.ints(indptr_of(kv))
    args = {"scale": b.sm_scale}
    if b.window_left >= 0:
        args.update(window_size_left=b.window_left, window_size_right=0 if b.causal else -1)

    def run():
        return torch.ops.aten._flash_attention_forward(
            q, k, v, cu_q, cu_k, max(qo), max(kv), 0.0, b.causal, False, **args
        )[:2]

    def collect(results):
        o, lse = results
        return [(tokens, o, lse.T if lse.dim() == 2 and lse.shape[0] == b.heads else None)]

    return Peer(run, collect, "kv=contiguous calls=1")


# ---- FlashInfer --------------------------------------------------------------------------------------------


def workspace(t):
    return torch.empty(512 << 20, dtype=torch.uint8, device=t.device)


def tables(b, t, requests):
    """qo_indptr, kv_indptr, kv_indices, last_page_len of some requests."""
    pages = [b.pages(r) for r in requests]
    return (
        t.ints(indptr_of([b.qo_len[r] for r in requests])),
        t.ints(indptr_of([len(p) for p in pages])),
        t.ints(np.concatenate(pages)),
        t.ints([last_page_len(b.kv_len[r], b.page_size) for r in requests]),
    )


def part_of(b, t, requests):
    """Token numbers and Q of some requests, packed."""
    tokens = tokens_of(b.qo_indptr, requests)
    return tokens, t.q[torch.from_numpy(tokens).to(t.device)]


def split_roles(b):
    return ([r for r in b.active if b.qo_len[r] > 1], [r for r in b.active if b.qo_len[r] == 1])


def natural(lse):
    return lse * float(np.log(2.0))


def fi_options(b, t):
    return {
        "sm_scale": b.sm_scale,
        "window_left": b.window_left,
        "q_data_type": t.q.dtype,
        "kv_data_type": t.k.dtype,
    }


def fi_prefill_call(b, t, requests):
    import flashinfer

    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(t), "NHD")
    wrapper.plan(
        *tables(b, t, requests),
        b.heads,
        b.kv_heads,
        b.head_dim,
        b.page_size,
        causal=b.causal,
        logits_soft_cap=b.soft_cap or None,
        **fi_options(b, t),
    )
    tokens, q = part_of(b, t, requests)
    return tokens, lambda: wrapper.run(q, (t.k, t.v), return_lse=True)


def fi_decode_call(b, t, requests):
    import flashinfer

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace(t), "NHD", use_tensor_cores=b.heads // b.kv_heads >= 4
    )
    wrapper.plan(
        *tables(b, t, requests)[1:],
        b.heads,
        b.kv_heads,
        b.head_dim,
        b.page_size,
        logits_soft_cap=b.soft_cap or None,
        **fi_options(b, t),
    )
    tokens, q = part_of(b, t, requests)
    return tokens, lambda: wrapper.run(q, (t.k, t.v), return_lse=True)


def fi_calls(calls):
    """Calls one behind another; each gives o and log2 of the sum."""
    return Peer(
        lambda: [run() for _, run in calls],
        lambda results: [(tokens, o, natural(lse)) for (tokens, _), (o, lse) in zip(calls, results)],
        "kv=paged plan=untimed",
    )


def flashinfer_prefill(b, t):
    return fi_calls([fi_prefill_call(b, t, b.active)])


def flashinfer_serial(b, t):
    prefills, decodes = split_roles(b)
    calls = [fi_prefill_call(b, t, prefills)] if prefills else []
    return fi_calls(calls + ([fi_decode_call(b, t, decodes)] if decodes else []))


def flashinfer_batch_pod(b, t):
    import flashinfer

    prefills, decodes = split_roles(b)
    if not prefills or not decodes:
        raise Unsupported("needs a prefill and a decode")
    wrapper = flashinfer.BatchPODWithPagedKVCacheWrapper(workspace(t), "NHD")
    wrapper.plan(
        *tables(b, t, prefills),
        *tables(b, t, decodes),
        b.heads,
        b.kv_heads,
        b.head_dim,
        b.page_size,
        **fi_options(b, t),
    )
    (tokens_p, q_p), (tokens_d, q_d) = part_of(b, t, prefills), part_of(b, t, decodes)
    return Peer(
        lambda: wrapper.run(q_p, (t.k, t.v), q_d, (t.k, t.v), causal_p=b.causal),
        lambda o: [(tokens_p, o[0], None), (tokens_d, o[1], None)],
        "kv=paged plan=untimed",
    )


def flashinfer_persistent(b, t):
    import flashinfer

    wrapper = flashinfer.BatchAttention(kv_layout="NHD")
    qo_indptr, kv_indptr, kv_indices, _ = tables(b, t, b.active)
    wrapper.plan(
        qo_indptr,
        kv_indptr,
        kv_indices,
        t.ints([b.kv_len[r] for r in b.active]),
        b.heads,
        b.kv_heads,
        b.head_dim,
        b.head_dim,
        b.page_size,
        causal=b.causal,
        sm_scale=b.sm_scale,
        q_data_type=t.q.dtype,
        kv_data_type=t.k.dtype,
    )
    tokens, q = part_of(b, t, b.active)
    return Peer(
        lambda: wrapper.run(q, (t.k, t.v)), lambda x: [(tokens, x[0], natural(x[1]))], "kv=paged plan=untimed"
    )


# ---- FlashAttention ----------------------------------------------------------------------------------------


def fa_arguments(b, t):
    tokens, q = part_of(b, t, b.active)
    qo = [b.qo_len[r] for r in b.active]
    table = t.ints(block_table(b.kv_indptr, b.kv_indices, b.active))
    common = {
        "softmax_scale": b.sm_scale,
        "causal": b.causal,
        "softcap": b.soft_cap,
        "window_size": (b.window_left, 0 if b.causal and b.window_left >= 0 else -1),
    }
    return tokens, q, qo, table, common


def flash_attn_2(b, t):
    from flash_attn import flash_attn_varlen_func

    tokens, q, qo, table, common = fa_arguments(b, t)
    kv = [b.kv_len[r] for r in b.active]
    cu_q, cu_k = t.ints(indptr_of(qo)), t.ints(indptr_of(kv))
    return Peer(
        lambda: flash_attn_varlen_func(
            q, t.k, t.v, cu_q, cu_k, max(qo), max(kv), block_table=table, **common
        ),
        lambda o: [(tokens, o, None)],
        "kv=paged calls=1",
    )


def flash_attn_3(b, t):
    from flash_attn_interface import flash_attn_with_kvcache

    tokens, q, qo, table, common = fa_arguments(b, t)
    kv, cu_q = t.ints([b.kv_len[r] for r in b.active]), t.ints(indptr_of(qo))
    return Peer(
        lambda: flash_attn_with_kvcache(
            q, t.k, t.v, cache_seqlens=kv, page_table=table, cu_seqlens_q=cu_q, max_seqlen_q=max(qo), **common
        ),
        lambda o: [(tokens, o[0] if isinstance(o, tuple) else o, None)],
        "kv=paged calls=1",
    )


# Peer, the package it needs, the features beyond the plain that it has, its builder.
PEERS = [
    ("torch_cudnn_serial", "torch", ["ragged K and V"], torch_cudnn_serial),
    ("torch_cudnn_mask_serial", "torch", ["ragged K and V"], torch_cudnn_mask_serial),
    ("torch_flash_serial", "torch", ["ragged K and V", "rows without keys"], torch_flash_serial),
    (
        "torch_flash_varlen",
        "torch",
        ["ragged K and V", "rows without keys", "a sliding window"],
        torch_flash_varlen,
    ),
    (
        "flashinfer_prefill",
        "flashinfer",
        ["rows without keys", "a sliding window", "a soft cap"],
        flashinfer_prefill,
    ),
    (
        "flashinfer_serial",
        "flashinfer",
        ["rows without keys", "a sliding window", "a soft cap"],
        flashinfer_serial,
    ),
    ("flashinfer_batch_pod", "flashinfer", ["rows without keys", "a sliding window"], flashinfer_batch_pod),
    ("flashinfer_persistent", "flashinfer", ["rows without keys"], flashinfer_persistent),
    ("flash_attn_2", "flash_attn", ["rows without keys", "a sliding window", "a soft cap"], flash_attn_2),
    (
        "flash_attn_3",
        "flash_attn_interface",
        ["rows without keys", "a sliding window", "a soft cap"],
        flash_attn_3,
    ),
]

# ---- time --------------------------------------------------------------------------------------------------


def captured(run):
    """run() as a CUDA graph: (what replays it, its results' tensors)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    return graph.replay, results


def times_us(step, runs):
    """Each run behind a flush of L2, after a tenth as many (at least 3) to warm up, as tandem's own."""
    flush = torch.empty(
        2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda"
    )
    times = []
    for i in range(runs + max(3, runs // 10)):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.fill_(i % 128)
        begin.record()
        step()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times[-runs:]


def measure(peer, runs):
    """Times, and the results of the last run: what was timed is what is checked."""
    last = [peer.run()]
    torch.cuda.synchronize()
    try:
        step, last[0] = captured(peer.run)
        graph = "yes"
    except Exception as e:  # a library that allocates or synchronises: timed as called, launches included
        print(f"baseline.py: no CUDA graph ({one_line(e)}): launches are timed too", file=sys.stderr)
        torch.cuda.synchronize()

        def step():
            last[0] = peer.run()

        graph = "no"
    times = times_us(step, runs)
    torch.cuda.synchronize()
    return times, last[0], graph


# ---- peers -> lines ----------------------------------------------------------------------------------------


def one_line(e):
    words = (str(e) or type(e).__name__).strip().splitlines()[0]
    return words[:200]


def versions(package):
    names = f"torch={torch.__version__}"
    if package == "torch":
        return f"{names} cudnn={torch.backends.cudnn.version()}"
    version = getattr(importlib.import_module(package), "__version__", "unknown")
    return f"{names} {package}={version}"


def missing_features(b, has):
    lacks = [f for f in b.features if f not in has]
    return f"does not take {', '.join(lacks)}" if lacks else ""


def largest_error(sample, o):
    """NaN-proof: a number that is none is infinitely wrong."""
    difference = np.abs(o.astype(np.float64) - sample.o)
    return float(np.where(np.isfinite(difference), difference, np.inf).max(initial=0.0))


def run_peer(b, t, sample, args, build, package):
    """The line of one peer, None where it has none."""
    peer = build(b, t)
    if peer is None:
        return None
    times, results, graph = measure(peer, args.runs)
    o, lse = at_sample(b, sample, peer.collect(results))
    answer = {"o": o} if lse is None else {"o": o, "lse": lse}
    p10, median, p90 = (float(x) for x in np.quantile(times, [0.1, 0.5, 0.9]))
    return {
        "time_us": median,
        "p10_us": p10,
        "p90_us": p90,
        "runs": args.runs,
        "options": f"{versions(package)} {peer.options} graph={graph} err_o={largest_error(sample, o):.1e}",
    }, answer


def is_installed(package, remarked):
    try:
        importlib.import_module(package)
        return True
    except ImportError:
        if package not in remarked:
            print(f"baseline.py: {package}: not installed: no rows", file=sys.stderr)
        remarked.add(package)
        return False


def line_of(b, t, sample, args, name, package, has, build):
    lacks = missing_features(b, has) or ("" if b.active else "no request has rows and keys")
    if lacks:
        return {"peer": name, "error": lacks}
    try:
        found = run_peer(b, t(), sample, args, build, package)
    except Exception as e:  # whatever a library raises is that peer's row, not the end of the others
        return {"peer": name, "error": one_line(e)}
    if found is None:
        return None
    line, answer = found
    if args.out:
        np.savez(os.path.join(args.out, name + ".npz"), **answer)
    return {"peer": name, **line}


def run_peers(b, sample, args, out):
    remarked, made = set(), []

    def tensors():  # made when the first peer takes the batch: some types no peer takes
        if not made:
            made.append(Tensors(b, "cuda", False))
        return made[0]

    for name, package, has, build in PEERS:
        if is_installed(package, remarked):
            line = line_of(b, tensors, sample, args, name, package, has, build)
            if line:
                print(json.dumps(line), file=out, flush=True)
            with contextlib.suppress(Exception):  # after a fault on the device every call fails
                torch.cuda.empty_cache()


def check_on_cpu(b, sample):
    """In double, where rounding is far below 1e-10 and a wrong key far above."""
    lacks = missing_features(b, ["ragged K and V", "fp32"])
    if lacks:
        print(f"torch_math_serial: {lacks}")
        return 0
    peer = torch_math_serial(b, Tensors(b, "cpu", True))
    o, _ = at_sample(b, sample, peer.collect(peer.run()))
    error = largest_error(sample, o)
    print(f"torch_math_serial: {len(sample.row)} rows, largest error {error:.1e}, {peer.options}")
    return 0 if error <= 1e-10 else 1


def parse_arguments():
    p = argparse.ArgumentParser(description="other people's attention over a batch that tandem wrote")
    p.add_argument("--in", dest="tensors", required=True, metavar="X.npz")
    p.add_argument("--sample", metavar="S.npz", help="rows to check; default: the o of X.npz")
    p.add_argument("--out", metavar="DIR", help="where each peer's rows go")
    p.add_argument("--runs", type=int, default=50)
    p.add_argument("--cpu", action="store_true", help="no times: check gathering, grouping and masks")
    return p.parse_args()


def main():
    global torch
    args = parse_arguments()
    out = os.fdopen(os.dup(1), "w")  # stdout is for lines alone: what libraries print goes to stderr
    os.dup2(2, 1)
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.nn.attention.bias")
    except ImportError as e:
        lacking(
            f"torch: cannot be imported ({one_line(e)}): expected a python3 with both (TANDEM_PYTHON)"
        )
    if not args.cpu and not torch.cuda.is_available():
        lacking("torch finds no GPU")
    try:
        tensors = np.load(args.tensors)
        b, sample = Batch(tensors), Sample(np.load(args.sample) if args.sample else None, tensors)
    except (OSError, KeyError, ValueError) as e:
        print(f"baseline.py: {args.tensors}: {one_line(e)}", file=sys.stderr)
        return 2
    with torch.inference_mode():
        if args.cpu:
            with contextlib.redirect_stdout(out):
                return check_on_cpu(b, sample)
        run_peers(b, sample, args, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
