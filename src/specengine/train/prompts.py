"""Prompts for self-distillation: public training items, and prompts that the target writes itself.

No benchmark test item enters: GSM8K's train split, MBPP tasks outside its test range, docstrings of
Python source trees, and user turns that the target samples after its own chat template's prefix.
"""

import ast
import json
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from specengine.errors import RequestError
from specengine.train.generation import BatchGenerator, Sampling
from specengine.train.teacher import Teacher

MATH_SUFFIX = "\nPut your final answer in \\boxed{}."
FUNCTION_PREFIX = "Complete the following Python function.\n\n```python\n"
_MBPP_TEST = range(11, 511)

CHAT_SEEDS = (
    "", "Write", "Write a short story about", "Write a blog post about", "Compose", "What are",
    "Explain", "Explain how", "Explain the concept of", "What is the difference between",
    "Draft an email",
    "What would happen if", "How can I", "How does", "Why", "Describe", "Discuss", "Compare",
    "Imagine you are", "Pretend to be", "You are a", "Suppose you are", "Can you", "Help me",
    "Summarize", "Extract", "Identify", "List", "Given the following", "Analyze", "Create a",
    "Design", "Edit the following", "Who", "Should", "Give me", "I", "Tell me about", "Provide",
    "Evaluate the following", "Classify", "In the field of", "Which", "Rewrite", "Outline", "If",
    "Act as", "Develop", "Craft", "Propose", "A", "The", "When", "Do you think",
)  # fmt: skip
MATH_SEEDS = (
    "Solve for $x$:", "Find the value of", "What is the", "How many", "Let $f(x) =", "Compute",
    "Evaluate", "Evaluate $\\", "Simplify", "Simplify $\\", "If $x", "The sum of", "A circle",
    "In triangle $ABC$,", "Find all", "Determine", "What is the smallest positive integer",
    "What is the greatest", "In how many ways", "Convert", "Factor", "Express", "Let $a", "A",
    "The function $f", "Find the number of", "Find the product", "The equation", "Two", "Given",
    "What is the probability", "Suppose", "For what value of", "The graph of", "Calculate $",
    "What is the remainder when", "The point $(", "Let $x", "The polynomial", "Each", "A fair",
    "Find the area of", "Consider", "If $f(x) =", "Triangle", "The first", "There are", "Solve",
    "Find the distance between", "The vectors", "An", "What is $", "Find $", "Each of the",
)  # fmt: skip
CODE_SEEDS = (
    "Write a Python function that", "Write a Python function to", "Write a function to find",
    "Write a function to", "Write a python function to check whether", "Write a Python program",
    "Write a function that takes", "Implement", "Write a program to", "How do I", "Write code",
    "Write a C++ program to", "Write a function to count", "Write a function to sort",
    "Write a Python function to calculate", "Write a Python class", "Write a function to remove",
)  # fmt: skip
FUNCTION_SEEDS = (
    "def ", "def is_", "def count_", "def get_", "def find_", "def sum_", "def max_", "def sort_",
    "from typing import List\n\n\ndef ", "import math\n\ndef ",
    "from typing import List, Tuple\n\n",
    "def remove_", "def check_", "def make_", "def string_", "def is_prime", "def filter_",
)  # fmt: skip


def public_prompts(
    gsm8k: Path | None, mbpp: Path | None, sources: Path | None, *, limit: int, seed: int
) -> list[dict[str, str]]:
    """Prompts of public training items, shuffled; `limit` bounds the docstring prompts."""
    prompts: list[dict[str, str]] = []
    if gsm8k is not None:
        prompts += [_prompt("gsm8k", row["question"]) for row in _lines(gsm8k)]
    if mbpp is not None:
        for row in _lines(mbpp):
            if int(row["task_id"]) not in _MBPP_TEST:
                prompts += _mbpp_prompts(row)
    if sources is not None:
        found = list(_functions(sources))
        random.Random(seed).shuffle(found)
        prompts += [_prompt("function", text) for text in found[:limit]]
    random.Random(seed).shuffle(prompts)
    return prompts


