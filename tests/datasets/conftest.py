"""A cache of its own for every test, and no data but what it is given."""

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("ASKEW_CACHE", str(folder))
    return folder
