"""A run directory for the tests of checkpoints."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints 10, 20, 30 of which 20 is the best; not to be changed."""
    from tests.training.toy_run import write_run  # here since it is slow

    losses = {10: {"loss": 3.0}, 20: {"loss": 1.0}, 30: {"loss": 2.0}}
    return write_run(tmp_path_factory.mktemp("checkpoints") / "run", losses)


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))
