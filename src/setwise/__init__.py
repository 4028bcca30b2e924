"""setwise: learning on sets by message passing over a latent graph.

The everyday names are here, layers are in `setwise.nn`, and everything else is in the package of its concern.
Names are loaded when they are first used, so that ``import setwise`` stays fast.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
