"""The round as a state machine folded from the journal (paper section 3.2)."""
