"""The estimator under scikit-learn's own suite, all of it."""

from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from askew import GeometricDetector

# 256 views: enough for shapes, signs and errors, which is what the suite is about. The fewest images it fits are 10,
# on which nothing can be recognised, and the detector says so. Its suite wants an alarm among 300 images it fitted on:
# the rate is the smallest round one that five held-out images of ten support.
QUICK = {"views": 256, "precision": "fp32"}
DETECTOR = GeometricDetector(**QUICK, false_alarm_rate=0.2)
DEFAULT = GeometricDetector(**QUICK)

# The default rate is the lowest that the held-out images support, 1.6 % here: no alarm need be among the images that
# the suite scores, which are those of the fit.
NO_ALARM = "wants an alarm among the images of the fit, and the default false-alarm rate promises nearly none"
EXPECTED = {"check_outliers_train": NO_ALARM, "check_outliers_fit_predict": NO_ALARM}


def expected_failures(estimator):
    return EXPECTED if estimator.false_alarm_rate == "auto" else {}


@parametrize_with_checks([DETECTOR, DEFAULT], expected_failed_checks=expected_failures)
def test_scikit_learn_finds_nothing_but_what_is_expected(estimator, check):
    check(estimator)


def test_it_is_the_whole_suite_and_nothing_is_expected_of_a_detector_with_a_rate():
    assert len(list(estimator_checks_generator(DETECTOR))) > 40
    assert DETECTOR.__sklearn_tags__().input_tags.two_d_array
    assert not expected_failures(DETECTOR)


def test_a_wrong_estimator_would_be_found():
    class Wrong(GeometricDetector):
        def predict(self, X):
            return super().predict(X) * 2

    failures = 0
    for estimator, check in estimator_checks_generator(Wrong(**QUICK, false_alarm_rate=0.2)):
        if "outlier" in str(check):
            try:
                check(estimator)
            except AssertionError:
                failures += 1
    assert failures
