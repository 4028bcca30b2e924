"""Export of models: an ONNX file, or a program of `torch.export`.

Both take ``x [batch, elements, in_dim]`` and ``mask [batch, elements]``, True at real elements, for any
number of sets and elements, and return the model's outputs in eval mode. Before a file is written, it is
compared with the model on sets of sizes that the exporter has not seen.
"""

import copy
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule

from setwise._files import write_atomically
from setwise.nn.graph import LatentGraph
from setwise.nn.layers import Framed
from setwise.nn.operators.auto import AutoGraph
from setwise.nn.operators.streamed import StreamedGraph

EXAMPLE = (3, 5)
"""Sets and elements of the traced batch: not 1 and not equal, or the exporter would specialise on it."""
COMPARED = ((2, 7), (1, 1), (4, 3), (1, 33))
"""Sets and elements of the batches for the comparison of a file with its model."""
TOLERANCE = 1e-4
"""Largest allowed difference, relative to the range of an output or a tenth of its size."""
LARGEST = 2**31
"""Size limit of an ONNX file in bytes."""

Comparison = tuple[Tensor, Tensor, Tensor]  # x, mask, the model's outputs


def to_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    in_dim: int,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write an ONNX file: ``x`` (float32) and ``mask`` (bool) in, ``out [batch, k]`` out.

    `StreamedGraph` and `AutoGraph` are exported as a `LatentGraph`: exact, in O(n²) memory. An empty set is a
    row whose mask is False everywhere; no axis may have length zero.

    Args:
        model: any ``(x, mask) → [b, k]``; it is not modified.
        path: path of the file.
        in_dim: features of an element.
        metadata: additional entries of the file, e.g. the names of the classes.

    >>> from tempfile import TemporaryDirectory
    >>> from onnxruntime import InferenceSession
    >>> from setwise import DeepSets
    >>> with TemporaryDirectory() as folder:
    ...     path = to_onnx(DeepSets.build(3, 2, dim=4, depth=0), Path(folder, "model.onnx"), in_dim=3)
    ...     session = InferenceSession(path)
    >>> [(value.name, value.shape) for value in session.get_inputs()]
    [('x', ['batch', 'elements', 3]), ('mask', ['batch', 'elements'])]
    """
    onnx, runtime, _ = (_required(package) for package in ("onnx", "onnxruntime", "onnxscript"))
    metadata = dict(metadata or {})
    for key, value in metadata.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"metadata must map strings to strings, got {key!r}: {value!r}")
    _need_module(model)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size >= LARGEST:
        raise ValueError(f"an ONNX file holds less than 2 GiB, got a model of {size / 2**30:.1f} GiB")
    program, comparisons = _traced(model, in_dim)
    with _quiet(), _explained(model):
        exported: Any = torch.onnx.export(
            program, dynamo=True, input_names=["x", "mask"], output_names=["out"], verbose=False
        )
    proto = _tidy(exported.model_proto)
    onnx.helper.set_model_props(proto, metadata)
    data: bytes = proto.SerializeToString()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    with _explained(model):
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor, mask: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["out"], {"x": x.numpy(), "mask": mask.numpy()})[0])

    return _written(path, data, run, comparisons)


def to_torch_export(model: nn.Module, path: str | os.PathLike[str], *, in_dim: int) -> Path:
    """Write a program of `torch.export`, for `torch.export.load` or ahead-of-time compilation.

    Args:
        model: any ``(x, mask) → [b, k]``; it is not modified. See `to_onnx`.
        path: path of the file, usually ``….pt2``.
        in_dim: features of an element.

    >>> from tempfile import TemporaryDirectory
    >>> from setwise import DeepSets
    >>> with TemporaryDirectory() as folder:
    ...     path = to_torch_export(DeepSets.build(3, 2, dim=4, depth=0), Path(folder, "model.pt2"), in_dim=3)
    ...     program = torch.export.load(path)
    >>> program.module()(torch.zeros(1, 40, 3), torch.ones(1, 40, dtype=torch.bool)).shape
    torch.Size([1, 2])
    """
    _need_module(model)
    program, comparisons = _traced(model, in_dim)
    with _quiet(), _explained(model):
        torch.export.save(program, file := io.BytesIO())
        run = torch.export.load(io.BytesIO(file.getvalue())).module()
    return _written(path, file.getvalue(), run, comparisons)


class _Inside(nn.Module):
    """A wrapper around the model: a submodule ``graph`` at the top would hide the program's own graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.model(x, mask)
        return out


def _need_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        hint = ": its module_ is one" if hasattr(model, "module_") else ""
        raise TypeError(f"model must be a torch module, got {type(model).__name__}{hint}")


