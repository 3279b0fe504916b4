"""Best-first trees built where the drafter's scores are: option `device_tree`.

The edges of a lattice stay on the GPU; one kernel builds the tree and one copy brings its rows to
the host, which verification needs there. Trees are those of the host's builder, node for node.
What the kernel does not build is refused when the engine starts, never built elsewhere unseen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.drafters.base import DeviceDrafter
from specengine.errors import OptionError
from specengine.kernels.tree_builder import (
    MAX_CANDIDATES,
    MAX_NODES,
    MAX_POSITIONS,
    build_best_first_trees,
    fits,
)
from specengine.trees import DraftTree

if TYPE_CHECKING:
    from specengine.decoding.options import EngineOptions
    from specengine.drafters.base import DeviceLattice, Drafter
    from specengine.trees.best_first_torch import DeviceTrees


def require_device_tree(
    drafter: Drafter, options: EngineOptions, positions: int, nodes: int
) -> DeviceDrafter:
    """The drafter, if the kernel builds what the options ask for.

    Args:
        positions: drafted positions of a step.
        nodes: verified rows of a step.

    Raises:
        OptionError: another tree, a temperature, a cut by confidence, a drafter whose scores are
            not on a GPU, or a shape that the kernel does not build.
    """
    if options.tree != "best_first":
        raise _refused(f"builds best-first trees, and 'tree' is '{options.tree}'")
    if options.tree_temperature != 1.0:
        raise _refused("builds by the lattice's own scores, and 'tree_temperature' is not 1")
    if options.confidence:
        raise _refused("reads no estimates of acceptance, and 'confidence' is set")
    if not isinstance(drafter, DeviceDrafter):
        raise _refused(f"needs scores on a GPU, and a {drafter.kind} drafter keeps none there")
    width = drafter.candidates_per_position
    if not fits(drafter.device, positions, width, nodes):
        raise _refused(
            f"does not build {positions} positions of {width} candidates into {nodes} nodes on "
            f"'{drafter.device}'; it builds up to {MAX_POSITIONS}, {MAX_CANDIDATES} and "
            f"{MAX_NODES} on a GPU of compute capability 8.0 or later"
        )
    return drafter


def build_on_device(lattice: DeviceLattice, anchor: int, depth: int, nodes: int) -> DraftTree:
    """The best-first tree of at most `nodes` rows over the first `depth` positions.

    Raises:
        OptionError: `nodes` is below 2.
        KernelError: see `build_best_first_trees`.
    """
    root = torch.full((1,), anchor, dtype=torch.int64, device=lattice.ids.device)
    trees = build_best_first_trees(
        lattice.ids[None, :depth], lattice.edge[None, :depth], root, nodes
    )
    rows = _packed(trees).cpu().numpy()
    size = int(rows[-1, 0])
    return DraftTree(
        tokens=rows[0, :size].copy(),
        parent=_narrow(rows[1, :size]),
        depth=_narrow(rows[2, :size]),
        logp=_narrow(rows[3, :size]).view(np.float32),
    )


def _packed(trees: DeviceTrees) -> torch.Tensor:
    """Tokens, parents, depths, bits of logp and the size of one tree, int64 [5, N]: one copy waits
    for the device once, five would five times."""
    bits = trees.logp.view(torch.int32).long()
    size = trees.size[:, None].expand_as(trees.tokens)
    return torch.cat((trees.tokens, trees.parent, trees.depth, bits, size))


def _narrow(row: NDArray[np.int64]) -> NDArray[np.int32]:
    return row.astype(np.int32)


def _refused(reason: str) -> OptionError:
    return OptionError(reason, where="option 'device_tree'", fix="leave it at false")
