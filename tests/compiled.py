"""Compile every set function into one graph and compare it with itself (run by test_contract.py)."""

import shutil

import torch

from setwise.functional import rbf_kernel
from tests.cases import CASES, padded

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in CASES:
        torch._dynamo.reset()
        torch.manual_seed(1)
        model = case.make()
        # Reading out the real elements has a size that depends on the data: no single graph can hold it.
        whole = "encoder" not in case.name
        compiled = torch.compile(model, backend="aot_eager", fullgraph=whole)
        x, mask = padded([5, 3, 1, 0])
        found, expected = compiled(x, mask), model(x, mask)
        assert torch.allclose(found, expected, atol=1e-5), case.name
        if expected.requires_grad:
            parameters = list(model.parameters())
            found, expected = (
                torch.autograd.grad(out.square().sum(), parameters, allow_unused=True)
                for out in (found, expected)
            )
            for a, b in zip(found, expected, strict=True):
                assert (a is b is None) or torch.allclose(a, b, atol=1e-4), case.name
        print(case.name)
    if shutil.which("g++"):  # the default backend compiles C++
        z, sigma = torch.randn(4, 17, 8, requires_grad=True), torch.tensor(1.5, requires_grad=True)
        weights = torch.randn(4, 17, 17)

        def value(z: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            return (rbf_kernel(z, sigma) * weights).sum()

        compiled = torch.compile(value)
        found = torch.autograd.grad(compiled(z, sigma), (z, sigma))
        expected = torch.autograd.grad(value(z, sigma), (z, sigma))
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), "inductor"
