"""The five benchmarks (paper section 5.1): from a row in its native format to one user turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specpilot.core.deployment import BENCHMARKS
from specpilot.core.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user turn.

    Attributes:
        id: benchmark name and the row's index in its source, such as `gsm8k/12`.
        benchmark: benchmark name.
        text: what the user says.
    """

    id: str
    benchmark: str
    text: str


def prompts_of(benchmark: str, rows: Sequence[Mapping[str, Any]], where: str) -> list[Prompt]:
    """User turns of all rows, in the order of the source; a repeated text is taken once.

    Args:
        benchmark: one of the five, or any name whose rows hold `prompt`.
        rows: parsed rows in the benchmark's native format, or `{"prompt": text}`.
        where: the source, for messages.

    Raises:
        WorkloadError: a row without the fields of its format.
    """
    prompts: list[Prompt] = []
    seen: set[str] = set()
    for index, row in enumerate(rows):
        text = _text_of(benchmark, row)
        if text is None or not text.strip() or _is_no_text(text):
            raise WorkloadError(
                f"row {index} holds no prompt in the format of {benchmark}",
                where=where,
                fix=f"give rows with {_expected(benchmark)}",
            )
        # The same question in development and among the sealed would not be unseen.
        if text not in seen:
            seen.add(text)
            prompts.append(Prompt(id=f"{benchmark}/{index}", benchmark=benchmark, text=text))
    return prompts


def _is_no_text(text: str) -> bool:
    """Whether it holds half of a surrogate pair, which JSON can write and no tokenizer reads."""
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def _text_of(benchmark: str, row: Mapping[str, Any]) -> str | None:
    native = _native_text(benchmark, row)
    if native is not None:
        return native
    prompt = row.get("prompt")
    return prompt if isinstance(prompt, str) else None


def _native_text(benchmark: str, row: Mapping[str, Any]) -> str | None:
    if benchmark == "gsm8k":
        return _string(row, "question")
    if benchmark == "math500":
        problem = _string(row, "problem")
        ending = "\nPut your final answer in \\boxed{}."
        return None if problem is None else problem + ending
    if benchmark == "humaneval":
        code = _string(row, "prompt")
        if code is None or "entry_point" not in row:
            return None
        return f"Complete the following Python function.\n\n```python\n{code}```"
    if benchmark == "mbpp":
        # The sanitized edition names the task `prompt`.
        task, tests = _string(row, "text") or _string(row, "prompt"), row.get("test_list")
        if task is None or not isinstance(tests, list):
            return None
        lines = "\n".join(str(test) for test in tests)
        return f"{task}\nYour code should pass these tests:\n\n{lines}"
    if benchmark == "mt_bench":
        turns = row.get("turns", row.get("prompt"))
        return str(turns[0]) if isinstance(turns, list) and turns else None
    return None


def _string(row: Mapping[str, Any], key: str) -> str | None:
    value = row.get(key)
    return value if isinstance(value, str) else None


def _expected(benchmark: str) -> str:
    native = {
        "gsm8k": "`question`",
        "math500": "`problem`",
        "humaneval": "`prompt` and `entry_point`",
        "mbpp": "`text` and `test_list`",
        "mt_bench": "`turns`",
    }
    return f"{native[benchmark]}, or with `prompt`" if benchmark in BENCHMARKS else "`prompt`"
