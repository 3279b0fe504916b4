"""The loop and the judge: what measures systems and decides about them."""
