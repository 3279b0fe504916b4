"""What earlier runs proved, kept as replayable entries (paper section 3.4)."""