def self_prompts(
    teacher: Teacher, generator: BatchGenerator, kinds: Iterable[str], *, count: int, seed: int
) -> list[dict[str, str]]:
    """At most `count` user turns per kind that the target samples at temperature 1.

    Turns that do not end within their budget, repeat another, or are too short are dropped.
    """
    prefix = _user_prefix(teacher)
    chooser = random.Random(seed)
    prompts: list[dict[str, str]] = []
    for kind in kinds:
        seeds, lead, tail = _SELF[kind]
        seen: set[str] = set()
        for _ in range(-(-count // generator.rows)):
            starts = [chooser.choice(seeds) for _ in range(generator.rows)]
            rows = [
                teacher.tokenizer.encode(prefix + lead + start, add_special_tokens=False)
                for start in starts
            ]
            turns = generator.generate(rows, Sampling(160, temperature=1.0, quit_below=0.1))
            for start, turn in zip(starts, turns, strict=True):
                text = teacher.tokenizer.decode(turn, skip_special_tokens=True)
                whole = (lead + start + text).strip()
                if turn[-1] in teacher.stop_ids and len(whole) > 12 + len(lead):
                    seen.add(_closed(whole, kind) + tail)
        prompts += [_prompt(f"self-{kind}", text) for text in sorted(seen)[:count]]
    return prompts


_SELF = {
    "chat": (CHAT_SEEDS, "", ""),
    "math": (MATH_SEEDS, "", MATH_SUFFIX),
    "code": (CODE_SEEDS, "", ""),
    "function": (FUNCTION_SEEDS, FUNCTION_PREFIX, ""),
}
KINDS = tuple(_SELF)


def _closed(text: str, kind: str) -> str:
    if kind != "function":
        return text
    body = text.removeprefix(FUNCTION_PREFIX.strip()).split("```")[0]
    return FUNCTION_PREFIX + body.strip("\n") + "\n```"


def _prompt(kind: str, text: str) -> dict[str, str]:
    return {"kind": kind, "prompt": text}


def _lines(path: Path) -> Iterator[dict[str, object]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(
            f"cannot be read ({error.strerror})", where=str(path), fix="check the path"
        ) from error
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def _mbpp_prompts(row: dict[str, object]) -> list[dict[str, str]]:
    text, code = str(row["text"]), str(row["code"]).replace("\r\n", "\n")
    tests = "\n".join(row["test_list"])  # type: ignore[arg-type]
    prompts = [_prompt("mbpp", f"{text}\nYour code should pass these tests:\n\n{tests}")]
    heads = [line for line in code.splitlines() if line.startswith("def ")]
    if heads:
        body = f'{heads[-1].rstrip()}\n    """ {text}\n    """\n'
        prompts.append(_prompt("function", f"{FUNCTION_PREFIX}{body}```"))
    return prompts


def _functions(root: Path) -> Iterator[str]:
    """HumanEval-like prompts: signature and docstring of top-level functions under `root`."""
    for path in sorted(root.rglob("*.py")):
        try:
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # fixtures with broken syntax or encodings are common in source trees
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith(("_", "test")):
                continue
            text = ast.get_docstring(node)
            if not text or not 40 <= len(text) <= 700:
                continue
            indented = text.replace("\n", "\n    ")
            head = f"def {node.name}({ast.unparse(node.args)}):"
            yield f'{FUNCTION_PREFIX}{head}\n    """ {indented}\n    """\n```'


def _user_prefix(teacher: Teacher) -> str:
    marker = "\x00"
    whole = teacher.tokenizer.apply_chat_template(
        [{"role": "user", "content": marker}], add_generation_prompt=True, tokenize=False
    )
    return str(whole).split(marker)[0]
