"""Export of models to ONNX and `torch.export`.

An exported model takes ``x [batch, elements, in_dim]`` and ``mask [batch, elements]``, True at real elements,
for any number of sets and elements, and returns the outputs of the model in eval mode. A file is written
only after its outputs have been compared with those of the model on batches of several other sizes.
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
from setwise.nn.layers import Rescale, RescaledNetwork
from setwise.nn.operators.auto import AutoGraph
from setwise.nn.operators.streamed import StreamedGraph

EXAMPLE = (3, 5)
"""Sets and elements of the traced batch. They differ, and neither is 1, or torch would specialise on them."""
COMPARED = ((2, 7), (1, 1), (4, 3), (1, 33))
"""Sets and elements of the batches on which an exported model is compared with the model."""
TOLERANCE = 1e-4
"""Maximum difference, relative to the range of an output or to a tenth of its magnitude."""
ONNX_LIMIT = 2**31
"""Maximum size of an ONNX file in bytes."""

Comparison = tuple[Tensor, Tensor, Tensor]  # x, mask, outputs of the model


def to_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    in_dim: int,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write an ONNX file with inputs ``x`` (float32) and ``mask`` (bool) and the output ``out [batch, k]``.

    Streamed and automatic graphs are exported as the dense matrix, which is exact and needs O(n²) memory. An
    empty set is one whose mask is False everywhere; no axis may have length zero.

    Args:
        model: any module ``(x, mask) → [b, k]``; it is not changed.
        path: the file to write.
        in_dim: number of features per element.
        metadata: additional metadata, e.g. the names of the classes.

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
    _check_module(model)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size >= ONNX_LIMIT:
        raise ValueError(f"an ONNX file must be smaller than 2 GiB, got a model of {size / 2**30:.1f} GiB")
    program, comparisons = _trace(model, in_dim)
    with _silence(), _explain_errors(model):
        exported: Any = torch.onnx.export(
            program, dynamo=True, input_names=["x", "mask"], output_names=["out"], verbose=False
        )
    proto = _tidy(exported.model_proto)
    onnx.helper.set_model_props(proto, metadata)
    data: bytes = proto.SerializeToString()
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    with _explain_errors(model):
        session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor, mask: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["out"], {"x": x.numpy(), "mask": mask.numpy()})[0])

    return _write_if_equal(path, data, run, comparisons)


def to_torch_export(model: nn.Module, path: str | os.PathLike[str], *, in_dim: int) -> Path:
    """Write a `torch.export` program, for `torch.export.load` or ahead-of-time compilation.

    Args:
        model: any module ``(x, mask) → [b, k]``; it is not changed.
        path: the file to write, usually ``….pt2``.
        in_dim: number of features per element.

    >>> from tempfile import TemporaryDirectory
    >>> from setwise import DeepSets
    >>> with TemporaryDirectory() as folder:
    ...     path = to_torch_export(DeepSets.build(3, 2, dim=4, depth=0), Path(folder, "model.pt2"), in_dim=3)
    ...     program = torch.export.load(path)
    >>> program.module()(torch.zeros(1, 40, 3), torch.ones(1, 40, dtype=torch.bool)).shape
    torch.Size([1, 2])
    """
    _check_module(model)
    program, comparisons = _trace(model, in_dim)
    with _silence(), _explain_errors(model):
        torch.export.save(program, file := io.BytesIO())
        run = torch.export.load(io.BytesIO(file.getvalue())).module()
    return _write_if_equal(path, file.getvalue(), run, comparisons)


class _Wrapper(nn.Module):
    """Wraps a model, because a submodule ``graph`` at the top level would hide the graph of the program."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.model(x, mask)
        return out


def _check_module(model: Any) -> None:
    if not isinstance(model, nn.Module):
        hint = "; pass its module_" if hasattr(model, "module_") else ""
        raise TypeError(f"model must be a torch module, got {type(model).__name__}{hint}")


def _trace(model: nn.Module, in_dim: int) -> tuple[ExportedProgram, list[Comparison]]:
    """Export the model for any number of sets and elements, with batches and outputs to compare."""
    if in_dim < 1:
        raise ValueError(f"in_dim must be at least 1, got {in_dim}")
    wrapper = _in_single_precision(_Wrapper(copy.deepcopy(model)).cpu().eval().requires_grad_(False))
    with torch.no_grad():
        batches = _random_batches(wrapper.model, in_dim)
        comparisons = [(x, mask, _outputs(wrapper.model, x, mask)) for x, mask in batches]
        _use_dense_graphs(wrapper)
        x, mask = torch.zeros(*EXAMPLE, in_dim, dtype=torch.float32), torch.ones(EXAMPLE, dtype=torch.bool)
        axes = {0: Dim("batch", min=1), 1: Dim("elements", min=1)}
        with _silence(), _explain_errors(model):
            try:
                program = torch.export.export(wrapper, (x, mask), dynamic_shapes=(axes, axes), strict=False)
            except Exception as error:  # exporters can raise anything
                try:  # strict mode also supports len(x), but fewer modules
                    program = torch.export.export(
                        wrapper, (x, mask), dynamic_shapes=(axes, axes), strict=True
                    )
                except Exception:  # report the first error
                    raise error from None
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            node.meta.pop("stack_trace", None)  # contains local paths
    return program, comparisons


