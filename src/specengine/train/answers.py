"""The target answers prompts; its answers are the labels of training."""

import random
from collections.abc import Callable, Sequence

from specengine.train.generation import BatchGenerator, Sampling, Stopwatch
from specengine.train.teacher import Teacher


def encode_prompts(teacher: Teacher, texts: Sequence[str], longest: int) -> list[list[int]]:
    """Chat-template token ids of single user turns; longer ones than `longest` are dropped."""
    rows = []
    for text in texts:
        whole = teacher.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
        )
        ids = teacher.tokenizer.encode(whole, add_special_tokens=False)
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
    report: Callable[[str], None],
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
