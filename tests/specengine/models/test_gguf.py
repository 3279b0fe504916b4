"""The converter writes a folder that Transformers and its tokenizer load with equal values."""

from pathlib import Path

import numpy as np
import pytest
import torch

gguf = pytest.importorskip("gguf", reason="needs the demo extra")

from specengine.errors import CheckpointError  # noqa: E402 (after the skip)
from specengine.models.gguf import convert, fetch_package, main  # noqa: E402

HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 64, 4, 2, 96, 259
NAMES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
    "attn_v": (HIDDEN // HEADS * KV_HEADS, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (FFN, HIDDEN),
    "ffn_up": (FFN, HIDDEN),
    "ffn_down": (HIDDEN, FFN),
}


def write_gguf(path: Path, *, architecture: str = "llama", extra: str | None = None) -> dict:
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_embedding_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCAB)
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|end|>", "<|start|>", *alphabet, "th"])
    writer.add_token_types([3, 3, *[1] * 257])
    writer.add_token_merges(["t h"])
    for role in ("bos", "eos", "unk", "pad"):
        getattr(writer, f"add_{role}_token_id")(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    tensors = {"token_embd.weight": rng.standard_normal((VOCAB, HIDDEN), np.float32)}
    tensors["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    for name, shape in NAMES.items():
        tensors[f"blk.0.{name}.weight"] = rng.standard_normal(shape, np.float32) / 8
    for name in ("attn_norm", "ffn_norm"):
        tensors[f"blk.0.{name}.weight"] = np.ones(HIDDEN, np.float32)
    if extra:
        tensors[extra] = np.ones(HIDDEN, np.float32)
    for name, value in tensors.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def rotate_interleaved(x: np.ndarray, angle: float) -> np.ndarray:
    """Rotary embedding as GGUF lays heads out: neighbouring rows are a pair."""
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
    return out


def test_folder_loads_with_equal_values(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    tensors = write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    state = model.state_dict()
    expected = torch.from_numpy(tensors["blk.0.ffn_down.weight"]).bfloat16()
    assert torch.equal(state["model.layers.0.mlp.down_proj.weight"], expected)
    assert model.config.tie_word_embeddings
    embedded = torch.from_numpy(tensors["token_embd.weight"]).bfloat16()
    assert torch.equal(state["lm_head.weight"], embedded)


def test_query_rows_keep_their_rotary_pairs(tmp_path: Path) -> None:
    """Attention scores must not change: rotate pairs in both layouts and compare q . k."""
    tensors = write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    from safetensors.torch import load_file

    state = load_file(tmp_path / "out" / "model.safetensors")
    size = HIDDEN // HEADS
    x = np.random.default_rng(1).standard_normal(HIDDEN).astype(np.float32)
    original = (tensors["blk.0.attn_q.weight"] @ x).reshape(HEADS, size)
    ours = state["model.layers.0.self_attn.q_proj.weight"].float().numpy() @ x
    ours = ours.reshape(HEADS, 2, size // 2)
    angle = 0.7
    first, second = ours[:, 0], ours[:, 1]
    rotated = np.stack(
        [
            first * np.cos(angle) - second * np.sin(angle),
            first * np.sin(angle) + second * np.cos(angle),
        ],
        axis=-1,
    ).reshape(HEADS, size)
    assert np.allclose(rotated, rotate_interleaved(original, angle), atol=0.05)


def test_tokenizer_round_trips_and_splits_digits(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_gguf(tmp_path / "tiny.gguf")
    convert(tmp_path / "tiny.gguf", tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "the 12  naïve 日本<|start|>x"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer("<|start|>").input_ids == [1]
    assert tokenizer("th").input_ids == [VOCAB - 1]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"architecture": "gemma"}, "gemma"),
        ({"extra": "blk.0.ffn_gate_inp.weight"}, "ffn_gate_inp"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path: Path, options: dict, fault: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", **options)
    with pytest.raises(CheckpointError, match=fault):
        convert(tmp_path / "tiny.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_sources_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF no")
    assert main(["--gguf", str(tmp_path / "bad.gguf"), "--out", str(tmp_path / "out")]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert "bad.gguf" in lines[0]
    with pytest.raises(CheckpointError, match="not known"):
        fetch_package("some-package==1", tmp_path)
