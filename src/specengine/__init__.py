"""The decoding engine and its lossless mechanisms: what is measured.

Importing this package does not import torch: the judge reads `specengine.lattice` and
`specengine.trees` from processes that must stay small.
"""
