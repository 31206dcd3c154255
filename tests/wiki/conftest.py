"""One cache for all tests of the shipped cards: the index is built once. Tests of their own cards set another."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def shared_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATREX_CACHE_DIR", str(tmp_path_factory.mktemp("wiki-cache")))
        yield
