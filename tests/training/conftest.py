"""Fixtures of the tests of training."""

import pytest

from tests import toys


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Toy files of every form, by name; not to be changed."""
    return toys.write_all(tmp_path_factory.mktemp("toys"))
