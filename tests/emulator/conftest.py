"""What g++ builds is kept in pytest's cache folder, by content; without g++ these tests skip and say so."""

import shutil

import pytest


@pytest.fixture(scope="session")
def built(request):
    """Folder that keeps built kernels between tests, workers and runs."""
    if shutil.which("g++") is None:
        pytest.skip("the emulator builds kernels with g++, which is not installed")
    return request.config.cache.mkdir("emulator")
