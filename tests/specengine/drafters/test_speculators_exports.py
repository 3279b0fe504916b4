"""Checkpoints that speculators itself wrote, read as they are and compared in float32."""

import numpy as np
import pytest
import torch

from specengine.drafters import load_drafter
from specengine.drafters.eagle3 import Steps

pytest.importorskip("speculators.models.eagle3.core", reason="speculators is not importable")
TOLERANCE = 1e-4
ROWS, ANCHOR_AT = 16, 9


def _layers(target, family, layers, **changes):
    from transformers import LlamaConfig, Qwen3Config

    config = {"llama": LlamaConfig, "qwen3": Qwen3Config}[family](
        vocab_size=target.vocab_size, hidden_size=64, intermediate_size=96,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        rms_norm_eps=1e-5, max_position_embeddings=256, **changes,
    )  # fmt: skip
    config._attn_implementation = "eager"
    return config


def _verifier():
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    return SpeculatorsConfig(
        algorithm="x",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=5)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=[]),
    )


def _randomise(model, target, draft_vocab=None):
    """Random weights; the target's own tables where the export leaves them out."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.25)
            if "norm" in name:
                parameter.add_(1.0)
        if draft_vocab is not None:
            kept = torch.randperm(target.vocab_size)[:draft_vocab].sort().values
            model.t2d.zero_().index_fill_(0, kept, True)
            model.d2t.copy_(kept - torch.arange(draft_vocab))
        else:
            model.lm_head.weight.copy_(target.head.weight)
        model.embed_tokens.weight.copy_(target.embed_tokens.weight)
    return model.eval()


def _text(taps):
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(ROWS, 64 * taps, generator=generator)
    return features, torch.randint(0, 61, (ROWS,), generator=generator)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize(
    "flags",
    [{}, {"norm_before_residual": True, "norm_before_fc": True},
     {"fc_norm": True, "norm_output": True}],
)  # fmt: skip
@pytest.mark.parametrize("draft_vocab", [None, 40])
def test_eagle3(family, flags, draft_vocab, target, tmp_path):
    from speculators.models.eagle3.config import Eagle3SpeculatorConfig
    from speculators.models.eagle3.core import Eagle3DraftModel

    config = Eagle3SpeculatorConfig(
        transformer_layer_config=_layers(target, family, 1),
        draft_vocab_size=draft_vocab or target.vocab_size,
        eagle_aux_hidden_state_layer_ids=[2, 3, 5],
        speculators_config=_verifier(),
        **flags,
    )
    peer = _randomise(Eagle3DraftModel(config), target, draft_vocab)
    peer.save_pretrained(tmp_path)
    drafter = load_drafter("auto", tmp_path, target)
    assert drafter.kind == "eagle3"
    assert drafter.taps == (1, 2, 4)
    features, tokens = _text(3)
    logits = []
    peer.lm_head.register_forward_hook(lambda _m, _i, out: logits.append(out[0]))
    shifted = torch.cat((tokens[1:], tokens[:1]))
    with torch.inference_mode():
        peer(features[None], shifted[None], torch.zeros(1, ROWS, dtype=torch.long), ttt_steps=4)
    state = drafter.new_state(ROWS)
    drafter.extend(state, features[:ANCHOR_AT], tokens[:ANCHOR_AT].numpy())
    with torch.inference_mode():
        steps = Steps(drafter, state, int(tokens[ANCHOR_AT]), 4)
        ours, hidden = steps.first()
        row = torch.zeros(1, dtype=torch.int64)
        for step in range(4):
            assert (ours[0] - logits[step][ANCHOR_AT - 1]).abs().max() < TOLERANCE
            ours, hidden = steps.next(tokens[ANCHOR_AT + 1 + step][None], hidden, row)


@pytest.mark.parametrize("name", ["dflash", "dflash2", "dspark"])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("draft_vocab", [None, 40])
def test_blocks(name, shifted, draft_vocab, target, tmp_path):
    import importlib

    core = importlib.import_module(f"speculators.models.{name}.core")
    configs = importlib.import_module(f"speculators.models.{name}.config")
    if name == "dflash2" and draft_vocab:
        pytest.skip("DFlash2 drafts over the target's whole vocabulary")
    label = {"dflash": "DFlash", "dflash2": "DFlash2", "dspark": "DSpark"}[name]
    own = {"dspark": {"markov_rank": 8}, "dflash2": {"selector_rank": 8, "selector_top_k": 16}}
    config = getattr(configs, f"{label}SpeculatorConfig")(
        transformer_layer_config=_layers(target, "qwen3", 2),
        draft_vocab_size=draft_vocab or target.vocab_size,
        aux_hidden_state_layer_ids=[2, 4],
        block_size=5,
        mask_token_id=3,
        sample_from_anchor=shifted,
        speculators_config=_verifier(),
        **own.get(name, {}),
    )
    peer = _randomise(getattr(core, f"{label}DraftModel")(config), target, draft_vocab)
    peer.save_pretrained(tmp_path)
    drafter = load_drafter("auto", tmp_path, target)
    assert drafter.kind == name
    assert drafter.taps == (1, 3)
    assert drafter.trained_positions == (5 if shifted else 4)
    features, tokens = _text(2)
    allowed = torch.zeros(1, ROWS, dtype=torch.long)
    allowed[0, ANCHOR_AT] = 1
    with torch.inference_mode():
        hidden, logits, *_ = peer._backbone_forward(
            features[None], tokens[None], allowed, torch.zeros(1, ROWS, 64),
            torch.zeros(1, ROWS, dtype=torch.long), max_anchors=1,
        )  # fmt: skip
        if name == "dspark":
            block = tokens[ANCHOR_AT : ANCHOR_AT + 5][None]
            before = block if shifted else torch.cat((block[:, :1], block[:, :-1]), dim=1)
            bias = peer.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)[0]
    state = drafter.new_state(ROWS)
    drafter.extend(state, features[:ANCHOR_AT], tokens[:ANCHOR_AT].numpy())
    skipped = 0 if shifted else 1
    rows = drafter.predicting_rows(state, int(tokens[ANCHOR_AT]), 5 - skipped)
    unary = drafter.unary(rows)
    assert (rows - hidden[0, skipped:]).abs().max() < TOLERANCE
    assert (unary - logits[0, skipped:]).abs().max() < TOLERANCE
    lattice = drafter.draft(state, int(tokens[ANCHOR_AT]), 5 - skipped).check()
    if name == "dflash2":
        predecessor, ids = tokens[ANCHOR_AT][None, None], torch.from_numpy(lattice.ids[:1])[None]
        first = slice(skipped, skipped + 1)
        with torch.inference_mode():
            scores = peer.candidate_selector.score_candidates(
                logits[:, first], hidden[:, first], predecessor, ids
            )[0, 0].log_softmax(-1)
        assert np.abs(lattice.edge[0, 0] - scores.numpy()).max() < TOLERANCE
    if name == "dspark":
        ids = torch.from_numpy(lattice.ids[0])
        places = (ids[:, None] == _targets(drafter)).int().argmax(-1)
        scores = (logits[0, skipped] + bias[skipped])[places].log_softmax(-1)
        assert np.abs(lattice.edge[0, 0] - scores.numpy()).max() < TOLERANCE


def _targets(drafter):
    return drafter.vocabulary.target_ids(torch.arange(drafter.vocabulary.size))
