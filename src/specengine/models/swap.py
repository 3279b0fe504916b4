"""Replace layers of a Transformers model by name, as the engine's options ask.

What is always replaced computes the same values as what it stands in for: norms, Gated DeltaNet
layers, which need the tree, and on a CPU the linear layers, for AR's single row. Weight layouts are
replaced by option only.
"""

from torch import nn

from specengine.decoding.options import EngineOptions
from specengine.models.delta import GatedDelta
from specengine.models.joined_attention import JoinedAttention
from specengine.models.layers import JoinedMlp, RootMeanSquareNorm
from specengine.models.linear import (
    PrepackedLinear,
    RowLinear,
    replace_linear,
    require_prepacking,
)

_NORM_SUFFIX = "RMSNorm"
_CENTRED_NORMS = ("Gemma3RMSNorm", "Qwen3_5RMSNorm")


def swap_layers(model: nn.Module, options: EngineOptions) -> None:
    """Replace layers of a causal model in place; the originals are freed as their owners go.

    Raises:
        OptionError: the layout that is asked for is not available here.
    """
    weight = model.lm_head.weight
    if options.linear == "prepacked":
        require_prepacking(weight.device, weight.dtype)
    _swap_norms(model.model)
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = GatedDelta(layer.linear_attn)
        if options.fused_projections:
            _join_projections(layer)
    if options.linear == "prepacked":
        replace_linear(model, PrepackedLinear)
    elif options.linear in ("w12", "w11s"):
        # Kernels and formats are loaded where they are used: every start of a server waits for
        # what this module imports.
        from specengine.integrations.transformers import compress

        compress(model, options.linear)
    elif weight.device.type == "cpu":
        replace_linear(model, RowLinear)


def _swap_norms(module: nn.Module) -> None:
    for name, child in module.named_children():
        kind = type(child).__name__
        if kind.endswith(_NORM_SUFFIX):
            setattr(module, name, RootMeanSquareNorm(child, centred=kind in _CENTRED_NORMS))
        else:
            _swap_norms(child)


def _join_projections(layer: nn.Module) -> None:
    layer.mlp = JoinedMlp(layer.mlp)
    if hasattr(layer, "self_attn"):
        layer.self_attn = JoinedAttention(layer.self_attn)
