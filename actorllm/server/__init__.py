"""HTTP: an OpenAI-compatible ASGI app around an engine."""
