"""From a deployment to its requests."""

from pathlib import Path

from specpilot.core.deployment import Deployment
from specpilot.core.errors import WorkloadError
from specpilot.core.requests import Request
from specpilot.workload.benchmarks import Prompt, prompts_of
from specpilot.workload.chat import ChatTokenizer
from specpilot.workload.sources import read_source
from specpilot.workload.split import Split, choose


def load_requests(deployment: Deployment, target_folder: Path, secret: str = "") -> Split:
    """Read, split and tokenize the deployment's requests. The same inputs give the same split.

    Args:
        secret: of the run; empty for a split that is only looked at.

    Raises:
        WorkloadError: a source or the tokenizer is missing or malformed, or too small.
    """
    tokenizer = ChatTokenizer(target_folder)
    workload = deployment.workload
    chosen = workload.benchmarks
    sources: dict[str, str | None] = (
        dict(chosen) if isinstance(chosen, dict) else dict.fromkeys(chosen)
    )
    if not sources:
        raise WorkloadError(
            "names no benchmark", where="workload.benchmarks", fix="name at least one"
        )
    development: list[Request] = []
    sealed: list[Request] = []
    for benchmark, source in sources.items():
        rows, where = read_source(benchmark, source)
        prompts = prompts_of(benchmark, rows, where)
        seen, unseen = choose(prompts, workload.development, workload.sealed, workload.seed, secret)
        development += [_request(p, tokenizer, workload.max_new_tokens) for p in seen]
        sealed += [_request(p, tokenizer, workload.sealed_max_new_tokens) for p in unseen]
    return Split(development=tuple(development), sealed=tuple(sealed))


def _request(prompt: Prompt, tokenizer: ChatTokenizer, limit: int) -> Request:
    return Request(
        id=prompt.id,
        benchmark=prompt.benchmark,
        prompt_token_ids=tokenizer.encode_turn(prompt.text),
        max_new_tokens=limit,
    )
