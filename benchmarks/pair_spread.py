"""How far pairs of equal servers spread: what a deployment's threads do to the noise of its runs.

Two servers of the same stock play one request in turns, A B B A, as a paired run does. The standard
deviation of the log ratio over pairs is what promotion has to see through.

    python benchmarks/pair_spread.py DEPLOYMENT [--threads 1 2] [--pairs 30] [--tokens 20] [--json]
"""

import argparse
import asyncio
import json
import math
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

from specpilot.controller.servers import Arena, Place, play_once, serving_all
from specpilot.controller.systems import SystemRepository
from specpilot.controller.turns import Turns
from specpilot.core.deployment import Deployment, load_deployment
from specpilot.core.requests import Request
from specpilot.core.system import Checkout
from specpilot.engines.embedded import EmbeddedAdapter
from specpilot.engines.target_folder import model_folder
from specpilot.workload.loading import load_requests

ARMS = ("a", "b")


async def seconds_of(
    arena: Arena, stock: Checkout, request: Request, pairs: int
) -> dict[str, list[float]]:
    """Seconds of every play, by arm."""
    places = [Place(stock, arena.devices[0], trusted=True) for _ in ARMS]
    taken: dict[str, list[float]] = {name: [] for name in ARMS}
    async with serving_all(arena, places, [request]) as servers:
        turns = Turns(dict(zip(ARMS, servers, strict=True)), frozenset(ARMS))
        await turns.begin()
        for number in range(pairs):
            for name in ARMS if number % 2 == 0 else ARMS[::-1]:
                async with turns.of(name) as server:
                    outcome = await play_once(server, request)
                taken[name].append(len(outcome.output_token_ids) / outcome.tokens_per_second)
    return taken


def spread(taken: dict[str, list[float]]) -> dict[str, float]:
    """What the plays say."""
    logs = [math.log(b / a) for a, b in zip(taken["a"], taken["b"], strict=True)]
    return {
        "median_seconds": statistics.median(taken["a"] + taken["b"]),
        "sd_log_ratio": statistics.stdev(logs),
        "mean_log_ratio": statistics.fmean(logs),
    }


async def measure(
    deployment: Deployment, threads: list[int], pairs: int, tokens: int
) -> dict[int, dict[str, float]]:
    """Spread by threads, on fresh servers each time."""
    requests = load_requests(deployment, model_folder(deployment.target.model), "spread")
    request = requests.development[0].model_copy(update={"max_new_tokens": tokens})
    found = {}
    with tempfile.TemporaryDirectory(prefix="spread-") as place:
        adapter = EmbeddedAdapter(deployment, Path(place))
        repository = SystemRepository(Path(place))
        stock = repository.export(repository.commit_stock(adapter.stock_tree()))
        arena = Arena(adapter, deployment.platform.devices[:1], deployment.platform.isolation)
        for count in threads:
            taken = await seconds_of(replace(arena, threads=count), stock, request, pairs)
            found[count] = spread(taken)
    return found


def main() -> None:
    """Print a line for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("deployment", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = asyncio.run(
        measure(
            load_deployment(arguments.deployment),
            arguments.threads,
            arguments.pairs,
            arguments.tokens,
        )
    )
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for count, line in found.items():
        print(
            f"{count} threads: {line['median_seconds']:.2f} s a request, pairs spread by "
            f"{line['sd_log_ratio']:.3f} around {line['mean_log_ratio']:+.3f} (logs)"
        )


if __name__ == "__main__":
    main()
