"""The target answers prompts; its answers are the labels of training."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specengine.errors import RequestError
from specengine.train.generation import BatchGenerator, Sampling, Stopwatch
from specengine.train.prompts import KINDS, self_prompts
from specengine.train.shards import TokenShard, pack, write_shard
from specengine.train.teacher import load_teacher

Report = Callable[[str], None]


def encode_texts(tokenizer: Any, texts: Sequence[str], longest: int) -> list[list[int]]:
    """Chat-template token ids of single user turns; longer ones than `longest` are dropped."""
    rows = []
    for text in texts:
        whole = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer.encode(whole, add_special_tokens=False)
        if len(ids) <= longest:
            rows.append(ids)
    return rows


def answer(
    generator: BatchGenerator,
    prompts: Sequence[list[int]],
    how: Sampling,
    watch: Stopwatch,
    *,
    seed: int,
    report: Report,
) -> list[tuple[list[int], list[int]]]:
    """Answer prompts batch by batch until they or the time end.

    Batches hold prompts of similar length and come in a shuffled order, so that an early end
    leaves a fair sample.
    """
    ordered = sorted(prompts, key=len)
    batches = [
        ordered[start : start + generator.rows] for start in range(0, len(ordered), generator.rows)
    ]
    random.Random(seed).shuffle(batches)
    pairs: list[tuple[list[int], list[int]]] = []
    slowest = 0.0
    for batch in batches:
        before = watch.left()
        if before < slowest:
            report(f"time box: {len(pairs)} of {len(prompts)} prompts answered")
            break
        answers = generator.generate(batch, how)
        slowest = max(slowest, before - watch.left()) if before != float("inf") else 0.0
        pairs += zip(batch, answers, strict=True)
        tokens = sum(len(row) for row in answers)
        report(f"answered {len(pairs)} prompts; last batch {tokens} tokens")
    return pairs


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
    encoded = encode_texts(
        teacher.tokenizer, [row["prompt"] for row in prompts], plan.longest_prompt
    )
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
