#!/usr/bin/env python3
"""The model's math in plain NumPy, checked against every vector file (no torch needed).

  check_vectors.py --ops OPS_DIR [--tiny TINY_DIR --w4a16 W4A16_DIR]

A second, independent statement of what the Rust side has to compute: if this passes, the
vectors, the layouts described in README.md and the formulas agree with each other.
"""
import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

EPS = 1e-6


def sigmoid(x):
    return 0.5 * (1 + np.tanh(0.5 * x))


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def rms_norm(x, weight):
    """The (1 + weight) form: input, post-attention, q, k and final norms."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * (1 + weight)


def l2_norm(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + EPS)


def router(x, weight, k):
    logits = weight @ x
    p = np.exp(logits - logits.max())
    p /= p.sum()
    top = np.argsort(-p, kind="stable")[:k]
    return logits, top, p[top] / p[top].sum()


def moe(x, w, k):
    """w: the mlp.* tensors. Returns (routed, shared, gate, total)."""
    _, top, score = router(x, w["gate.weight"], k)
    routed = np.zeros_like(x)
    for e, s in zip(top, score):
        gate, up = np.split(w["experts.gate_up_proj"][e] @ x, 2)
        routed += s * (w["experts.down_proj"][e] @ (silu(gate) * up))
    shared = w["shared_expert.down_proj.weight"] @ (
        silu(w["shared_expert.gate_proj.weight"] @ x) * (w["shared_expert.up_proj.weight"] @ x))
    gate = sigmoid(w["shared_expert_gate.weight"] @ x)[0]
    return routed, shared, gate, routed + gate * shared


def deltanet(x, w, c, conv, state):
    """One step. conv [channels, 4] (newest last) and state [Hv, Dk, Dv] are updated in place."""
    hk, hv, dk, dv = (c[k] for k in ("linear_num_key_heads", "linear_num_value_heads",
                                     "linear_key_head_dim", "linear_value_head_dim"))
    conv[:] = np.concatenate([conv[:, 1:], (w["in_proj_qkv.weight"] @ x)[:, None]], 1)
    mixed = silu((conv * w["conv1d.weight"][:, 0, :]).sum(1))
    q, k, v = np.split(mixed, [hk * dk, 2 * hk * dk])
    q, k, v = l2_norm(q.reshape(hk, dk)) * dk**-0.5, l2_norm(k.reshape(hk, dk)), v.reshape(hv, dv)
    z = (w["in_proj_z.weight"] @ x).reshape(hv, dv)
    beta = sigmoid(w["in_proj_b.weight"] @ x)
    g = -np.exp(w["A_log"]) * softplus(w["in_proj_a.weight"] @ x + w["dt_bias"])
    out = np.empty((hv, dv))
    for h in range(hv):
        i = h // (hv // hk)  # value head h reads key head h / (Hv / Hk)
        state[h] *= np.exp(g[h])
        delta = beta[h] * (v[h] - k[i] @ state[h])
        state[h] += np.outer(k[i], delta)
        o = q[i] @ state[h]
        out[h] = w["norm.weight"] * (o / np.sqrt((o * o).mean() + EPS)) * silu(z[h])
    return w["out_proj.weight"] @ out.reshape(-1)


def attention(x, w, c, position, keys, values):
    """One step; keys and values are lists of [kv heads, head_dim] rows, appended to."""
    nq, nkv, hd = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    qg = (w["q_proj.weight"] @ x).reshape(nq, 2, hd)  # per head: query, then gate
    q, gate = rms_norm(qg[:, 0], w["q_norm.weight"]), qg[:, 1]
    k = rms_norm((w["k_proj.weight"] @ x).reshape(nkv, hd), w["k_norm.weight"])
    rot = int(hd * c["rope_parameters"]["partial_rotary_factor"])
    angle = position / c["rope_parameters"]["rope_theta"] ** (np.arange(0, rot, 2) / rot)
    cos, sin = np.tile(np.cos(angle), 2), np.tile(np.sin(angle), 2)

    def rotate(t):
        a, b = t[:, : rot // 2], t[:, rot // 2 : rot]
        return np.concatenate([t[:, :rot] * cos + np.concatenate([-b, a], 1) * sin, t[:, rot:]], 1)

    q = rotate(q)
    keys.append(rotate(k))
    values.append((w["v_proj.weight"] @ x).reshape(nkv, hd))
    out = np.empty((nq, hd))
    for h in range(nq):
        i = h // (nq // nkv)
        s = np.array([row[i] @ q[h] for row in keys]) * hd**-0.5
        p = np.exp(s - s.max())
        out[h] = (p / p.sum()) @ np.stack([row[i] for row in values])
    return w["o_proj.weight"] @ (out * sigmoid(gate)).reshape(-1)


def sub(tensors, prefix):
    return {k[len(prefix) :]: v.astype(np.float64) for k, v in tensors.items() if k.startswith(prefix)}


class Layer:
    def __init__(self, w, c):
        self.w, self.c, self.linear = w, c, "linear_attn.A_log" in w
        if self.linear:
            hk, hv, dk, dv = (c[k] for k in ("linear_num_key_heads", "linear_num_value_heads",
                                             "linear_key_head_dim", "linear_value_head_dim"))
            self.conv = np.zeros((2 * hk * dk + hv * dv, c["linear_conv_kernel_dim"]))
            self.state = np.zeros((hv, dk, dv))
        else:
            self.keys, self.values = [], []

    def step(self, x, position):
        normed = rms_norm(x, self.w["input_layernorm.weight"])
        if self.linear:
            x = x + deltanet(normed, sub(self.w, "linear_attn."), self.c, self.conv, self.state)
        else:
            x = x + attention(normed, sub(self.w, "self_attn."), self.c, position, self.keys, self.values)
        normed = rms_norm(x, self.w["post_attention_layernorm.weight"])
        return x + moe(normed, sub(self.w, "mlp."), self.c["num_experts_per_tok"])[3]


class Score:
    def __init__(self):
        self.n, self.bad = 0, 0

    def check(self, name, got, want, tolerance):
        err = float(np.abs(got - want).max() / np.abs(want).max())
        self.n += 1
        if not err <= tolerance:
            self.bad += 1
        print(f"{'ok  ' if err <= tolerance else 'FAIL'} {name}: {err:.1e}")


def check_ops(ops, score):
    index = json.loads((ops / "ops.json").read_text())
    for name, entry in index.items():
        t, c = load_file(ops / f"{name}.safetensors"), entry["config"]
        x, w = t["input.hidden"].astype(np.float64), sub(t, "weight.")
        if name == "router":
            for i, row in enumerate(x):
                logits, top, s = router(row, w["weight"], c["num_experts_per_tok"])
                assert (top == t["output.topk_indices"][i]).all()
                score.check(f"{name}[{i}]", s, t["output.topk_weights"][i], 1e-12)
        elif name == "moe_block":
            for i, row in enumerate(x):
                routed, shared, gate, total = moe(row, w, c["num_experts_per_tok"])
                score.check(f"{name}[{i}] routed", routed, t["output.mlp.experts:float_output"][i], 1e-12)
                score.check(f"{name}[{i}] shared", shared, t["output.mlp.shared_expert:float_output"][i], 1e-12)
                score.check(f"{name}[{i}] gate", gate, t["output.mlp.shared_expert_gate:sigmoid"][i], 1e-12)
                score.check(f"{name}[{i}] block", total, t["output.mlp:float_output"][i], 1e-12)
        elif name.startswith("deltanet"):
            channels = w["conv1d.weight"].shape[0]
            conv = t.get("state_in.conv_state", np.zeros((channels, 4))).astype(np.float64)
            state = t.get("state_in.recurrent_state", np.zeros(t["state_out.recurrent_state_steps"].shape[1:])).astype(np.float64)
            for i, row in enumerate(x):
                y = deltanet(row, w, c, conv, state)
                score.check(f"{name}[{i}] output", y, t["output.linear_attn:float_output"][i], 1e-12)
                score.check(f"{name}[{i}] conv state", conv, t["state_out.conv_state_steps"][i], 1e-12)
                score.check(f"{name}[{i}] recurrent state", state, t["state_out.recurrent_state_steps"][i], 1e-12)
        elif name.startswith("attention_") and "token" in name:
            keys = list(t["state_in.key_cache"].astype(np.float64).swapaxes(0, 1)) if "state_in.key_cache" in t else []
            values = list(t["state_in.value_cache"].astype(np.float64).swapaxes(0, 1)) if keys else []
            for i, row in enumerate(x):
                y = attention(row, w, c, t["input.positions"][i], keys, values)
                score.check(f"{name}[{i}]", y, t["output.self_attn:float_output"][i], 1e-12)
            score.check(f"{name} keys", np.stack(keys, 1), t["state_out.key_cache"], 1e-12)
        else:
            layers = [Layer(sub(t, f"weight.layers.{i}."), c) for i in range(len(c["layer_types"]))]
            for i, row in enumerate(x):
                h = row
                for n, layer in enumerate(layers):
                    h = layer.step(h, i)
                    score.check(f"{name}[{i}] layer {n}", h, t[f"output.layers.{n}:float_output"][i], 1e-12)


def dequantized(t):
    out = {}
    for k, v in t.items():
        base = k[: -len(".weight")]
        if k.endswith(".w_scale"):
            continue
        if k.endswith(".weight") and f"{base}.w_scale" in t:
            s = t[f"{base}.w_scale"].astype(np.float32)
            out[base if ".experts." in k else k] = v.astype(np.float32) * np.repeat(s, v.shape[-1] // s.shape[-1], -1)
        else:
            out[k] = v
    return out


def read_bf16(path):
    """safetensors with bfloat16 tensors, widened to float32 (NumPy has no bfloat16)."""
    raw = Path(path).read_bytes()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for k, e in json.loads(raw[8 : 8 + n]).items():
        if k == "__metadata__":
            continue
        lo, hi = e["data_offsets"]
        b = raw[8 + n + lo : 8 + n + hi]
        if e["dtype"] == "BF16":
            a = (np.frombuffer(b, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(b, {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I8": "i1", "I64": "<i8", "I32": "<i4"}[e["dtype"]])
        out[k] = a.reshape(e["shape"]).copy()
    return out


def check_tiny(tiny, w4a16, score):
    c = json.loads((tiny / "config.json").read_text())["text_config"]
    published = {k.replace("model.language_model.", "model."): v for k, v in read_bf16(tiny / "model.safetensors").items()}
    for label, tensors, path in (
        ("tiny", published, tiny / "test_vectors_f64.safetensors"),
        ("tiny w4a16", dequantized(read_bf16(w4a16 / "full_model.safetensors")), w4a16 / "test_vectors_w4a16_f64.safetensors"),
    ):
        t = load_file(path)
        w = {k: v.astype(np.float64) for k, v in tensors.items()}
        layers = [Layer(sub(w, f"model.layers.{i}."), c) for i in range(c["num_hidden_layers"])]
        worst = 0.0
        for i, token in enumerate(t["input_ids"]):
            h = w["model.embed_tokens.weight"][token]
            for n, layer in enumerate(layers):
                h = layer.step(h, i)
                want = t[f"model.layers.{n}:float_output"][i]
                worst = max(worst, np.abs(h - want).max() / np.abs(want).max())
            logits = w["lm_head.weight"] @ rms_norm(h, w["model.norm.weight"])
            assert logits.argmax() == t["greedy_ids"][i]
        score.check(f"{label} logits of the last token", logits, t["lm_head:float_output"][-1], 1e-10)
        score.check(f"{label} worst layer output", np.array([1 + worst]), np.array([1.0]), 1e-10)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ops", type=Path)
    ap.add_argument("--tiny", type=Path)
    ap.add_argument("--w4a16", type=Path)
    args = ap.parse_args()
    if bool(args.tiny) != bool(args.w4a16):
        ap.error("--tiny and --w4a16 go together: the quantized delivery has its config in the other")
    score = Score()
    if args.ops:
        check_ops(args.ops, score)
    if args.tiny:
        check_tiny(args.tiny, args.w4a16, score)
    print(f"{score.n - score.bad} passed, {score.bad} failed")
    raise SystemExit(score.bad > 0)


if __name__ == "__main__":
    main()
