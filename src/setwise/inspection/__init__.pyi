from . import explorer as explorer
from . import plots as plots
from .importance import importance as importance
from .importance import strongest_neighbours as strongest_neighbours
from .set_graph import NearUniformGraph as NearUniformGraph
from .set_graph import SetGraph as SetGraph
