"""DFlash2 written out row by row and head by head, from the formulas; slow and plain."""

import math

import torch

State = dict[str, torch.Tensor]


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean() + eps) * weight


def rotate(x: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    half = len(x) // 2
    out = x.clone()
    for i in range(half):
        angle = torch.tensor(position * theta ** (-2 * i / len(x)), dtype=x.dtype)
        low, high = x[i], x[i + half]
        out[i] = low * angle.cos() - high * angle.sin()
        out[i + half] = high * angle.cos() + low * angle.sin()
    return out


def filtered(rows: torch.Tensor, source: torch.Tensor, side: int, w: State, at: str, group: int):
    """One side of the convolution over `rows`, with kernels made from `source`."""
    base, project = w[at + "base_kernel"], w[at + "kernel_projection.weight"]
    taps, width = base.shape[1], rows.shape[1]
    out = torch.zeros_like(rows)
    for i in range(len(rows)):
        offset = (project @ source[i]).view(2, taps, width // group)
        for tap in range(min(taps, i + 1)):
            for c in range(width):
                kernel = base[side, tap, c] + offset[side, tap, c // group]
                out[i, c] += kernel * rows[i - tap, c]
    return out


def attention(rows, context, start, w: State, at: str, config, layer: int, causal: bool):
    """`context` are context rows (not keys) of positions 0 .. start - 1."""
    heads, kv, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    eps, theta, window = config.rms_norm_eps, config.rope_theta, config.window(layer)
    everything = torch.cat((context, rows))
    places = list(range(len(context))) + list(range(start, start + len(rows)))
    out = []
    for i, row in enumerate(rows):
        mixed = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            shared = head // (heads // kv)
            part = slice(shared * size, (shared + 1) * size)
            query = norm(w[at + "q_proj.weight"][own] @ row, w[at + "q_norm.weight"], eps)
            query = rotate(query, start + i, theta)
            scores, values = [], []
            for j, (other, place) in enumerate(zip(everything, places, strict=True)):
                in_block = j >= len(context)
                if not in_block and window is not None and start + i - place >= window:
                    continue
                if in_block and causal and place > start + i:
                    continue
                key = norm(w[at + "k_proj.weight"][part] @ other, w[at + "k_norm.weight"], eps)
                scores.append(query @ rotate(key, place, theta) / math.sqrt(size))
                values.append(w[at + "v_proj.weight"][part] @ other)
            mixed.append(torch.stack(scores).softmax(0) @ torch.stack(values))
        out.append(w[at + "o_proj.weight"] @ torch.cat(mixed))
    return torch.stack(out)


def hidden_rows(network, embedded, features, *, filters: bool) -> torch.Tensor:
    """Final-normed block rows; `filters=False` leaves the convolutions out (DFlash v1)."""
    config, w = network.config, network.state_dict()
    eps, group = config.rms_norm_eps, getattr(config, "conv_group_size", 0)
    context = torch.stack(
        [norm(w["fc.weight"] @ row, w["hidden_norm.weight"], eps) for row in features]
    )
    rows, start = embedded, len(features)

    def through(sub, source, at):
        if not filters:
            return sub(source)
        return filtered(sub(filtered(source, source, 0, w, at, group)), source, 1, w, at, group)

    for layer in range(config.num_hidden_layers):
        at = f"layers.{layer}."
        weight = w[at + "input_layernorm.weight"]
        source = torch.stack([norm(row, weight, eps) for row in rows])
        causal = config.is_causal[layer]
        rows = rows + through(
            lambda x, at=at, layer=layer, causal=causal: attention(
                x, context, start, w, at + "self_attn.", config, layer, causal
            ),
            source,
            at + "attention_conv.",
        )
        weight = w[at + "post_attention_layernorm.weight"]
        source = torch.stack([norm(row, weight, eps) for row in rows])
        rows = rows + through(
            lambda x, at=at: (
                (
                    torch.nn.functional.silu(x @ w[at + "mlp.gate_proj.weight"].T)
                    * (x @ w[at + "mlp.up_proj.weight"].T)
                )
                @ w[at + "mlp.down_proj.weight"].T
            ),
            source,
            at + "mlp_conv.",
        )
    return torch.stack([norm(row, w["norm.weight"], eps) for row in rows])


def lattice_scores(network, unary, hidden, anchor):
    """Candidates per row, and S(a, b) from the formula."""
    config, w = network.config, network.state_dict()
    before = w["candidate_selector.predecessor_codebook"]
    after = w["candidate_selector.successor_codebook"]
    project = w["candidate_selector.hidden_projection.weight"]
    ids, edges = [], []
    previous = [anchor] * config.selector_top_k
    for t in range(len(unary)):
        order = sorted(range(unary.shape[1]), key=lambda v, t=t: (-float(unary[t, v]), v))
        picked = order[: config.selector_top_k]
        gate = project @ hidden[t]
        scores = torch.stack(
            [
                torch.stack([unary[t, b] + (before[a] * gate * after[b]).sum() for b in picked])
                for a in previous
            ]
        )
        ids.append(picked)
        edges.append(scores.log_softmax(-1))
        previous = picked
    return ids, torch.stack(edges)
