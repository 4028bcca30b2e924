"""Models for other programs: an ONNX file, or a program of `torch.export`.

Both take ``x [batch, elements, in_dim]`` and ``mask [batch, elements]``, True at real elements, for any
number of sets and elements, and give what the model gives in evaluation mode. Nothing is written before it
has been compared with the model, on sets of sizes that the exporter has not seen.
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
"""Sets and elements of the batch that is traced: not one, and not alike, or it would pass for a rule."""
COMPARED = ((2, 7), (1, 1), (4, 3), (1, 33))
"""Sets and elements of the batches on which a file is compared with its model."""
TOLERANCE = 1e-4
"""The difference that is allowed, as a share of how far an output ranges, or of a tenth of its size."""
LARGEST = 2**31
"""Bytes from which on an ONNX file cannot hold a model."""

Comparison = tuple[Tensor, Tensor, Tensor]  # x, mask, what the model says


def to_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    in_dim: int,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write an ONNX file: ``x`` (float32) and ``mask`` (bool) in, ``out [batch, k]`` out.

    Graphs that make their weights in tiles, or in the form that suits the size, become the matrix that they
    stand for: exact, in O(n²) memory. An empty set is one whose mask is False everywhere; no axis may have
    length zero.

    Args:
        model: any ``(x, mask) → [b, k]``; it is left as it is.
        path: where to.
        in_dim: features of an element.
        metadata: what else to say in the file, e.g. the names of the classes.

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
            raise TypeError(f"metadata must be text under names, got {key!r}: {value!r}")
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
    """Write a program of `torch.export`, for `torch.export.load` or to be compiled ahead of time.

    Args:
        model: see `to_onnx`, and so for all others.
        path: where to, mostly ``….pt2``.
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
    """A model one level down: at the top, a part named ``graph`` would hide the graph of the program."""

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
    """The model as a program for any number of sets and elements, and what to compare it with."""
    if in_dim < 1:
        raise ValueError(f"in_dim must be at least 1, got {in_dim}")
    inside = _in_single_precision(_Inside(copy.deepcopy(model)).cpu().eval().requires_grad_(False))
    with torch.no_grad():
        comparisons = [(x, mask, _said(inside.model, x, mask)) for x, mask in _compared(inside.model, in_dim)]
        _write_out(inside)
        x, mask = torch.zeros(*EXAMPLE, in_dim, dtype=torch.float32), torch.ones(EXAMPLE, dtype=torch.bool)
        axes = {0: Dim("batch", min=1), 1: Dim("elements", min=1)}
        with _quiet(), _explained(model):
            try:
                program = torch.export.export(inside, (x, mask), dynamic_shapes=(axes, axes), strict=False)
            except Exception as error:  # exporters fail in any way there is
                try:  # the stricter way follows len(x) as well, but knows fewer modules
                    program = torch.export.export(inside, (x, mask), dynamic_shapes=(axes, axes), strict=True)
                except Exception:  # the first error is the one to tell
                    raise error from None
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            node.meta.pop("stack_trace", None)  # which tells where on this computer the code is
    return program, comparisons


def _in_single_precision(model: _Inside) -> _Inside:
    """The model as most programs run it; units stay as exact as they were."""
    for part in model.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if tensor.is_floating_point() and not isinstance(part, Framed):
                tensor.data = tensor.data.float()
    return model


def _write_out(model: nn.Module) -> None:
    """Let the matrix stand wherever a graph makes the same weights in tiles, or chooses among its forms."""
    for part in list(model.modules()):
        for name, graph in part._modules.items():
            if isinstance(graph, AutoGraph | StreamedGraph):
                dense = LatentGraph(1, (1,), normalize=graph.normalize)
                dense.embed, dense.log_sigma = graph.embed, graph.log_sigma
                part._modules[name] = dense


def _compared(model: nn.Module, in_dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches to compare on: one set in full, or several with padding of NaN, the last of them empty."""
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


def _said(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """What the model says to a batch, if it keeps to the form that is asked for."""
    wanted = f"{type(model).__name__} must take (x [b, n, {x.shape[-1]}], mask [b, n]) and give [b, k]"
    try:
        out = model(x, mask)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{wanted}, got an error: {_first_line(error)}") from error
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(x):
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"{wanted}, got {got} for {len(x)} sets")
    if mask.all() and not out.isfinite().all():
        raise ValueError(f"{wanted} that are finite, got NaN or infinite ones for random sets")
    return out


def _written(
    path: str | os.PathLike[str],
    data: bytes,
    run: Callable[[Tensor, Tensor], Tensor],
    comparisons: list[Comparison],
) -> Path:
    """Write what was exported, unless it says something else than the model."""
    all_said = torch.cat([said for _, _, said in comparisons]).nan_to_num(0, 0, 0)
    range_of = torch.maximum(all_said.amax(0) - all_said.amin(0), all_said.abs().amax(0) / 10)
    range_of += range_of == 0
    for x, mask, said in comparisons:
        sizes = f"{x.shape[0]} sets of {x.shape[1]} elements"
        try:
            with torch.no_grad():
                found = run(x, mask)
        except Exception as error:  # another runtime fails in its own ways
            raise ValueError(f"the exported model fails for {sizes}: {_first_line(error)}") from error
        if found.shape != said.shape:
            raise ValueError(
                f"the exported model must give {list(said.shape)} for {sizes}, got {list(found.shape)}"
            )
        alike = (found == said) | (found.isnan() & said.isnan())
        shares = ((found - said).abs() / range_of).masked_fill(alike, 0).nan_to_num(torch.inf, torch.inf)
        if shares.max() > TOLERANCE:
            raise ValueError(
                f"the exported model must differ from the model by at most {TOLERANCE:g} of the range of an "
                f"output, got {shares.max():.2g} for {sizes}"
            )
    write_atomically(Path(path), data)
    return Path(path)


def _tidy(proto: Any) -> Any:
    """Name the axes, and leave out what the exporter noted about its way there."""
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
    """Without the warnings and notes that exporters have about themselves; errors are exceptions."""
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
    """Errors of an exporter in one sentence: their first cause, and whose they are."""
    try:
        yield
    except Exception as error:  # exporters fail in any way there is
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ValueError(
            f"{type(model).__name__} cannot be exported for sets of any size: {_first_line(cause)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].partition(" For more information")[0]
