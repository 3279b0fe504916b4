"""EAGLE-3's layer written out row by row and head by head, from the formulas; slow and plain."""

import importlib.util
import math
from pathlib import Path

import torch

_spec = importlib.util.spec_from_file_location(
    "reference_dflash", Path(__file__).with_name("reference_dflash.py")
)
plain = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(plain)


def rows(network, features, embedded, first=0):
    """Outputs before the last norm of rows that pair feature i with the token embedding i.

    Rows see all rows before them; the first stands at position `first`.
    """
    config, w = network.config, network.state_dict()
    eps, at = config.rms_norm_eps, "layers.0."
    pairs = [
        torch.cat(
            (
                plain.norm(token, w[at + "input_layernorm.weight"], eps),
                plain.norm(feature, w[at + "hidden_norm.weight"], eps),
            )
        )
        for token, feature in zip(embedded, features, strict=True)
    ]
    out = []
    for i, feature in enumerate(features):
        if config.norm_before_residual:
            feature = plain.norm(feature, w[at + "hidden_norm.weight"], eps)
        row = feature + _attend(config, w, at + "self_attn.", pairs[: i + 1], first)
        normed = plain.norm(row, w[at + "post_attention_layernorm.weight"], eps)
        gate = torch.nn.functional.silu(w[at + "mlp.gate_proj.weight"] @ normed)
        up = w[at + "mlp.up_proj.weight"] @ normed
        out.append(row + w[at + "mlp.down_proj.weight"] @ (gate * up))
    return out


def _attend(config, w, at, pairs, first):
    """The newest of `pairs` attends to all of them."""
    size, groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    mixed = []
    for head in range(config.num_attention_heads):
        own = slice(head * size, (head + 1) * size)
        part = slice(head // groups * size, (head // groups + 1) * size)
        query = w[at + "q_proj.weight"][own] @ pairs[-1]
        keys = [w[at + "k_proj.weight"][part] @ pair for pair in pairs]
        if config.qk_norm:
            query = plain.norm(query, w[at + "q_norm.weight"], config.rms_norm_eps)
            keys = [plain.norm(key, w[at + "k_norm.weight"], config.rms_norm_eps) for key in keys]
        query = plain.rotate(query, first + len(pairs) - 1, config.rope_theta)
        keys = [plain.rotate(key, first + j, config.rope_theta) for j, key in enumerate(keys)]
        values = torch.stack([w[at + "v_proj.weight"][part] @ pair for pair in pairs])
        scores = torch.stack([query @ key for key in keys]) / math.sqrt(size)
        mixed.append(scores.softmax(0) @ values)
    return w[at + "o_proj.weight"] @ torch.cat(mixed)


def _features(network, tapped):
    """One row of tapped states as a feature."""
    config, w = network.config, network.state_dict()
    eps, width = config.rms_norm_eps, config.target_hidden_size
    if config.norm_before_fc:
        tapped = plain.norm(tapped, w["input_norm.weight"], eps)
    if config.fc_norm:
        parts = [tapped[i : i + width] for i in range(0, len(tapped), width)]
        weights = [w[f"fc_norm.{tap}.weight"] for tap in range(len(parts))]
        normed = [plain.norm(part, by, eps) for part, by in zip(parts, weights, strict=True)]
        tapped = torch.cat(normed)
    return w["fc.weight"] @ tapped


def scores(network, vocabulary, tapped, tokens, path):
    """Log-probabilities over draft ids after a path.

    Args:
        network: the drafter's.
        vocabulary: its token side.
        tapped: [n, taps * width], of the committed positions.
        tokens: the n committed tokens.
        path: the anchor, then drafted tokens (the target's ids).
    """
    w, eps = network.state_dict(), network.config.rms_norm_eps
    following = torch.tensor([*tokens[1:], *path])
    embedded = vocabulary.embed(following)
    features = [_features(network, row) for row in tapped]
    for _ in path[1:]:
        out = rows(network, features, embedded[: len(features)])[-1]
        normed = plain.norm(out, w["norm.weight"], eps)
        features.append(normed if network.config.norm_output else out)
    last = plain.norm(rows(network, features, embedded)[-1], w["norm.weight"], eps)
    return vocabulary.head(last[None])[0].log_softmax(-1)
