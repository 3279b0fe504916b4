"""Draft trees and their builders. Pure numpy, but for the fits (scipy) and `best_first_torch`."""

from specengine.trees.base import TreeBuilder
from specengine.trees.best_first import BestFirst, build_best_first
from specengine.trees.caddtree import CaDDTree, StepCost
from specengine.trees.calibrated import Calibrated
from specengine.trees.chain import Chain, build_chain
from specengine.trees.ddtree import DDTree
from specengine.trees.draft_tree import DraftTree
from specengine.trees.eagle2 import Eagle2
from specengine.trees.opt_tree import OptTree
from specengine.trees.oracle import Oracle
from specengine.trees.registry import TREES, build, make_builder
from specengine.trees.sequoia import Sequoia
from specengine.trees.shared_budget import build_shared

__all__ = [
    "TREES",
    "BestFirst",
    "CaDDTree",
    "Calibrated",
    "Chain",
    "DDTree",
    "DraftTree",
    "Eagle2",
    "OptTree",
    "Oracle",
    "Sequoia",
    "StepCost",
    "TreeBuilder",
    "build",
    "build_best_first",
    "build_chain",
    "build_shared",
    "make_builder",
]
