"""What g++ builds is kept for all clones of this user, by content; without g++ these tests skip and say so."""

import shutil

import pytest

from tests.builds import builds_folder


@pytest.fixture(scope="session")
def built():
    """Folder that keeps built kernels between tests, workers and runs."""
    if shutil.which("g++") is None:
        pytest.skip("the emulator builds kernels with g++, which is not installed")
    return builds_folder()
