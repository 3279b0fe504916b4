"""The tiny model, written once."""

from pathlib import Path

import pytest
from tiny_engine import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random target."""
    folder = tmp_path_factory.mktemp("model")
    write_model(folder)
    return folder
