"""Load a fitted estimator from a model file."""

from pathlib import Path

from setwise.estimators.base import Network
from setwise.estimators.classifier import SetClassifier
from setwise.estimators.model_file import read_model
from setwise.estimators.regressor import SetRegressor


def load(path: Path | str, *, network: Network | None = None) -> SetClassifier | SetRegressor:
    """Read a fitted estimator that `SetClassifier.save` or `SetRegressor.save` wrote.

    Nothing in the file is executed.

    Args:
        path: of the file.
        network: what made the network, if the estimator was given one of its own.
    """
    path = Path(path)
    state, description = read_model(path)
    kinds = {kind.__name__: kind for kind in (SetClassifier, SetRegressor)}
    try:
        if description.get("own_network") and network is None:
            raise ValueError("its network is one of its own, which load must be given as network=")
        estimator = kinds[description["estimator"]](**description["params"])
        estimator._restore(description, state, network)
    except Exception as error:  # a description may be wrong in any way
        raise ValueError(f"{path} holds no estimator that can be used: {error}") from error
    return estimator
