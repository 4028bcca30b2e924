from . import explorer as explorer
from . import plots as plots
from .importance import importance as importance
from .set_graph import NearUniformGraph as NearUniformGraph
from .set_graph import SetGraph as SetGraph
