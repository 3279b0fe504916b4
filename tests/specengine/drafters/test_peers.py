"""Public implementations on the same random weights, in float32 on the CPU.

`dflash` comes from PyPI, DeepSpec (`deepspec`) from its repository; where they are not importable
their tests are skipped. Transformers has a DFlash of its own.
"""

import numpy as np
import pytest
import torch

from specengine.drafters.candidates import top_candidates
from specengine.drafters.loading import drafter_of
from specengine.trees import build

CONTEXT = 11
TOLERANCE = 1e-4


def _context(network, rows=CONTEXT, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 128, generator=generator), np.arange(rows) % 7


def _qwen3(target, layers=2, **changes):
    from transformers import Qwen3Config

    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "vocab_size": target.vocab_size, "max_position_embeddings": 256,
    }  # fmt: skip
    config = Qwen3Config(**sizes, num_hidden_layers=layers)
    for name, value in {"num_target_layers": 6, **changes}.items():
        setattr(config, name, value)
    config._attn_implementation = "sdpa"
    return config


def _drafted(network, target, positions, anchor=7):
    drafter = drafter_of(network, target)
    features, tokens = _context(network)
    state = drafter.new_state(CONTEXT + 1)
    drafter.extend(state, features, tokens)
    return drafter, state, drafter.predicting_rows(state, anchor, positions)


def _fill(peer, network, target=None):
    state = dict(network.state_dict())
    for name in ("predecessor_codebook", "successor_codebook"):
        if f"candidate_selector.{name}" in state:
            state[f"candidate_selector.{name}.weight"] = state.pop(f"candidate_selector.{name}")
    if target is not None:
        state |= {
            "embed_tokens.weight": target.embed_tokens.weight,
            "lm_head.weight": target.head.weight,
        }
    missing, unexpected = peer.load_state_dict(state, strict=False)
    assert not unexpected
    assert not missing
    return peer.eval()


def _masked(target, rows, anchor=7):
    return target.embed_tokens(torch.tensor([anchor] + [3] * (rows - 1)))[None]


@pytest.mark.parametrize("name", ["dflash", "dflash2"])
@pytest.mark.parametrize("causal", [None, True, False])
def test_dflash_package(name, causal, make_kind, make_kind_config, target, monkeypatch):
    peers = pytest.importorskip("dflash.model", reason="the package dflash is not importable")
    from dataclasses import replace

    network = make_kind(name, target)
    kinds = ["sliding_attention", "full_attention"]
    own = replace(
        network.config,
        layer_types=tuple(kinds),
        sliding_window=6,
        is_causal=(True, False) if causal is None else (causal, causal),
    )
    rebuilt = type(network)(own)
    rebuilt.load_state_dict(network.state_dict())
    network = rebuilt.eval().requires_grad_(requires_grad=False)
    special = {
        "block_size": 5, "mask_token_id": 3, "target_layer_ids": [1, 3], "conv_kernel_size": 2,
        "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 5,
    }  # fmt: skip
    config = _qwen3(target, dflash_config=special, layer_types=kinds, sliding_window=6)
    config.is_causal = causal
    kind = {"dflash": peers.DFlashDraftModel, "dflash2": peers.DFlash2DraftModel}[name]
    peer = _fill(kind(config), network)
    _, _, rows = _drafted(network, target, 4)
    with torch.inference_mode():
        theirs = peer(
            position_ids=torch.arange(CONTEXT + 5)[None],
            noise_embedding=_masked(target, 5),
            target_hidden=_context(network)[0][None],
        )[0, 1:]
    assert (rows - theirs).abs().max() < TOLERANCE
    if name == "dflash2":
        drafter, state, _ = _drafted(network, target, 4)
        chain = build("chain", drafter.draft(state, 7, 4), 7, 5)
        with torch.inference_mode():
            path, _, _ = peer.propose(theirs[None], torch.tensor([7]), target.head, 0.0)
        assert chain.tokens[1:].tolist() == path[0].tolist()


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_deepspec_dspark(head, make_kind, target):
    peers = pytest.importorskip(
        "deepspec.modeling.dspark.qwen3.modeling", reason="DeepSpec is not importable"
    )
    network = make_kind("dspark" if head == "vanilla" else f"dspark-{head}", target)
    config = _qwen3(
        target, target_layer_ids=[1, 3], mask_token_id=3, num_anchors=4, block_size=5,
        markov_rank=8, markov_head_type=head, enable_confidence_head=True,
        confidence_head_with_markov=True, layer_types=["full_attention"] * 2,
    )  # fmt: skip
    peer = _fill(peers.Qwen3DSparkModel(config), network, target)
    drafter, state, rows = _drafted(network, target, 5)
    with torch.inference_mode():
        theirs = peer._forward_backbone(
            position_ids=torch.arange(CONTEXT + 5)[None],
            noise_embedding=_masked(target, 5),
            target_hidden_states=_context(network)[0][None],
        )
        logits = peer.compute_logits(theirs)
        path, corrected = peer.sample_draft_tokens(
            logits, first_prev_token_ids=torch.tensor([7]), hidden_states=theirs
        )
        before = torch.cat((torch.tensor([[7]]), path[:, :-1]), dim=1)
        confidence = torch.sigmoid(peer.predict_confidence_step(theirs, before))[0]
    assert (rows - theirs[0]).abs().max() < TOLERANCE
    lattice = drafter.draft(state, 7, 5)
    chain = build("chain", lattice, 7, 6)
    assert chain.tokens[1:].tolist() == path[0].tolist()
    assert (drafter.confidence(rows, before[0]) - confidence).abs().max() < TOLERANCE
    if head == "rnn":
        return
    slots = [0, *(lattice.ids[i].tolist().index(path[0, i]) for i in range(4))]
    for position, slot in enumerate(slots):
        wanted, ids = top_candidates(corrected[0, position][None], lattice.candidates)
        assert lattice.ids[position].tolist() == ids[0].tolist()
        error = lattice.edge[position, slot] - wanted[0].log_softmax(-1).numpy()
        assert np.abs(error).max() < TOLERANCE


