"""Histograms: every value is in the first range that holds it."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm.cores.histogram import COUNTS, Distribution, Histogram, rising


def test_a_value_falls_into_the_first_range_that_holds_it() -> None:
    histogram = Histogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 2.0, 5.0, 5.1, 100.0):
        histogram.observe(value)
    found = histogram.read()
    assert found == Distribution((1.0, 2.0, 5.0), (2, 2, 1, 2), 115.1)
    assert found.count == 7
    assert list(found.cumulative) == [(1.0, 2), (2.0, 4), (5.0, 5), (float("inf"), 7)]


def test_a_value_can_be_counted_several_times() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.25, 4)
    histogram.observe(3.0, 2)
    assert histogram.read() == Distribution((1.0,), (4, 2), 7.0)


def test_what_was_read_does_not_change() -> None:
    histogram = Histogram((1.0,))
    before = histogram.read()
    histogram.observe(0.0)
    assert (before.count, histogram.read().count) == (0, 1)


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (2.0, 1.0)])
def test_bounds_that_do_not_rise_are_refused(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must rise"):
        Histogram(bounds)


def test_bounds_rise_by_ones_twos_and_fives() -> None:
    assert rising(0.005, 10) == (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    assert COUNTS == (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@given(st.lists(st.floats(-10, 200)))
def test_every_bound_has_below_it_what_is_below_it(values: list[float]) -> None:
    histogram = Histogram(COUNTS)
    for value in values:
        histogram.observe(value)
    for bound, count in histogram.read().cumulative:
        assert count == sum(value <= bound for value in values)


def test_it_goes_into_a_snapshot_and_back() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5)
    again: Histogram = pickle.loads(pickle.dumps(histogram))
    again.observe(2.0)
    assert again.read() == Distribution((1.0,), (1, 1), 2.5)
