"""Published configurations read into one table.

Drafters come in the layouts of their authors (`dflash_config`), of DeepSpec (fields at the top), of
speculators (`transformer_layer_config`) and of EAGLE (`eagle_config`). They differ in where a field
stands, in how taps are counted and in what a block's rows predict; the kind is told by content,
never by the architecture's name.
"""

from collections.abc import Collection, Mapping
from typing import Any

from transformers import AutoConfig

from specengine.drafters.field_rules import check_fields
from specengine.errors import CheckpointError

Table = dict[str, Any]
_SELECTOR, _MARKOV = "candidate_selector.", "markov_head."
_EAGLE_NORM = "layers.0.hidden_norm.weight"
_REFUSED: dict[str, object] = {
    "attention_sink_bias": None,
    "attention_value_scale": None,
    "is_neox_style": True,
    "mlp_bias": False,
    "hidden_act": "silu",
}
"""Fields that change the network in ways this package does not compute, unless they hold this."""


def canonical_name(name: str) -> str:
    """A tensor's name as this package spells it."""
    name = name.removeprefix("model.")
    name = name.replace("encoder.output_norm_enc.", "hidden_norm.").removeprefix("encoder.")
    if name.startswith("midlayer."):
        name = name.replace("midlayer.", "layers.0.", 1)
    return name.replace("_codebook.weight", "_codebook")


def unified(table: Mapping[str, Any], names: Collection[str], where: str) -> Table:
    """All fields of a configuration at one level, under the names of `specengine.drafters.records`.

    Args:
        table: the parsed `config.json`.
        names: canonical names of the checkpoint's tensors; empty when only the configuration is
            known.
        where: names the configuration in errors.

    Raises:
        CheckpointError: no kind of drafter is recognised, or a field asks for something that is
            not computed.
    """
    layers = table.get("transformer_layer_config")
    special = {**_table(table, "eagle_config"), **_table(table, "dflash_config")}
    inner = _with_defaults(layers, where) if isinstance(layers, Mapping) else {}
    fields: Table = {**inner, **table, **special}
    check_fields(fields, names, where)
    for name, allowed in _REFUSED.items():
        if fields.get(name) is not None and fields[name] != allowed:
            raise CheckpointError(
                f"{name} is {fields[name]!r:.40}, which is not supported", where=where,
                fix="use a drafter without it",
            )  # fmt: skip
    kind = _kind(fields, names, where)
    fields["kind"] = kind
    fields["target_layer_ids"] = _taps(fields)
    fields["own_embedding"] = "embed_tokens.weight" in names
    fields["own_head"] = "lm_head.weight" in names
    tied = bool(fields.get("tie_word_embeddings")) and fields["own_embedding"]
    fields["tied_head"] = tied and not fields["own_head"]
    if kind == "eagle3":
        fields["qk_norm"] = fields.get("qk_norm", "layers.0.self_attn.q_norm.weight" in names)
        return fields
    if fields.get("use_swa") and not fields.get("layer_types"):
        fields["sliding_window"] = fields.get("swa_window_size")
        fields["layer_types"] = ["sliding_attention"] * int(fields.get("num_hidden_layers", 0))
    fields["slots"] = _slots(fields, kind, of_speculators=bool(inner), nested=bool(special))
    fields["causality"] = _causality(fields, of_speculators=bool(inner))
    return fields


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = table.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _with_defaults(layers: Mapping[str, Any], where: str) -> Table:
    """Speculators exports leave out what equals the layer family's default."""
    family = str(layers.get("model_type", "qwen3"))
    given = {name: value for name, value in layers.items() if name != "model_type"}
    try:
        return dict(AutoConfig.for_model(family, **given).to_dict())
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"has a transformer_layer_config that cannot be understood ({error!s:.200})",
            where=where,
            fix="use a drafter of a supported layer family",
        ) from error


def _kind(fields: Table, names: Collection[str], where: str) -> str:
    """What the configuration claims or the tensors show; the load then requires both to agree."""
    if "selector_rank" in fields or any(name.startswith(_SELECTOR) for name in names):
        return "dflash2"
    if fields.get("markov_rank") or any(name.startswith(_MARKOV) for name in names):
        return "dspark"
    if "mask_token_id" in fields or "hidden_norm.weight" in names:
        return "dflash"
    stated = {"eagle_aux_hidden_state_layer_ids", "ttt_length", "draft_vocab_size"}
    if _EAGLE_NORM in names or "fc.weight" in names or not stated.isdisjoint(fields):
        return "eagle3"
    raise CheckpointError(
        "describes no DFlash, DFlash2, DSpark or EAGLE-3 drafter", where=where,
        fix="give the folder of a drafter, with its whole config.json",
    )  # fmt: skip


def _taps(fields: Table) -> list[int]:
    """0-based layers whose outputs are read.

    vLLM and speculators name the state by its index among all hidden states, of which the
    embedding is number 0; the others name the layer.
    """
    for name, offset in (
        ("aux_hidden_state_layer_ids", 1),
        ("eagle_aux_hidden_state_layer_ids", 1),
        ("target_layer_ids", 0),
    ):
        if fields.get(name) is not None:
            return [layer - offset for layer in fields[name]]
    return []


def _slots(fields: Table, kind: str, *, of_speculators: bool, nested: bool) -> str | None:
    stated = fields.get("sample_from_anchor")
    if stated is not None:
        return "shifted" if stated else "in_place"
    if fields.get("slots") is not None:
        return str(fields["slots"])
    if kind == "dflash2":
        return "in_place"
    if kind == "dflash" and (
        of_speculators or nested or fields.get("model_type") == "muse_glimmer_assistant"
    ):
        return "in_place"
    if not of_speculators and not nested and "markov_rank" in fields:
        return "shifted"
    # Exports of DSpark exist with either layout and no field that tells.
    return None


def _causality(fields: Table, *, of_speculators: bool) -> bool | None:
    """Whether blocks are causal; None leaves it to the rule of older checkpoints."""
    for name in ("is_causal", "causal"):
        if fields.get(name) is not None:
            return bool(fields[name])
    if fields.get("model_type") == "muse_glimmer_assistant":
        return False
    if of_speculators and fields.get("sliding_window_non_causal"):
        return False
    return None
