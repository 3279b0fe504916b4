"""Draft trees and their builders. Pure numpy."""

from specengine.trees.base import TreeBuilder
from specengine.trees.best_first import build_best_first
from specengine.trees.best_first_batch import TreeBatch, build_best_first_batch
from specengine.trees.chain import build_chain
from specengine.trees.draft_tree import DraftTree
from specengine.trees.registry import BUILDERS, build

__all__ = [
    "BUILDERS",
    "DraftTree",
    "TreeBatch",
    "TreeBuilder",
    "build",
    "build_best_first",
    "build_best_first_batch",
    "build_chain",
]
