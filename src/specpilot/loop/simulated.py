"""Requests and the ceiling of simulated deployments: the parts whose truth the simulation sets."""

from collections.abc import Callable
from statistics import fmean

from specpilot.core.deployment import Deployment
from specpilot.engines.simulated import simulated_requests
from specpilot.loop.facts import CeilingFacts, Factor
from specpilot.loop.run import CeilingInputs
from specpilot.workload.split import Split

_FLOOR_SHARE = 0.7
"""Byte floors of the simulated device over its profiled time."""
_TREE_GAIN = 1.4
"""tau of the simulated best-first tree over the chain's."""


def simulated_split(deployment: Deployment) -> Callable[[str], Split]:
    """A loader of made-up requests for the deployment's benchmarks, the same for every secret."""
    workload = deployment.workload

    def load(_: str) -> Split:
        made = simulated_requests(
            tuple(workload.benchmarks),
            workload.development + workload.sealed,
            workload.max_new_tokens,
            seed=workload.seed,
        )
        side = {request.id: int(request.id.rsplit("/", 1)[1]) for request in made}
        return Split(
            development=tuple(r for r in made if side[r.id] < workload.development),
            sealed=tuple(
                r.model_copy(update={"max_new_tokens": workload.sealed_max_new_tokens})
                for r in made
                if side[r.id] >= workload.development
            ),
        )

    return load


def simulated_ceiling(inputs: CeilingInputs) -> CeilingFacts:
    """Factors of a device whose floors are a fixed share of what was profiled."""
    step = fmean(profile.seconds_per_step for profile in inputs.profiles)
    by_class = {
        name: fmean(profile.by_class[name] for profile in inputs.profiles)
        for name in inputs.profiles[0].by_class
    }
    profiled = sum(by_class.values())
    factors = {
        Factor.TAU: max(_TREE_GAIN * 2.4 / inputs.tau, 1.0),
        Factor.KERNEL: 1 / _FLOOR_SHARE,
        Factor.OVERHEAD: step / profiled,
    }
    ar = inputs.autoregressive_seconds
    budgets = inputs.step_seconds or {8: step}
    return CeilingFacts(
        tau_factor=factors[Factor.TAU],
        kernel_factor=factors[Factor.KERNEL],
        overhead_factor=factors[Factor.OVERHEAD],
        ceiling=factors[Factor.TAU] * factors[Factor.KERNEL] * factors[Factor.OVERHEAD],
        largest=max(factors, key=lambda factor: factors[factor]),
        tau=inputs.tau,
        tau_best=inputs.tau * factors[Factor.TAU],
        best_nodes=max(budgets),
        seconds_per_step=step,
        profiled_seconds=profiled,
        floor_seconds=profiled * _FLOOR_SHARE,
        autoregressive_seconds=ar,
        by_class=by_class,
        curve=tuple((rows, inputs.tau, inputs.tau * ar / seconds)
                    for rows, seconds in sorted(budgets.items())),
    )  # fmt: skip
