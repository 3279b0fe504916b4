"""The trainer's command line: what it takes, in which ranges.

A mistake raises instead of printing the usage, so that it ends in one line like any other.
"""

import argparse
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path

from specengine.command_line import Parser, whole
from specengine.drafters.records import KINDS

STEPS = 3000
"""Of a training without a time box."""


def positive(text: str) -> float:
    """Reads a finite number above 0."""
    value = float(text)
    if not (isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{value} is not a finite number above 0")
    return value


def share(text: str) -> float:
    """Reads a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{value} does not lie from 0 to 1")
    return value


def training_parser(
    runs: Mapping[str, Callable[[argparse.Namespace], None]],
) -> argparse.ArgumentParser:
    """The parser of all steps; parsing raises `OptionError`.

    Args:
        runs: what `answers`, `fit` and `evaluate` call with what was given.
    """
    parser = Parser(
        prog="python -m specengine.train", description="Train a small drafter for a target."
    )
    steps = parser.add_subparsers(required=True)

    answers = steps.add_parser("answers", help="let the target answer prompts")
    answers.set_defaults(run=runs["answers"])
    answers.add_argument("--out", type=Path, required=True, help="token shard (.npz)")
    _answer_options(answers, "--rows", self_prompts=0)

    fit_step = steps.add_parser("fit", help="train a drafter on answers")
    fit_step.set_defaults(run=runs["fit"])
    _fit_options(fit_step)
    group = fit_step.add_argument_group("answers", "where --data is not given")
    group.add_argument("--answer-minutes", type=positive, help="time box of the answers")
    _answer_options(group, "--answer-rows", self_prompts=1000)

    evaluation = steps.add_parser("evaluate", help="tau, accuracy and recall on prompts")
    evaluation.set_defaults(run=runs["evaluate"])
    evaluation.add_argument("--drafter", type=Path, required=True, help="drafter folder")
    evaluation.add_argument(
        "--prompts", type=Path, nargs="+", required=True, help="JSONL: prompt, kind"
    )
    evaluation.add_argument("--out", type=Path, required=True, help="table (.json)")
    evaluation.add_argument("--max-new-tokens", type=whole(1), default=384, help="of one answer")
    evaluation.add_argument(
        "--positions", type=whole(1), nargs="+", default=[], help="drafted; else as trained"
    )
    evaluation.add_argument("--recording", type=Path, help="keep lattices for replay (.npz)")
    evaluation.add_argument(
        "--nodes", type=whole(2), nargs="+", default=[16, 32], help="rows of best-first trees"
    )

    for step in (answers, fit_step, evaluation):
        step.add_argument("--target", type=Path, required=True, help="Transformers folder")
        step.add_argument("--device", help="the first GPU where there is one, else cpu")
        step.add_argument("--seed", type=whole(0), default=0, help="of everything that is drawn")
        if step is not evaluation:
            step.add_argument("--minutes", type=positive, help="time box")
    return parser


def _answer_options(parser: argparse._ActionsContainer, rows: str, *, self_prompts: int) -> None:
    add = parser.add_argument
    add("--prompts", type=Path, nargs="*", default=[], help="JSONL: prompt, kind")
    add("--gsm8k", type=Path, help="GSM8K train.jsonl")
    add("--mbpp", type=Path, help="mbpp.jsonl; its test range is left out")
    add("--sources", type=Path, help="Python source tree, for its docstrings")
    add("--functions", type=whole(0), default=5000, help="docstrings at most")
    add("--self-prompts", type=whole(0), default=self_prompts, help="own prompts per kind")
    add("--tempered", type=share, default=0.3, help="share again at T=0.7")
    add(rows, dest="answer_rows", type=whole(1), default=1024, help="prompts answered at once")
    add("--longest-prompt", type=whole(1), default=256, help="tokens")
    add("--max-new-tokens", type=whole(1), default=512, help="of one answer")


def _fit_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--kind", choices=KINDS, default="dflash2", help="of the drafter (default: %(default)s)")
    add("--data", type=Path, nargs="+", default=[], help="token shards; else answers are made")
    add("--out", type=Path, required=True, help="drafter folder")
    add("--start", type=Path, help="drafter folder to begin with")
    add(
        "--mask-token",
        type=whole(0),
        help="vocabulary row that no text holds; else one is looked for",
    )
    add("--layers", type=whole(1), help="3; EAGLE-3 has 1")
    add("--taps", type=whole(1), help="tapped layers, spread evenly: 5; EAGLE-3 3")
    add("--tap-layers", type=whole(0), nargs="+", help="which layers are tapped, instead of --taps")
    add("--heads", type=whole(1), help="as the target")
    add("--kv-heads", type=whole(1), help="as the target")
    add("--intermediate", type=whole(1), help="width of the MLPs; as the target")
    add("--rank", type=whole(1), default=32, help="DFlash2's selector, DSpark's Markov head")
    add("--blocks", type=whole(2), nargs="+", default=[8], help="tokens, anchor included, in turn")
    add("--unrolled", type=whole(1), default=7, help="EAGLE-3's steps")
    add("--draft-vocabulary", type=whole(1), help="tokens of EAGLE-3's own head; else the target's")
    add("--sequences", type=whole(1), default=32, help="per step")
    add("--rows", type=whole(1), default=1024, help="block rows per sequence and step")
    add("--steps", type=whole(1), help=f"{STEPS} where no time box is given")
    add("--rate", type=positive, default=1e-3, help="highest learning rate")
    add("--warmup", type=whole(0), default=200, help="steps in which the rate rises")
    add("--shard-bytes", type=whole(1), default=16 * 2**20, help="largest file of weights")
