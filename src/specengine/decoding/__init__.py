"""Decoding: options, sessions, the step, and recordings."""
