#!/usr/bin/env python3
"""One safetensors file per op, at hidden 256, computed in float64 by the published modules.

  make_op_vectors.py --out DIR

The cases are the ones that `mica`'s validation targets run.  Weights and inputs are synthetic, in a
representative range, and are float16-representable: they are stored as float16, and the
float64 results (stored as float64) are exact functions of what is stored.  Every file's
keys are `input.*`, `weight.*` (the module's own parameter names), `output.*` and, where
there is a cache, `state_in.*` / `state_out.*`.  ops.json describes them all.
"""
import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import DynamicCache, Qwen3_5MoeTextConfig

import qwen_f64
from oracle_common import write_json
from oracle_trace import Recorder, hook_attention, hook_deltanet, hook_layer, hook_moe, to_numpy

M = qwen_f64.load()
torch.set_grad_enabled(False)


def config(layers=4, **changes):
    fields = dict(
        vocab_size=64, hidden_size=256, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=2, head_dim=64,
        rope_parameters={"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                         "mrope_interleaved": True, "mrope_section": [3, 3, 2]},
        linear_key_head_dim=32, linear_value_head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4,
        num_experts=16, num_experts_per_tok=4, moe_intermediate_size=64, shared_expert_intermediate_size=64,
    )
    c = Qwen3_5MoeTextConfig(**(fields | changes))
    c._attn_implementation = c._experts_implementation = "eager"
    return c


class Rng:
    def __init__(self, seed):
        self.g = np.random.default_rng(seed)

    def normal(self, *shape, scale=1.0):
        return torch.from_numpy((self.g.standard_normal(shape) * scale).astype(np.float16)).double()

    def uniform(self, low, high, *shape):
        return torch.from_numpy(self.g.uniform(low, high, shape).astype(np.float16)).double()


def fill(module, rng):
    """Seeded weights: fan-in scaled projections, norms near their neutral point, plausible decay gates."""
    for name, p in module.named_parameters():
        if name.endswith("A_log"):
            v = rng.uniform(0.0, 2.7, *p.shape)
        elif name.endswith("dt_bias"):
            v = rng.uniform(-4.0, 0.5, *p.shape)
        elif name.endswith("linear_attn.norm.weight") or (name == "norm.weight" and hasattr(module, "A_log")):
            v = (1 + rng.normal(*p.shape, scale=0.125)).half().double()
        elif "norm" in name:
            v = rng.normal(*p.shape, scale=0.125)
        elif name.endswith("conv1d.weight"):
            v = rng.normal(*p.shape, scale=0.5)
        elif name.endswith("gate.weight") and p.shape[0] > 1:  # router: decisive but not saturated
            v = rng.normal(*p.shape, scale=2.0 * p.shape[-1] ** -0.5)
        else:
            v = rng.normal(*p.shape, scale=p.shape[-1] ** -0.5)
        p.copy_(v)
    return module.double().eval()


def half(t):
    a = to_numpy(t).astype(np.float16)
    assert np.array_equal(a.astype(np.float64), to_numpy(t).astype(np.float64))
    return a


def weights(module, prefix=""):
    return {f"weight.{prefix}{n}": half(p) for n, p in module.named_parameters()}


def rope(c, positions):
    return M.Qwen3_5MoeTextRotaryEmbedding(c)(torch.zeros(1, dtype=torch.float64), torch.tensor(positions)[None])


class Book:
    def __init__(self, out):
        self.out, self.index = out, {}
        out.mkdir(parents=True, exist_ok=True)

    def save(self, name, what, c, tensors):
        path = self.out / f"{name}.safetensors"
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path)
        fields = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rope_parameters",
                  "linear_conv_kernel_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads",
                  "linear_num_value_heads", "num_experts", "num_experts_per_tok", "moe_intermediate_size",
                  "shared_expert_intermediate_size", "rms_norm_eps", "layer_types")
        self.index[name] = {
            "what": what, "bytes": path.stat().st_size, "config": {f: getattr(c, f) for f in fields},
            "tensors": {k: [str(v.dtype), list(v.shape)] for k, v in sorted(tensors.items())},
        }
        print(f"{name}: {path.stat().st_size} bytes")


def outputs(rec):
    return {f"output.{k}": v for k, v in rec.finish().items()}


def router(book):
    c, rng = config(), Rng(501)
    m = fill(M.Qwen3_5MoeTopKRouter(c), rng)
    m.weight.copy_(rng.normal(*m.weight.shape, scale=2.0 * 256**-0.5))
    x = rng.normal(8, 256)
    logits, scores, index = m(x)
    book.save("router", "softmax over all experts, then top-k, then renormalize; 8 tokens", c, {
        "input.hidden": half(x), **weights(m), "output.logits": to_numpy(logits),
        "output.probabilities": to_numpy(logits.softmax(-1)), "output.topk_indices": to_numpy(index),
        "output.topk_weights": to_numpy(scores)})


def moe(book):
    c, rng = config(), Rng(502)
    m = fill(M.Qwen3_5MoeSparseMoeBlock(c), rng)
    x, rec, handles = rng.normal(4, 256), Recorder(), []
    hook_moe(rec, m, "mlp", handles)
    for t in x:
        m(t[None, None])
    book.save("moe_block", "routed + sigmoid-gated shared expert, 4 tokens; mlp.experts is the routed half alone", c,
              {"input.hidden": half(x), **weights(m), **outputs(rec)})