def test_deepspec_eagle3(make_kind_table, make_kind, target):
    peers = pytest.importorskip(
        "deepspec.modeling.eagle3.qwen3.modeling", reason="DeepSpec is not importable"
    )
    from transformers import DynamicCache

    from specengine.drafters.checkpoint import new_network
    from specengine.drafters.config import parse_config

    table = make_kind_table("eagle3", target, {"qk_norm": True})
    names = {"layers.0.hidden_norm.weight"}
    network = new_network(parse_config(table, "test", names))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.25)
    network = network.eval().requires_grad_(requires_grad=False)
    config = _qwen3(
        target, layers=1, target_layer_ids=[1, 3], ttt_length=5, step_loss_decay=0.8,
        layer_types=["full_attention"],
    )  # fmt: skip
    peer = _fill(peers.Qwen3Eagle3Model(config), network, target)
    features, tokens = _context(network)
    drafter = drafter_of(network, target)
    state = drafter.new_state(CONTEXT + 1)
    drafter.extend(state, features, tokens)
    lattice = drafter.draft(state, 7, 5)
    following = torch.tensor([*tokens[1:].tolist(), 7])[None]
    cache, path, errors = DynamicCache(), [], []
    mask = torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1)[None, None]
    with torch.inference_mode():
        hidden = peer(
            hidden_states=features[None], input_ids=following, attention_mask=mask,
            position_ids=torch.arange(CONTEXT)[None], past_key_values=cache, use_cache=True,
        )[:, -1:]  # fmt: skip
        slot = 0
        for step in range(5):
            logits = peer.compute_logits(hidden)[0, -1]
            path.append(int(logits.argmax()))
            wanted = logits[torch.from_numpy(lattice.ids[step])].log_softmax(-1).numpy()
            errors.append(np.abs(lattice.edge[step, slot] - wanted).max())
            slot = lattice.ids[step].tolist().index(path[-1])
            hidden = peer(
                hidden_states=hidden, input_ids=torch.tensor([[path[-1]]]),
                position_ids=torch.tensor([[CONTEXT + step]]), past_key_values=cache,
                use_cache=True,
            )  # fmt: skip
    assert max(errors) < TOLERANCE
    assert build("chain", lattice, 7, 6).tokens[1:].tolist() == path


def test_transformers_dflash(make_kind, target):
    muse = pytest.importorskip("transformers.models.muse_glimmer_assistant", reason="too old")
    from dataclasses import replace

    network = make_kind("dflash", target)
    kinds = ("sliding_attention", "full_attention")
    own = replace(network.config, layer_types=kinds, sliding_window=64, is_causal=(False, False))
    rebuilt = type(network)(own)
    rebuilt.load_state_dict(network.state_dict())
    network = rebuilt.eval().requires_grad_(requires_grad=False)
    config = muse.MuseGlimmerAssistantConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, sliding_window=64,
        layer_types=list(kinds), block_size=5, mask_token_id=3, target_layer_ids=[1, 3],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        max_position_embeddings=256,
    )  # fmt: skip
    peer = muse.MuseGlimmerAssistantModel(config).eval()
    names = {
        "fc.weight": "encoder.fc.weight",
        "hidden_norm.weight": "encoder.output_norm_enc.weight",
    }
    state = {names.get(name, name): tensor for name, tensor in network.state_dict().items()}
    missing, unexpected = peer.load_state_dict(state, strict=False)
    assert not missing
    assert not unexpected
    _, _, rows = _drafted(network, target, 4)
    with torch.inference_mode():
        theirs = peer(
            noise_embeds=_masked(target, 5),
            context_hidden_states=_context(network)[0][None],
            position_ids=torch.arange(CONTEXT + 5)[None],
        ).last_hidden_state[0, 1:]
    assert (rows - theirs).abs().max() < TOLERANCE
