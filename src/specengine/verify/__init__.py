"""Verification of a draft tree: acceptance of its tokens and commit of its state."""
