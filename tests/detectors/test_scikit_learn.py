"""The estimator under scikit-learn's own suite, all of it."""

from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from askew import GeometricDetector

# 256 views: enough for shapes, signs and errors, which is what the suite is about. The fewest images it fits are 10,
# on which nothing can be recognised, and the detector says so. Its suite wants an alarm among 300 images it fitted on:
# the rate is the smallest round one that five held-out images of ten support.
DETECTOR = GeometricDetector(views=256, precision="fp32", false_alarm_rate=0.2)


@parametrize_with_checks([DETECTOR])
def test_scikit_learn_finds_nothing(estimator, check):
    check(estimator)


def test_it_is_the_whole_suite_with_no_failure_expected():
    assert len(list(estimator_checks_generator(DETECTOR))) > 40
    assert DETECTOR.__sklearn_tags__().input_tags.two_d_array


def test_a_wrong_estimator_would_be_found():
    class Wrong(GeometricDetector):
        def predict(self, X):
            return super().predict(X) * 2

    failures = 0
    for estimator, check in estimator_checks_generator(Wrong(views=256, precision="fp32")):
        if "outlier" in str(check):
            try:
                check(estimator)
            except AssertionError:
                failures += 1
    assert failures
