"""scikit-learn estimators for sets: `SetClassifier`, `SetRegressor`, and `load` for their model files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
