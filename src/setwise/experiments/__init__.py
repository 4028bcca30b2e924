"""The experiments of the paper, one file per section: a frozen dataclass, its rows, the paper's numbers.

Importing an experiment does not import torch: its class defines the command line, whose help must be fast.
"""

from setwise.experiments.base import Experiment
from setwise.experiments.counting import Counting
from setwise.experiments.gaussian import Gaussian
from setwise.experiments.histology import Histology
from setwise.experiments.mil import MIL
from setwise.experiments.pointcloud import Diffusion, PointCloud
from setwise.experiments.smoothing import Smoothing

EXPERIMENTS: dict[str, type[Experiment]] = {
    experiment.name: experiment
    for experiment in (Gaussian, Counting, PointCloud, Diffusion, Smoothing, Histology, MIL)
}