def _in_single_precision(model: _Wrapper) -> _Wrapper:
    """Cast weights and buffers to float32, except the statistics that rescale inputs and outputs."""
    networks = [part for part in model.modules() if isinstance(part, RescaledNetwork)]
    exact = {id(part) for network in networks for part in network.children() if isinstance(part, Rescale)}
    for part in model.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
            if tensor.is_floating_point() and id(part) not in exact:
                tensor.data = tensor.data.float()
    return model


def _use_dense_graphs(model: nn.Module) -> None:
    """Replace streamed and automatic graphs by equivalent dense ones."""
    for name, graph in list(model.named_modules(remove_duplicate=False)):
        if isinstance(graph, AutoGraph | StreamedGraph):
            model.set_submodule(name, LatentGraph(graph.kernel, normalize=graph.normalize))


def _random_batches(model: nn.Module, in_dim: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches to compare on: one set without padding, or several with NaN padding, the last one empty."""
    generator = torch.Generator().manual_seed(0)
    for sets, elements in COMPARED:
        x = torch.randn(sets, elements, in_dim, generator=generator, dtype=torch.float32, device="cpu")
        if isinstance(model, RescaledNetwork) and len(model.inputs.mean) == in_dim:
            x = model.inputs.inverse(x).float()
        mask = torch.ones(sets, elements, dtype=torch.bool)
        if sets > 1:
            mask[:, 1:] = torch.rand(sets, elements - 1, generator=generator) < 0.5
            mask[-1] = False
        yield x.masked_fill(~mask.unsqueeze(-1), torch.nan), mask


def _outputs(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """The outputs of the model for a batch, checked."""
    expected = f"{type(model).__name__} must take (x [b, n, {x.shape[-1]}], mask [b, n]) and return [b, k]"
    try:
        out = model(x, mask)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{expected}, got an error: {_first_line(error)}") from error
    if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(x):
        got = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ValueError(f"{expected}, got {got} for {len(x)} sets")
    if mask.all() and not out.isfinite().all():
        raise ValueError(f"{expected} with finite outputs, got NaN or infinity for random sets")
    return out


def _write_if_equal(
    path: str | os.PathLike[str],
    data: bytes,
    run: Callable[[Tensor, Tensor], Tensor],
    comparisons: list[Comparison],
) -> Path:
    """Write the exported model if its outputs equal those of the model up to rounding."""
    outputs = torch.cat([expected for _, _, expected in comparisons]).nan_to_num(0, 0, 0)
    scale = torch.maximum(outputs.amax(0) - outputs.amin(0), outputs.abs().amax(0) / 10)
    scale += scale == 0
    for x, mask, expected in comparisons:
        sizes = f"{x.shape[0]} sets of {x.shape[1]} elements"
        try:
            with torch.no_grad():
                got = run(x, mask)
        except Exception as error:  # runtimes can raise anything
            raise ValueError(f"the exported model fails for {sizes}: {_first_line(error)}") from error
        if got.shape != expected.shape:
            raise ValueError(
                f"the exported model must return {list(expected.shape)} for {sizes}, got {list(got.shape)}"
            )
        equal = (got == expected) | (got.isnan() & expected.isnan())
        deviation = ((got - expected).abs() / scale).masked_fill(equal, 0).nan_to_num(torch.inf, torch.inf)
        if deviation.max() > TOLERANCE:
            raise ValueError(
                f"the exported model must differ from the model by at most {TOLERANCE:g} of the range of an "
                f"output, got {deviation.max():.2g} for {sizes}"
            )
    write_atomically(Path(path), data)
    return Path(path)


def _tidy(proto: Any) -> Any:
    """Name the axes, and remove the metadata of the exporter."""
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
            f"exporting to ONNX needs the {package} package: pip install 'setwise[export]'"
        ) from error


@contextmanager
def _silence() -> Iterator[None]:
    """Silence warnings and log messages of the exporters; errors are still raised."""
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
def _explain_errors(model: nn.Module) -> Iterator[None]:
    """Raise errors of an exporter as one sentence with the name of the model and the first cause."""
    try:
        yield
    except Exception as error:  # exporters can raise anything
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ValueError(
            f"{type(model).__name__} cannot be exported for sets of any size: {_first_line(cause)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].partition(" For more information")[0]
