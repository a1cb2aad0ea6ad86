"""Short fuzzing on every run; ASKEW_FUZZ_SECONDS=600 makes it long, as `python tests/images/fuzz_images.py 600` is."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_images import check_image, check_table, image_seeds, mutated, table_seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Pillow warns of odd metadata; that is not what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

IMAGES, TABLES = image_seeds(), table_seeds()
SHORT = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", IMAGES)
def test_seeds_are_images(name):
    assert check_image(IMAGES[name]) == "image"


@pytest.mark.parametrize("name", TABLES)
def test_seeds_are_tables(name, tmp_path):
    (tmp_path / name).write_bytes(TABLES[name])
    assert check_table(tmp_path / name) == ("refused" if name == "array.npz" or name.endswith("csv") else "image")


@SHORT
@given(content=st.binary(max_size=400), start=st.sampled_from([seed[:16] for seed in IMAGES.values()] + [b""]))
def test_random_bytes_are_images_or_unreadable(content, start):
    check_image(start + content)


@SHORT
@given(name=st.sampled_from(sorted(IMAGES)), seed=st.integers(0, 2**32))
def test_mutated_images_are_images_or_unreadable(name, seed):
    check_image(mutated(IMAGES[name], random.Random(seed)))


@SHORT
@given(name=st.sampled_from(sorted(TABLES)), seed=st.integers(0, 2**32))
def test_mutated_tables_raise_only_documented_errors(name, seed, tmp_path):
    (tmp_path / name).write_bytes(mutated(TABLES[name], random.Random(seed)))
    check_table(tmp_path / name)


@pytest.mark.skipif("ASKEW_FUZZ_SECONDS" not in os.environ, reason="set ASKEW_FUZZ_SECONDS to fuzz for so long")
def test_long_fuzzing():
    script = Path(__file__).with_name("fuzz_images.py")
    subprocess.run([sys.executable, str(script), os.environ["ASKEW_FUZZ_SECONDS"]], check=True)
