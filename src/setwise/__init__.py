"""setwise: learning on sets by message passing over a latent graph that one can look at.

The names below are loaded when they are first used, so that ``import setwise`` and the command line's
``--help`` stay fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "setwise.config": ["Training"],
    "setwise.data.buckets": ["ElementBudgetSampler", "budgeted", "padding_waste"],
    "setwise.estimators": ["SetClassifier", "SetRegressor", "load"],
    "setwise.explain": ["importance", "strongest"],
    "setwise.export": ["to_onnx", "to_torch_export"],
    "setwise.functional": [
        "dirichlet_energy",
        "log_laplace_kernel",
        "log_matern32_kernel",
        "log_matern52_kernel",
        "propagate",
        "log_rbf_kernel",
        "rbf_kernel",
        "row_normalize",
        "row_softmax",
        "shares",
        "sparsify",
        "log_super_gaussian_kernel",
        "top_k",
    ],
    "setwise.graphs": ["NearUniformGraph", "SetGraph"],
    "setwise.nn.auto": ["AutoGraph"],
    "setwise.nn.baselines": [
        "DeepSets",
        "EquivariantLayer",
        "InducedSetAttentionBlock",
        "MultiheadAttentionBlock",
        "MultiheadAttentionPool",
        "SetAttentionBlock",
        "SetTransformer",
    ],
    "setwise.nn.blocks": ["Gamma", "MessagePassingBlock", "SetDenoisingBlock", "SetResidualBlock"],
    "setwise.nn.contrast": ["JoinedPool", "LocalMoments", "SetContrastBlock"],
    "setwise.nn.dense": ["Dense", "Drawn", "NearIdentity", "initialize"],
    "setwise.nn.encoders": ["MLP", "ElementEncoder"],
    "setwise.nn.distinct": ["DistinctDMPS"],
    "setwise.nn.features": ["LowRankWeights", "RandomFeatureGraph"],
    "setwise.nn.framed": ["Framed"],
    "setwise.nn.graph": [
        "GivenGraph",
        "IdentityGraph",
        "LatentGraph",
        "UniformGraph",
    ],
    "setwise.nn.health": ["graph_health"],
    "setwise.nn.images": ["ConvPool", "InkConvPool"],
    "setwise.nn.mil": ["GatedAttentionPool", "PooledMIL"],
    "setwise.nn.models": ["DMPS"],
    "setwise.nn.neighbours": ["NeighbourGraph"],
    "setwise.nn.pnorm": ["PNormBlock", "pnorm_energy", "pnorm_reweighted"],
    "setwise.nn.pointnet": ["PointNetPlusPlus", "SetAbstraction", "ball_query", "farthest_points"],
    "setwise.nn.pool": ["AttentionPool", "MaxPool", "MeanPool", "SumPool"],
    "setwise.nn.sparse": ["SparseGraph", "SparseWeights"],
    "setwise.nn.split_elements": ["SplitElements"],
    "setwise.nn.standardize": ["Standardize"],
    "setwise.nn.streamed": ["StreamedGraph", "StreamedWeights"],
    "setwise.nn.weights": ["Weights"],
    "setwise.ragged": ["Sets"],
    "setwise.randomness": ["epochs", "generator"],
    "setwise.sets": ["SetBatch", "Shared"],
    "setwise.tasks": ["Binary", "Classes", "Count", "Labels", "Regression", "RobustCount"],
    "setwise.train": ["evaluate", "fit"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

_MODULES = {
    "data",
    "experiments",
    "explore",
    "export",
    "functional",
    "graphs",
    "nn",
    "plots",
    "tasks",
    "train",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from setwise.config import Training as Training
    from setwise.data.buckets import ElementBudgetSampler as ElementBudgetSampler
    from setwise.data.buckets import budgeted as budgeted
    from setwise.data.buckets import padding_waste as padding_waste
    from setwise.estimators import SetClassifier as SetClassifier
    from setwise.estimators import SetRegressor as SetRegressor
    from setwise.estimators import load as load
    from setwise.explain import importance as importance
    from setwise.explain import strongest as strongest
    from setwise.export import to_onnx as to_onnx
    from setwise.export import to_torch_export as to_torch_export
    from setwise.functional import dirichlet_energy as dirichlet_energy
    from setwise.functional import log_laplace_kernel as log_laplace_kernel
    from setwise.functional import log_matern32_kernel as log_matern32_kernel
    from setwise.functional import log_matern52_kernel as log_matern52_kernel
    from setwise.functional import log_rbf_kernel as log_rbf_kernel
    from setwise.functional import log_super_gaussian_kernel as log_super_gaussian_kernel
    from setwise.functional import propagate as propagate
    from setwise.functional import rbf_kernel as rbf_kernel
    from setwise.functional import row_normalize as row_normalize
    from setwise.functional import row_softmax as row_softmax
    from setwise.functional import shares as shares
    from setwise.functional import sparsify as sparsify
    from setwise.functional import top_k as top_k
    from setwise.graphs import NearUniformGraph as NearUniformGraph
    from setwise.graphs import SetGraph as SetGraph
    from setwise.nn.auto import AutoGraph as AutoGraph
    from setwise.nn.baselines import DeepSets as DeepSets
    from setwise.nn.baselines import EquivariantLayer as EquivariantLayer
    from setwise.nn.baselines import InducedSetAttentionBlock as InducedSetAttentionBlock
    from setwise.nn.baselines import MultiheadAttentionBlock as MultiheadAttentionBlock
    from setwise.nn.baselines import MultiheadAttentionPool as MultiheadAttentionPool
    from setwise.nn.baselines import SetAttentionBlock as SetAttentionBlock
    from setwise.nn.baselines import SetTransformer as SetTransformer
    from setwise.nn.blocks import Gamma as Gamma
    from setwise.nn.blocks import MessagePassingBlock as MessagePassingBlock
    from setwise.nn.blocks import SetDenoisingBlock as SetDenoisingBlock
    from setwise.nn.blocks import SetResidualBlock as SetResidualBlock
    from setwise.nn.contrast import JoinedPool as JoinedPool
    from setwise.nn.contrast import LocalMoments as LocalMoments
    from setwise.nn.contrast import SetContrastBlock as SetContrastBlock
    from setwise.nn.dense import Dense as Dense
    from setwise.nn.dense import Drawn as Drawn
    from setwise.nn.dense import NearIdentity as NearIdentity
    from setwise.nn.dense import initialize as initialize
    from setwise.nn.distinct import DistinctDMPS as DistinctDMPS
    from setwise.nn.encoders import MLP as MLP
    from setwise.nn.encoders import ElementEncoder as ElementEncoder
    from setwise.nn.features import LowRankWeights as LowRankWeights
    from setwise.nn.features import RandomFeatureGraph as RandomFeatureGraph
    from setwise.nn.framed import Framed as Framed
    from setwise.nn.graph import GivenGraph as GivenGraph
    from setwise.nn.graph import IdentityGraph as IdentityGraph
    from setwise.nn.graph import LatentGraph as LatentGraph
    from setwise.nn.graph import UniformGraph as UniformGraph
    from setwise.nn.health import graph_health as graph_health
    from setwise.nn.images import ConvPool as ConvPool
    from setwise.nn.images import InkConvPool as InkConvPool
    from setwise.nn.mil import GatedAttentionPool as GatedAttentionPool
    from setwise.nn.mil import PooledMIL as PooledMIL
    from setwise.nn.models import DMPS as DMPS
    from setwise.nn.neighbours import NeighbourGraph as NeighbourGraph
    from setwise.nn.pnorm import PNormBlock as PNormBlock
    from setwise.nn.pnorm import pnorm_energy as pnorm_energy
    from setwise.nn.pnorm import pnorm_reweighted as pnorm_reweighted
    from setwise.nn.pointnet import PointNetPlusPlus as PointNetPlusPlus
    from setwise.nn.pointnet import SetAbstraction as SetAbstraction
    from setwise.nn.pointnet import ball_query as ball_query
    from setwise.nn.pointnet import farthest_points as farthest_points
    from setwise.nn.pool import AttentionPool as AttentionPool
    from setwise.nn.pool import MaxPool as MaxPool
    from setwise.nn.pool import MeanPool as MeanPool
    from setwise.nn.pool import SumPool as SumPool
    from setwise.nn.sparse import SparseGraph as SparseGraph
    from setwise.nn.sparse import SparseWeights as SparseWeights
    from setwise.nn.split_elements import SplitElements as SplitElements
    from setwise.nn.standardize import Standardize as Standardize
    from setwise.nn.streamed import StreamedGraph as StreamedGraph
    from setwise.nn.streamed import StreamedWeights as StreamedWeights
    from setwise.nn.weights import Weights as Weights
    from setwise.ragged import Sets as Sets
    from setwise.randomness import epochs as epochs
    from setwise.randomness import generator as generator
    from setwise.sets import SetBatch as SetBatch
    from setwise.sets import Shared as Shared
    from setwise.tasks import Binary as Binary
    from setwise.tasks import Classes as Classes
    from setwise.tasks import Count as Count
    from setwise.tasks import Labels as Labels
    from setwise.tasks import Regression as Regression
    from setwise.tasks import RobustCount as RobustCount
    from setwise.train import evaluate as evaluate
    from setwise.train import fit as fit


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"setwise.{name}")
    raise AttributeError(f"module 'setwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
