"""The engine's mechanisms inside other people's libraries."""