def _traced(model: nn.Module, in_dim: int) -> tuple[ExportedProgram, list[Comparison]]:
    """The model as a program for any number of sets and elements, and the expected outputs."""
    if in_dim < 1:
        raise ValueError(f"in_dim must be at least 1, got {in_dim}")
    inside = _in_single_precision(_Inside(copy.deepcopy(model)).cpu().eval().requires_grad_(False))
    with torch.no_grad():
        comparisons = [
            (x, mask, _outputs(inside.model, x, mask)) for x, mask in _compared(inside.model, in_dim)
        ]
        _with_matrices(inside)
        x, mask = torch.zeros(*EXAMPLE, in_dim, dtype=torch.float32), torch.ones(EXAMPLE, dtype=torch.bool)
        axes = {0: Dim("batch", min=1), 1: Dim("elements", min=1)}
        with _quiet(), _explained(model):
            try:
                program = torch.export.export(inside, (x, mask), dynamic_shapes=(axes, axes), strict=False)
            except Exception as error:  # exporters raise all kinds of errors
                try:  # strict mode also follows len(x), but supports fewer modules
                    program = torch.export.export(inside, (x, mask), dynamic_shapes=(axes, axes), strict=True)
                except Exception:  # report the first error
                    raise error from None
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            node.meta.pop("stack_trace", None)  # contains local paths
    return program, comparisons


def _in_single_precision(model: _Inside) -> _Inside:
    """Convert the model to single precision, except the double-precision units of `Framed`."""
    for part in model.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if tensor.is_floating_point() and not isinstance(part, Framed):
                tensor.data = tensor.data.float()
    return model


def _with_matrices(model: nn.Module) -> None:
    """Replace graphs that stream their matrix, or choose their form by size, by dense ones."""
    for name, graph in list(model.named_modules(remove_duplicate=False)):
        if isinstance(graph, AutoGraph | StreamedGraph):
            model.set_submodule(name, LatentGraph(graph.kernel, normalize=graph.normalize))


def _compared(model: nn.Module, in_dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches for the comparison: one full set, or several with NaN padding, the last one empty."""
    generator = torch.Generator().manual_seed(0)
    for sets, elements in COMPARED:
        x = torch.randn(sets, elements, in_dim, generator=generator, dtype=torch.float32, device="cpu")
        if isinstance(model, Framed) and len(model.mean) == in_dim:
            x = (model.mean + model.std * x).float()
        mask = torch.ones(sets, elements, dtype=torch.bool)
        if sets > 1:
            mask[:, 1:] = torch.rand(sets, elements - 1, generator=generator) < 0.5
            mask[-1] = False
        yield x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask


def _outputs(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """The model's outputs for a batch; raise if they are not ``[b, k]``."""
    wanted = f"{type(model).__name__} must take (x [b, n, {x.shape[-1]}], mask [b, n]) and return [b, k]"
    try:
        out = model(x, mask)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{wanted}, got an error: {_first_line(error)}") from error
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(x):
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"{wanted}, got {got} for {len(x)} sets")
    if mask.all() and not out.isfinite().all():
        raise ValueError(f"{wanted} with finite values, got NaN or infinite values for random sets")
    return out


def _written(
    path: str | os.PathLike[str],
    data: bytes,
    run: Callable[[Tensor, Tensor], Tensor],
    comparisons: list[Comparison],
) -> Path:
    """Write the exported model if its outputs agree with those of the model."""
    outputs = torch.cat([expected for _, _, expected in comparisons]).nan_to_num(0, 0, 0)
    range_of = torch.maximum(outputs.amax(0) - outputs.amin(0), outputs.abs().amax(0) / 10)
    range_of += range_of == 0
    for x, mask, expected in comparisons:
        sizes = f"{x.shape[0]} sets of {x.shape[1]} elements"
        try:
            with torch.no_grad():
                actual = run(x, mask)
        except Exception as error:  # any error of the runtime
            raise ValueError(f"the exported model fails for {sizes}: {_first_line(error)}") from error
        if actual.shape != expected.shape:
            raise ValueError(
                f"the exported model must give {list(expected.shape)} for {sizes}, got {list(actual.shape)}"
            )
        equal = (actual == expected) | (actual.isnan() & expected.isnan())
        shares = ((actual - expected).abs() / range_of).masked_fill(equal, 0).nan_to_num(torch.inf, torch.inf)
        if shares.max() > TOLERANCE:
            raise ValueError(
                f"the exported model must differ from the model by at most {TOLERANCE:g} of the range of an "
                f"output, got {shares.max():.2g} for {sizes}"
            )
    write_atomically(Path(path), data)
    return Path(path)


def _tidy(proto: Any) -> Any:
    """Name the axes and remove the exporter's notes."""
    values = [*proto.graph.input, *proto.graph.output]
    x = proto.graph.input[0].type.tensor_type.shape.dim
    names = {x[0].dim_param: "batch", x[1].dim_param: "elements"}
    for value in values:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = names[axis.dim_param]
    proto.graph.ClearField("value_info")
    for part in (proto.graph, *values, *proto.graph.node, *proto.graph.initializer):
        part.ClearField("metadata_props")
    return proto


def _required(package: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"an ONNX file needs the {package} package: pip install 'setwise[export]'"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and messages of exporters; errors are raised as exceptions."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _explained(model: nn.Module) -> Iterator[None]:
    """Raise errors of an exporter as one sentence with the first cause."""
    try:
        yield
    except Exception as error:  # exporters raise all kinds of errors
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ValueError(
            f"{type(model).__name__} cannot be exported for sets of any size: {_first_line(cause)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].partition(" For more information")[0]
