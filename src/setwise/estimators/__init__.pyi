from .classifier import SetClassifier as SetClassifier
from .load import load as load
from .regressor import SetRegressor as SetRegressor
