"""Pages run as users run them: without checks of shapes, which would become part of an exported program."""

import pytest


@pytest.fixture(autouse=True)
def _as_users_run_it(unchecked: None) -> None:
    """Turn them off."""
