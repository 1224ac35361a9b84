"""Accuracies against a slow count, AA and AF against their formulas, the table, and what is refused."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ecgl_scale.errors import UsageError
from ecgl_scale.tasks.metrics import Accuracy, PerformanceMatrix, accuracy

EXAMPLE = [[90.0, None, None], [70.0, 95.0, None], [60.0, 85.0, 97.0]]


def slow_accuracy(predicted, labels):
    shares = []
    for c in sorted(set(labels)):
        own = [p == c for p, label in zip(predicted, labels, strict=True) if label == c]
        shares.append(sum(own) / len(own))
    right = [p == label for p, label in zip(predicted, labels, strict=True)]
    return 100 * sum(shares) / len(shares), 100 * sum(right) / len(right)


@settings(max_examples=60)
@given(pairs=st.lists(st.tuples(st.sampled_from([1, 4, 5, 9]), st.integers(0, 9)), min_size=1, max_size=40))
def test_accuracy_equals_the_slow_count(pairs):
    labels, predicted = zip(*pairs, strict=True)
    found = accuracy(np.array(predicted), np.array(labels), positions=np.array([9, 1, 4, 5]))
    assert (found.macro, found.micro) == pytest.approx(slow_accuracy(predicted, labels), abs=1e-12)


def test_macro_gives_small_classes_the_same_weight_and_leaves_out_absent_ones():
    labels = [2, 2, 2, 2, 2, 2, 2, 2, 3, 3]
    predicted = [2, 2, 2, 2, 2, 2, 2, 2, 2, 7]
    assert accuracy(predicted, labels, positions=[2, 3, 4]) == Accuracy(macro=50.0, micro=80.0)


def test_no_nodes_have_no_accuracy():
    found = accuracy([], [], positions=[1, 2])
    assert math.isnan(found.macro)
    assert math.isnan(found.micro)


def test_labels_and_predictions_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="2 predictions for 1 labels"):
        accuracy([1, 2], [1], positions=[1])
    with pytest.raises(UsageError, match=r"label 5 is of none of the classes\n  where: labels\[1\]"):
        accuracy([1, 2], [1, 5], positions=[1, 2])
    with pytest.raises(UsageError, match="predicted are float64"):
        accuracy([1.5], [1], positions=[1])
    with pytest.raises(UsageError, match="labels are int64 of shape"):
        accuracy([1], [[1]], positions=[1])


def test_the_averages_are_what_their_formulas_say():
    matrix = PerformanceMatrix.from_lists(EXAMPLE)
    assert matrix.average_accuracy() == pytest.approx((60 + 85 + 97) / 3)
    assert matrix.average_forgetting() == pytest.approx(((60 - 90) + (85 - 95)) / 2)
    assert matrix.average_accuracies() == pytest.approx([90, 82.5, 242 / 3])
    assert matrix.average_forgettings() == pytest.approx([math.nan, -20, -20], nan_ok=True)


@settings(max_examples=40)
@given(num_tasks=st.integers(1, 9), seed=st.integers(0, 99))
def test_rows_set_one_by_one_give_the_averages_of_every_step(num_tasks, seed):
    values = np.random.default_rng(seed).uniform(0, 100, (num_tasks, num_tasks))
    matrix = PerformanceMatrix.empty(num_tasks)
    assert (matrix.num_tasks, matrix.num_finished) == (num_tasks, 0)
    assert math.isnan(matrix.average_accuracy())
    assert math.isnan(matrix.average_forgetting())
    for task in range(num_tasks):
        matrix.set_row(task, values[task, : task + 1])
        assert matrix.num_finished == task + 1
        assert matrix.average_accuracy() == pytest.approx(np.mean(values[task, : task + 1]))
        if task:
            lost = [values[task, j] - values[j, j] for j in range(task)]
            assert matrix.average_forgetting() == pytest.approx(np.mean(lost))
    assert math.isnan(matrix.average_forgetting(0))
    again = PerformanceMatrix.from_lists(json.loads(json.dumps(matrix.to_lists())))
    assert again == matrix
    assert again.average_accuracies() == matrix.average_accuracies()


def test_what_is_not_there_is_null():
    matrix = PerformanceMatrix.empty(2)
    assert matrix.to_lists() == [[None, None], [None, None]]
    matrix.set_row(0, [50])
    assert matrix.to_lists() == [[50.0, None], [None, None]]
    assert matrix != PerformanceMatrix.empty(2)
    assert matrix != "matrix"
    assert PerformanceMatrix.from_lists(EXAMPLE).to_lists() == EXAMPLE


def test_a_task_without_nodes_is_left_out_of_the_means():
    matrix = PerformanceMatrix.from_lists([[90, None, None], [80, None, None], [70, None, 50]])
    assert matrix.average_accuracy() == 60
    assert matrix.average_forgetting() == -20


def test_the_matrix_is_not_changed_through_its_values():
    matrix = PerformanceMatrix.from_lists(EXAMPLE)
    matrix.values[0, 0] = 1
    given_values = np.array([[50.0]])
    other = PerformanceMatrix(given_values)
    given_values[0, 0] = 1
    assert (matrix.values[0, 0], other.values[0, 0]) == (90, 50)


def test_the_table_has_a_row_for_every_finished_task():
    matrix = PerformanceMatrix.empty(3)
    matrix.set_row(0, [100.0])
    matrix.set_row(1, [87.54, 95.0])
    assert str(matrix).splitlines() == [
        "after task      0      1      2 |      AA     AF",
        "         0  100.0               |   100.0",
        "         1   87.5   95.0        |    91.3  -12.5",
    ]
    assert repr(matrix) == "PerformanceMatrix([[100.0, None, None], [87.54, 95.0, None], [None, None, None]])"


def test_what_is_no_performance_matrix_is_refused():
    with pytest.raises(UsageError, match="shape"):
        PerformanceMatrix(np.zeros((2, 3)))
    with pytest.raises(UsageError, match="shape"):
        PerformanceMatrix([])
    with pytest.raises(UsageError, match="not square"):
        PerformanceMatrix.from_lists([[1, None], [1]])
    with pytest.raises(UsageError, match="above the diagonal"):
        PerformanceMatrix([[1, 2], [3, 4]])
    with pytest.raises(UsageError, match=r"101\.0 is no accuracy"):
        PerformanceMatrix([[101]])
    with pytest.raises(UsageError, match="0 tasks"):
        PerformanceMatrix.empty(0)
    matrix = PerformanceMatrix.empty(2)
    with pytest.raises(UsageError, match="there is no task 2"):
        matrix.set_row(2, [1, 2, 3])
    with pytest.raises(UsageError, match="there is no task -1"):
        matrix.average_accuracy(-1)
    with pytest.raises(UsageError, match="1 accuracies after task 1"):
        matrix.set_row(1, [1])
    with pytest.raises(UsageError, match=r"-1\.0 is no accuracy"):
        matrix.set_row(0, [-1])
    with pytest.raises(UsageError, match="inf is no accuracy"):
        matrix.set_row(0, [math.inf])
