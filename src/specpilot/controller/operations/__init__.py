"""What an agent may ask for: one file per operation, `answering` in front of them."""
