"""Layers, models and baselines: modules that take ``(x, mask)`` and compose."""
