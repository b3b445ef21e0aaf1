"""Replay buffers and algorithms for other frameworks, one package each."""
