import numpy as np
import pytest

from askew.detectors.holdout import HoldOut
from askew.errors import InvalidInput, UnreachableRate

FINGERPRINTS = np.arange(500, dtype=np.uint64)


def plan(fingerprints=FINGERPRINTS, groups=None, **how):
    how = {"rate": "auto", "share": None, "preset_share": 0.2, "cross_fit": 0, **how}
    how["draw"] = np.random.default_rng(0)
    return HoldOut.plan(fingerprints, groups, **how)


def test_a_fifth_is_held_out_and_nothing_is_lost():
    held = plan()
    assert len(held.kept) == 100
    assert sorted([*held.kept, *held.learned_on]) == list(range(500))
    assert held.exact


def test_more_is_held_out_when_the_rate_needs_it():
    assert len(plan(rate=0.005).kept) == 199
    with pytest.raises(UnreachableRate):
        plan(rate=0.003)


def test_nothing_is_held_out_when_nothing_is_asked():
    for nothing in ({"share": 0.0}, {"preset_share": 0.0}):
        held = plan(**nothing)
        assert len(held.kept) == 0
        assert len(held.learned_on) == 500
    assert len(plan(preset_share=0.0, rate=0.01).kept) >= 99
    with pytest.raises(InvalidInput, match="leave out one"):
        plan(share=0.0, rate=0.01)


def test_repeats_stay_with_what_they_repeat():
    fingerprints = np.repeat(np.arange(100, dtype=np.uint64), 3)
    held = plan(fingerprints)
    assert not set(fingerprints[held.kept]) & set(fingerprints[held.learned_on])
    assert len(set(fingerprints[held.kept])) == len(held.kept)


def test_groups_stay_together():
    groups = np.arange(500) // 10
    held = plan(groups=list(groups))
    assert not set(groups[held.kept]) & set(groups[held.learned_on])
    assert not held.exact


def test_groups_that_share_a_picture_are_one():
    fingerprints = np.arange(40, dtype=np.uint64)
    fingerprints[10] = fingerprints[30]
    groups = np.arange(40) // 10
    for seed_share in (0.2, 0.3, 0.5):
        held = plan(fingerprints, groups=list(groups), share=seed_share)
        assert ({1, 3} <= set(groups[held.kept])) == bool({1, 3} & set(groups[held.kept]))
        assert not set(fingerprints[held.kept]) & set(fingerprints[held.learned_on])


def test_cross_fitting_never_calibrates_on_a_copy_of_what_was_learned():
    fingerprints = np.repeat(np.arange(60, dtype=np.uint64), 2)
    held = plan(fingerprints, cross_fit=5)
    assert len(held.kept) == 60
    for part in held.parts:
        assert not set(fingerprints[part]) & set(np.delete(fingerprints, part))


def test_cross_fitting_calibrates_on_everything():
    held = plan(cross_fit=4)
    assert len(held.parts) == 4
    assert sorted(np.concatenate(held.parts)) == list(range(500))
    assert len(held.kept) == len(held.learned_on) == 500
    assert not held.exact


def test_a_rate_is_rounded_up_to_what_the_images_support(caplog):
    with caplog.at_level("INFO", "askew"):
        held = plan(FINGERPRINTS[:60])
    assert len(held.kept) == 20
    assert "4.8 %" in caplog.text


def test_impossible_wishes_are_refused():
    with pytest.raises(InvalidInput, match="holdout must lie"):
        plan(share=0.9)
    with pytest.raises(InvalidInput, match="same picture"):
        plan(np.zeros(9, np.uint64))
    with pytest.raises(InvalidInput, match="cross_fit"):
        plan(cross_fit=501)
