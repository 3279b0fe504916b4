"""Own prompts in the native format of each benchmark, for runs without a hub."""
