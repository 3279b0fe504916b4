"""Drafters: models that propose a lattice from the target's hidden states."""
