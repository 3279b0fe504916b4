"""The HTTP server: OpenAI-compatible completions, and what a judge needs to measure a system."""
