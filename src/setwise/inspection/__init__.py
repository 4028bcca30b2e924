"""Inspect a model: importance of elements, the latent graph of a set, plots, the explorer page."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
