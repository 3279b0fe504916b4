"""`python -m specengine.train answers|fit|evaluate`.

Torch is imported when a step begins: help and mistaken arguments are answered at once.
"""

import argparse
import json
import logging
import sys
from pathlib import Path

from specengine.errors import EngineError, OptionError
from specengine.train.arguments import STEPS, training_parser

_log = logging.getLogger("specengine.train")
_NO_LIMIT = 1_000_000
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one step; 0 on success, 1 on an error that the user can act on, 130 on an interrupt."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
    _log.setLevel(logging.INFO)
    runs = {"answers": _answers, "fit": _fit, "evaluate": _evaluate}
    try:
        options = training_parser(runs).parse_args(arguments)
        options.device = options.device or _best_device()
        _check_device(options.device)
        options.run(options)
    except EngineError as error:
        _log.error("error: %s", " ".join(str(error).split()))
        return 1
    except OSError as error:
        where = error.filename or "the disk"
        _log.error("error: %s: %s; check the path and the disk", where, error.strerror or error)
        return 1
    except KeyboardInterrupt:
        _log.error("interrupted; the same command goes on from the last checkpoint")
        return INTERRUPTED
    return 0


def _answers(options: argparse.Namespace) -> None:
    _make_answers(options, options.out, options.minutes)


def _make_answers(options: argparse.Namespace, out: Path, minutes: float | None) -> None:
    from specengine.train import answers as answering
    from specengine.train.prompts import public_prompts

    prompts = [row for path in options.prompts for row in answering.read_prompts(path)]
    prompts += public_prompts(
        options.gsm8k, options.mbpp, options.sources, limit=options.functions, seed=options.seed
    )
    plan = answering.AnswerPlan(
        rows=options.answer_rows,
        longest_prompt=options.longest_prompt,
        max_new_tokens=options.max_new_tokens,
        self_prompts=options.self_prompts,
        tempered=options.tempered,
        seconds=_seconds(minutes),
        seed=options.seed,
    )
    answering.make_answers(options.target, prompts, out, plan, options.device, _log.info)


def _fit(options: argparse.Namespace) -> None:
    from specengine.train.batches import BatchPlan
    from specengine.train.fitting import fit
    from specengine.train.loop import Schedule
    from specengine.train.shapes import DrafterShape

    data = options.data
    if not data:
        data = [options.out / "answers.npz"]
        if not data[0].exists():
            _make_answers(options, data[0], options.answer_minutes)
    shape = DrafterShape(
        kind=options.kind,
        layers=options.layers,
        taps=tuple(options.tap_layers) if options.tap_layers else options.taps,
        heads=options.heads,
        kv_heads=options.kv_heads,
        intermediate=options.intermediate,
        rank=options.rank,
        block_size=options.blocks[0],
        unrolled=options.unrolled,
        draft_vocabulary=options.draft_vocabulary,
    )
    plan = BatchPlan(
        sequences=options.sequences,
        rows=options.rows,
        blocks=tuple(options.blocks),
        decay=0.5,
        seed=options.seed,
    )
    schedule = Schedule(
        steps=options.steps or (STEPS if options.minutes is None else _NO_LIMIT),
        seconds=_seconds(options.minutes),
        rate=options.rate,
        warmup=options.warmup,
    )
    fit(
        options.target, data, options.out, shape, plan, schedule, options.device,
        options.shard_bytes, _log.info, options.start, options.mask_token,
    )  # fmt: skip


def _evaluate(options: argparse.Namespace) -> None:
    from specengine.train.answers import read_prompts
    from specengine.train.evaluation import evaluate

    prompts = [row for path in options.prompts for row in read_prompts(path)]
    table = evaluate(
        options.target, options.drafter, prompts, options.device, _log.info,
        max_new_tokens=options.max_new_tokens, widths=tuple(options.positions),
        nodes=tuple(options.nodes), recording=options.recording,
    )  # fmt: skip
    options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def _best_device() -> str:
    import torch

    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _check_device(name: str) -> None:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        # What torch says after its first sentence is for its own developers.
        reason = str(error).split(". ")[0].splitlines()[0]
        raise OptionError(
            f"cannot use '{name}' ({reason:.120})", where="--device", fix="give cpu or cuda:N"
        ) from error


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60 * minutes


if __name__ == "__main__":
    sys.exit(main())
