"""Run the doctests of the pages without shape checks, which would become part of exported programs."""

import pytest


@pytest.fixture(autouse=True)
def _as_users_run_it(unchecked: None) -> None:
    """Disable shape checks."""