def run_deltanet(book, name, what, steps, seed, with_state=False, **changes):
    c, rng = config(**changes), Rng(seed)
    m = fill(M.Qwen3_5MoeGatedDeltaNet(c, 0), rng)
    x, rec, handles, cache, extra = rng.normal(steps, 256), Recorder(), [], DynamicCache(config=c), {}
    if with_state:
        conv = rng.normal(1, m.conv_dim, 4)
        state = rng.normal(1, m.num_v_heads, m.head_k_dim, m.head_v_dim, scale=0.25)
        cache.update_conv_state(conv.clone(), 0)
        cache.update_recurrent_state(state.clone(), 0)
        extra = {"state_in.conv_state": half(conv[0]), "state_in.recurrent_state": half(state[0])}
    hook_deltanet(rec, m, "linear_attn", handles)
    conv_steps, state_steps = [], []
    for t in x:
        m(t[None, None], cache_params=cache)
        conv_steps.append(to_numpy(cache.layers[0].conv_states[0][0]).copy())
        state_steps.append(to_numpy(cache.layers[0].recurrent_states[0][0]).copy())
    book.save(name, what, c, {
        "input.hidden": half(x), **weights(m), **extra, **outputs(rec),
        "state_out.conv_state_steps": np.stack(conv_steps), "state_out.recurrent_state_steps": np.stack(state_steps)})


def deltanet(book):
    run_deltanet(book, "deltanet_1step", "one step from a given (non-zero) state", 1, 601, with_state=True)
    run_deltanet(book, "deltanet_4steps", "four steps from the zero state; the state after each (for resume checks)", 4, 602)
    run_deltanet(book, "deltanet_rect_3steps", "key dim 32, value dim 48, 3 value heads per key head: catches transposed state "
                 "and wrong head indexing", 3, 603, with_state=True,
                 linear_value_head_dim=48, linear_num_key_heads=2, linear_num_value_heads=6)


def attention(book):
    for tokens, past, seed in ((1, 0, 901), (2, 0, 902), (2, 5, 903)):
        c, rng = config(), Rng(seed)
        m = fill(M.Qwen3_5MoeAttention(c, 3), rng)
        cache, extra = DynamicCache(config=c), {}
        if past:
            k, v = rng.normal(1, 2, past, 64), rng.normal(1, 2, past, 64)
            cache.update(k, v, 3)
            extra = {"state_in.key_cache": half(k[0]), "state_in.value_cache": half(v[0])}
        x, rec, handles = rng.normal(tokens, 256), Recorder(), []
        hook_attention(rec, m, "self_attn", handles)
        cos, sin = rope(c, list(range(past, past + tokens)))
        for i, t in enumerate(x):
            m(t[None, None], (cos[:, i : i + 1], sin[:, i : i + 1]), None, past_key_values=cache)
        name = f"attention_{tokens}token{'s' if tokens > 1 else ''}" + (f"_after{past}" if past else "")
        book.save(name, f"gated attention, {tokens} token(s) from position {past}", c, {
            "input.hidden": half(x), "input.positions": np.arange(past, past + tokens),
            "input.rope_cos": to_numpy(cos[0]), "input.rope_sin": to_numpy(sin[0]), **weights(m), **extra, **outputs(rec),
            "state_out.key_cache": to_numpy(cache.layers[3].keys[0]),
            "state_out.value_cache": to_numpy(cache.layers[3].values[0])})


def stack(book, name, what, kinds, tokens, seed, **changes):
    """Whole decoder layers: input norm, mixer, residual, post norm, MoE, residual."""
    c = config(layers=len(kinds), layer_types=kinds, **changes)
    rng = Rng(seed)
    layers = [fill(M.Qwen3_5MoeDecoderLayer(c, i), rng) for i in range(len(kinds))]
    x, rec, cache = rng.normal(tokens, 256), Recorder(), DynamicCache(config=c)
    for i, layer in enumerate(layers):
        hook_layer(rec, layer, f"layers.{i}")
    cos, sin = rope(c, list(range(tokens)))
    for i, t in enumerate(x):
        h = t[None, None]
        for layer in layers:
            h = layer(h, position_embeddings=(cos[:, i : i + 1], sin[:, i : i + 1]), past_key_values=cache)
    tensors = {"input.hidden": half(x), **outputs(rec)}
    for i, (layer, state) in enumerate(zip(layers, cache.layers)):
        tensors |= weights(layer, f"layers.{i}.")
        if kinds[i] == "linear_attention":
            tensors[f"state_out.layers.{i}.conv_state"] = to_numpy(state.conv_states[0][0])
            tensors[f"state_out.layers.{i}.recurrent_state"] = to_numpy(state.recurrent_states[0][0])
        else:
            tensors[f"state_out.layers.{i}.key_cache"] = to_numpy(state.keys[0])
            tensors[f"state_out.layers.{i}.value_cache"] = to_numpy(state.values[0])
    book.save(name, what, c, tensors)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--out", type=Path, required=True)
    args = ap.parse_args()
    torch.set_num_threads(1)
    book = Book(args.out)
    A, B = "linear_attention", "full_attention"
    router(book)
    moe(book)
    deltanet(book)
    attention(book)
    stack(book, "linear_layer", "one whole linear decoder layer, 2 tokens", [A], 2, 701)
    small = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    stack(book, "linear_layers_2", "two whole linear decoder layers, 2 tokens", [A, A], 2, 702, **small)
    stack(book, "attention_layer", "one whole gated-attention decoder layer, 2 tokens", [B], 2, 1001)
    stack(book, "hybrid_aaab", "three linear layers and one attention layer, 3 tokens", [A, A, A, B], 3, 1101,
          num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, num_attention_heads=4)
    write_json(args.out / "ops.json", book.index)


if __name__ == "__main__":
    main()
