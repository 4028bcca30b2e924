"""Tests run with every array annotation of the package checked by beartype."""

import os
from collections.abc import Iterator

from jaxtyping import config, install_import_hook

CHECKED = [
    *(
        "setwise.functional",
        "setwise.sets",
        "setwise.sets",
        "setwise.tasks",
        "setwise.nn",
        "setwise.experiments.data",
    ),
    *(
        "setwise.estimators.batches",
        "setwise.inspection.explorer.layout",
        "setwise.inspection.explorer.page",
        "setwise.inspection.explorer.content",
    ),
]
install_import_hook(CHECKED, "beartype.beartype")

os.environ.setdefault("MPLBACKEND", "Agg")

import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("setwise", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("setwise")


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the annotations checked, as users run it: for the package's own errors."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    """Small tensors are fastest on one thread, and a failure should come back."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
