"""One budget of verified rows for several requests (paper section 4.4).

The step verifies the best nodes over the trees of all requests by path log-probability. Best-first
trees are prefix-closed, so what a request gets of its own is a valid tree, and it is the best-first
tree of that many nodes.
"""

from collections.abc import Sequence
from heapq import heapify, heapreplace
from math import inf

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees.best_first import BestFirstSearch, edge_rows
from specengine.trees.draft_tree import DraftTree


def build_shared(
    lattices: Sequence[Lattice], anchors: Sequence[int], nodes: int
) -> list[DraftTree]:
    """Best-first trees of all requests, `nodes` rows together, the roots included.

    Equal scores go to the shallower node, then to the earlier request. Lattices may differ in
    positions and candidates: a request's depth is capped by its own lattice.

    Raises:
        OptionError: `nodes` has no room for every root.
    """
    if nodes < len(lattices):
        raise OptionError(
            f"is {nodes} for {len(lattices)} requests",
            where="option 'nodes'",
            fix="give at least one row per request: roots are counted",
        )
    searches = [BestFirstSearch(item.positions, edge_rows(item.edge)) for item in lattices]
    waiting = [
        (-search.next_score, search.next_depth, index) for index, search in enumerate(searches)
    ]
    heapify(waiting)
    for _ in range(nodes - len(lattices)):
        if not waiting or waiting[0][0] == inf:
            break
        search = searches[waiting[0][2]]
        search.take(len(search) + 1)
        heapreplace(waiting, (-search.next_score, search.next_depth, waiting[0][2]))
    return [
        search.tree(lattice, anchor)
        for search, lattice, anchor in zip(searches, lattices, anchors, strict=True)
    ]
