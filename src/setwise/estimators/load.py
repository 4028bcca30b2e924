"""Load a fitted estimator from a model file."""

from pathlib import Path

from setwise.estimators.base import Network
from setwise.estimators.classifier import SetClassifier
from setwise.estimators.model_file import read_model
from setwise.estimators.regressor import SetRegressor


def load(path: Path | str, *, network: Network | None = None) -> SetClassifier | SetRegressor:
    """Load a fitted estimator that `SetClassifier.save` or `SetRegressor.save` wrote.

    No code in the file is executed.

    Args:
        path: the model file.
        network: the ``network`` argument of the saved estimator, if it had one.
    """
    path = Path(path)
    state, description = read_model(path)
    kinds = {kind.__name__: kind for kind in (SetClassifier, SetRegressor)}
    try:
        if description.get("own_network") and network is None:
            raise ValueError("it was fitted with a custom network; pass it as load(…, network=…)")
        estimator = kinds[description["estimator"]](**description["params"])
        estimator._restore(description, state, network)
    except Exception as error:  # an invalid description can cause any error
        raise ValueError(f"{path} is not a valid setwise estimator: {error}") from error
    return estimator
