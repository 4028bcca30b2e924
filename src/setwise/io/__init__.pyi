from . import bags as bags
from .export import to_onnx as to_onnx
from .export import to_torch_export as to_torch_export
from .readers import LabelledSets as LabelledSets
from .readers import read_sets as read_sets
