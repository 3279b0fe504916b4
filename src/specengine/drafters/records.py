"""Shape and rules of one drafter, by kind; field names follow the published configurations."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

KINDS = ("dflash", "dflash2", "dspark", "eagle3")
Slots = Literal["in_place", "shifted"]
"""`in_place`: row k of a block predicts the token k places after the anchor, and the anchor's own
row predicts nothing. `shifted`: row k predicts the token k + 1 places after it."""
MarkovHead = Literal["vanilla", "gated", "rnn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """What every kind of drafter says."""

    kind: ClassVar[str]

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: tuple[tuple[str, Any], ...] = ()
    """Scaled rotary positions: `rope_type` and its numbers as published; empty for plain ones."""
    vocab_size: int
    """Tokens of the target."""
    max_position_embeddings: int
    num_target_layers: int | None
    """None where the checkpoint does not say."""
    target_layer_ids: tuple[int, ...]
    """0-based target layers whose outputs are read, in the order of `fc`'s columns; empty where
    the checkpoint leaves them to the convention of its kind."""
    layer_types: tuple[str, ...]
    sliding_window: int | None
    attention_bias: bool = False
    draft_vocab_size: int | None = None
    """Tokens of the drafter's own head where they are fewer than the target's."""
    own_embedding: bool = False
    """Whether the checkpoint holds an embedding; the target's is read otherwise."""
    own_head: bool = False
    """Whether the checkpoint holds an LM head; the target's is used otherwise."""
    tied_head: bool = False
    """Whether the head is the checkpoint's own embedding."""

    def window(self, layer: int) -> int | None:
        """Sliding window of a layer in positions, the row itself counted; None for full."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None

    def _shared_json(self, architecture: str) -> dict[str, Any]:
        names = (
            "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "vocab_size",
            "max_position_embeddings", "num_target_layers", "sliding_window", "attention_bias",
        )  # fmt: skip
        return {
            "architectures": [architecture],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "rope_parameters": {
                "rope_type": "default",
                **dict(self.rope_scaling),
                "rope_theta": self.rope_theta,
            },
            "layer_types": list(self.layer_types),
            "tie_word_embeddings": self.tied_head,
            **{name: getattr(self, name) for name in names},
            **(
                {} if self.draft_vocab_size is None else {"draft_vocab_size": self.draft_vocab_size}
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig(DraftConfig):
    """A drafter of whole blocks: one forward over [anchor, mask, mask, ...]."""

    is_causal: tuple[bool, ...]
    """Per layer: whether a block row sees only the rows before it."""
    block_size: int
    """Trained rows per block, the anchor included. Weights do not depend on it."""
    mask_token_id: int
    slots: Slots | None = "in_place"
    """None where the checkpoint does not say; loading then compares both on the target's text."""
    output_multiplier: float = 1.0
    final_logit_softcapping: float | None = None
    input_embedding_scale: float = 1.0

    @property
    def trained_positions(self) -> int:
        """Tokens that a block of the trained size drafts."""
        return self.block_size if self.slots == "shifted" else self.block_size - 1

    def _block_json(self) -> dict[str, Any]:
        return {
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
            "output_multiplier": self.output_multiplier,
            "final_logit_softcapping": self.final_logit_softcapping,
            "input_embedding_scale": self.input_embedding_scale,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlashConfig(BlockConfig):
    """DFlash: marginals of each position."""

    kind: ClassVar[str] = "dflash"

    def to_json(self) -> dict[str, Any]:
        """The published layout of `config.json`."""
        return {
            **self._shared_json("DFlashDraftModel"),
            "is_causal": self.is_causal[0],
            "sample_from_anchor": self.slots == "shifted",
            "dflash_config": self._block_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DFlash2Config(BlockConfig):
    """DFlash2: dynamic convolutions inside a block, and a selector among candidates."""

    kind: ClassVar[str] = "dflash2"

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    selector_top_k: int

    def to_json(self) -> dict[str, Any]:
        """The published layout of `config.json`."""
        own = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        return {
            **self._shared_json("DFlash2DraftModel"),
            "is_causal": self.is_causal[0],
            "dflash_config": self._block_json() | {name: getattr(self, name) for name in own},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DSparkConfig(BlockConfig):
    """DSpark: a bias from the previous token, and an estimate of each token's acceptance."""

    kind: ClassVar[str] = "dspark"

    markov_rank: int
    markov_head_type: MarkovHead = "vanilla"
    enable_confidence_head: bool = False
    confidence_head_with_markov: bool = False

    def to_json(self) -> dict[str, Any]:
        """The published layout of `config.json`."""
        own = (
            "markov_rank", "markov_head_type", "enable_confidence_head",
            "confidence_head_with_markov",
        )  # fmt: skip
        return {
            **self._shared_json("Qwen3DSparkModel"),
            **self._block_json(),
            "is_causal": self.is_causal[0],
            "sample_from_anchor": self.slots == "shifted",
            **{name: getattr(self, name) for name in own},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Config(DraftConfig):
    """EAGLE-3: one causal layer that reads its own output on later steps."""

    kind: ClassVar[str] = "eagle3"

    target_hidden_size: int
    """Width of the target's states; the drafter's own width may differ."""
    ttt_length: int = 7
    """Steps unrolled in training, which is how many tokens are drafted by default."""
    qk_norm: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    def to_json(self) -> dict[str, Any]:
        """A layout of `config.json` that this package reads back."""
        own = (
            "target_hidden_size", "ttt_length", "qk_norm", "norm_before_residual",
            "norm_before_fc", "fc_norm", "norm_output",
        )  # fmt: skip
        shared = self._shared_json("LlamaForCausalLMEagle3")
        fields = asdict(self)
        return {
            **shared,
            "target_layer_ids": list(self.target_layer_ids),
            **{name: fields[name] for name in own},
        }
