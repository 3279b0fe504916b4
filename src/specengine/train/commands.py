"""The three steps of training, as functions that the command line calls."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from specengine.drafters.checkpoint import read_network, write_network
from specengine.drafters.config import DFlash2Config
from specengine.drafters.network import DFlash2Network
from specengine.errors import RequestError
from specengine.train.answers import answer, encode_prompts
from specengine.train.batches import BatchPlan, BatchSource
from specengine.train.evaluation import Tally, record, tally
from specengine.train.generation import BatchGenerator, Sampling, Stopwatch
from specengine.train.loop import Schedule, train
from specengine.train.prompts import KINDS, self_prompts
from specengine.train.shards import TokenShard, pack, read_shard, write_shard
from specengine.train.teacher import Teacher, load_teacher

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What `answers` generates: greedy answers first, then tempered ones while time is left."""

    rows: int = 1024
    longest_prompt: int = 256
    max_new_tokens: int = 512
    quit_below: float = 0.12
    self_prompts: int = 0
    tempered: float = 0.0
    """Share of the prompts answered once more at temperature 0.7."""
    seconds: float | None = None
    seed: int = 0


def read_prompts(path: Path) -> list[dict[str, str]]:
    """Rows of a JSONL file with a field `prompt` and optionally `kind`.

    Raises:
        RequestError: unreadable file, or a line without a prompt.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines if line.strip()]
        return [{"kind": row.get("kind", path.stem), "prompt": row["prompt"]} for row in rows]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise RequestError(
            f"is not a prompt file ({error!r})", where=str(path),
            fix='give one JSON object with "prompt" per line',
        ) from error  # fmt: skip


def make_answers(
    target: Path, prompts: list[dict[str, str]], out: Path, plan: AnswerPlan, device: str,
    report: Report,
) -> TokenShard:  # fmt: skip
    """Answer prompts with the target and write the shard `out` with a JSON record beside it."""
    watch = Stopwatch(plan.seconds)
    teacher = load_teacher(target, device)
    generator = BatchGenerator(teacher, plan.rows, plan.longest_prompt + plan.max_new_tokens)
    if plan.self_prompts:
        own = self_prompts(teacher, generator, KINDS, count=plan.self_prompts, seed=plan.seed)
        report(f"the target wrote {len(own)} prompts")
        prompts = prompts + own
    encoded = encode_prompts(teacher, [row["prompt"] for row in prompts], plan.longest_prompt)
    greedy = Sampling(plan.max_new_tokens, 0.0, plan.quit_below)
    pairs = answer(generator, encoded, greedy, watch, seed=plan.seed, report=report)
    greedy_count = len(pairs)
    again = random.Random(plan.seed).sample(encoded, int(plan.tempered * len(encoded)))
    warm = Sampling(plan.max_new_tokens, 0.7, plan.quit_below)
    pairs += answer(generator, again, warm, watch, seed=plan.seed + 1, report=report)
    random.Random(plan.seed).shuffle(pairs)
    shard = pack(pairs)
    write_shard(shard, out)
    kinds = sorted({row["kind"] for row in prompts})
    summary = {
        "sequences": len(shard),
        "greedy_sequences": greedy_count,
        "answer_tokens": shard.answer_tokens,
        "sha256": shard.sha256(),
        "prompts": {kind: sum(row["kind"] == kind for row in prompts) for kind in kinds},
    }
    out.with_suffix(".json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    report(json.dumps(summary))
    return shard


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """Size of a new drafter; everything else follows the target."""

    layers: int = 3
    taps: int = 5
    selector_rank: int = 32
    selector_top_k: int = 16
    block_size: int = 8
    mask_token_id: int = 0
    conv_group_size: int = 16


def drafter_config(teacher: Teacher, shape: DrafterShape) -> DFlash2Config:
    """A drafter whose layers have the target's widths."""
    config = teacher.config
    depth, taps = config.num_hidden_layers, shape.taps
    # Evenly from layer 1 to the third last, as published drafters tap; one tap sits in the middle.
    spread = [1 + i * (depth - 4) / (taps - 1) for i in range(taps)] if taps > 1 else [depth // 2]
    rope = getattr(config, "rope_parameters", None) or {}
    return DFlash2Config(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", config.hidden_size // config.num_attention_heads),
        rms_norm_eps=1e-6,
        rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        num_target_layers=depth,
        layer_types=("full_attention",) * shape.layers,
        sliding_window=None,
        is_causal=(False,) * shape.layers,
        block_size=shape.block_size,
        conv_kernel_size=2,
        conv_group_size=shape.conv_group_size,
        mask_token_id=shape.mask_token_id,
        selector_rank=shape.selector_rank,
        selector_top_k=shape.selector_top_k,
        target_layer_ids=tuple(round(layer) for layer in spread),
    )


def new_network(config: DFlash2Config, seed: int, device: torch.device) -> DFlash2Network:
    """Random weights (normal, 0.02), identity filters, a selector that adds nothing."""
    torch.manual_seed(seed)
    network = DFlash2Network(config)
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and not name.endswith("kernel_projection"):
            torch.nn.init.normal_(module.weight, std=0.02)
    return network.to(device)


def fit(
    target: Path, shards: list[Path], out: Path, shape: DrafterShape, plan: BatchPlan,
    schedule: Schedule, device: str, shard_bytes: int, report: Report, start: Path | None = None,
) -> int:  # fmt: skip
    """Train a drafter and write its folder `out`; continue `out/checkpoint.pt` where it exists.

    Args:
        start: a drafter folder whose weights a new run begins with.
    """
    teacher = load_teacher(target, device)
    torch.backends.cuda.matmul.allow_tf32 = True
    config = drafter_config(teacher, shape)
    network = new_network(config, plan.seed, teacher.device)
    if start is not None:
        network.load_state_dict(read_network(start, torch.float32, device).state_dict())
    source = BatchSource(_merge(shards), plan)
    report(f"{len(source.shard)} sequences, {source.shard.answer_tokens} answer tokens")
    steps = train(network, teacher, source, schedule, out / "checkpoint.pt", report)
    write_network(network, config, out, shard_bytes=shard_bytes)
    return steps


def _merge(paths: list[Path]) -> TokenShard:
    pairs: list[tuple[list[int], list[int]]] = []
    shards = [read_shard(path) for path in paths]
    if len(shards) == 1:
        return shards[0]
    for shard in shards:
        for index in range(len(shard)):
            row, cut = shard.sequence(index).tolist(), int(shard.prompts[index])
            pairs.append((row[:cut], row[cut:]))
    return pack(pairs)


def evaluate(
    target: Path, drafter: Path, prompts: list[dict[str, str]], device: str, report: Report,
    *, max_new_tokens: int, widths: tuple[int, ...], nodes: tuple[int, ...],
) -> dict[str, object]:  # fmt: skip
    """Table per kind of prompt: tau of chain, trees and oracle, accuracy and recall by position."""
    teacher = load_teacher(target, device)
    network = read_network(drafter, torch.bfloat16, device)
    result: dict[str, object] = {}
    for kind in sorted({row["kind"] for row in prompts}):
        texts = [row["prompt"] for row in prompts if row["kind"] == kind]
        encoded = encode_prompts(teacher, texts, 1024)
        longest = max(len(row) for row in encoded)
        generator = BatchGenerator(teacher, len(encoded), longest + 32 + max_new_tokens)
        answers = generator.generate(encoded, Sampling(max_new_tokens))
        del generator
        total = Tally()
        for recorded in record(
            network, teacher, pack(list(zip(encoded, answers, strict=True))), max(widths)
        ):
            tally(total, recorded, widths, nodes)
        result[kind] = {"requests": len(encoded), **total.table()}
        report(f"{kind}: {json.dumps(result[kind])}")
    return result
