import xml.etree.ElementTree as ET

import pytest

from insitu.evaluate import charts
from insitu.evaluate.stats import Estimate


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 0.4, [0, 0.1, 0.2, 0.3, 0.4]),
        (0, 8_700, [0, 2500, 5000, 7500, 10_000]),
        (-0.3, 0.3, [-0.4, -0.2, 0, 0.2, 0.4]),
        (3, 3, [3, 3.25, 3.5, 3.75, 4]),
    ],
)
def test_ticks_are_round_and_cover_the_data(low: float, high: float, ticks: list[float]) -> None:
    assert charts.nice_ticks(low, high) == pytest.approx(ticks)


def test_numbers_are_short() -> None:
    values = [0, 3, 0.25, 0.00123, 99.5, 1500, 12_400, 2_100_000]
    assert [charts.short_number(v) for v in values] == [
        "0", "3", "0.25", "0.00123", "99.5", "1,500", "12.4 k", "2.1 M",
    ]  # fmt: skip
    assert [charts.clock(s) for s in (4.4, 698, 7500)] == ["4 s", "11:38 min", "2:05 h"]


def test_a_scale_maps_its_ends() -> None:
    scale = charts.Scale(low=1, high=3, start=100, end=0)
    assert [scale(1), scale(2), scale(3)] == [100, 50, 0]
    assert charts.Scale(low=1, high=1, start=5, end=9)(1) == 5


def test_a_moving_mean_keeps_x_and_smooths_y() -> None:
    points = [(1, 0.0), (2, 3.0), (3, 6.0)]
    assert charts.moving_mean(points, 1) == points
    assert charts.moving_mean(points, 3) == [(1, 1.5), (2, 3.0), (3, 4.5)]


def test_charts_are_well_formed_and_tell_what_they_show() -> None:
    estimate = Estimate(value=0.4, low=0.3, high=0.5, tasks=10)
    drawn = [
        charts.line_chart(
            "A <b>", [charts.Line(name="x & y", tone="after", points=[(1, 2.0), (2, 4.0)])], x_name="n"
        ),
        charts.line_chart(
            "One", [charts.Line(name="x", tone="after", points=[(1, 0.2)])], x_name="n", shares=True
        ),
        charts.dot_plot("D", [("row", [charts.Dot(name="p", tone="after", estimate=estimate)])]),
        charts.share_bars("E", [("all", {"finished": 3, "timed_out": 1})], {"finished": "a", "timed_out": "b"}),
        charts.lanes("L", [("rollout", "rollout", [(0.0, 3.0), (4.0, 9.0)], 0.8)], end=10.0),
    ]  # fmt: skip
    labels = [ET.fromstring(chart).attrib["aria-label"] for chart in drawn]
    assert labels == [
        "A <b>. x & y from 2 to 4.",
        "One. x from 20.0 % to 20.0 %.",
        "D. row p: 40.0 % [30.0, 50.0].",
        "E. all: finished 3, timed out 1.",
        "L. rollout busy 80.0 % of the time.",
    ]


def test_charts_without_data_say_so() -> None:
    empty = [
        charts.line_chart("A", [], x_name="n"),
        charts.dot_plot("A", []),
        charts.share_bars("A", [("x", {})], {}),
        charts.lanes("A", [], end=0),
    ]
    assert set(empty) == {'<p class="empty">A: nothing was recorded.</p>'}


def test_sparklines_rise_with_the_values() -> None:
    assert charts.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert len(charts.sparkline(list(range(1000)), width=40)) == 40
    assert charts.sparkline([2, 2]) == "▁▁"
    assert charts.sparkline([]) == ""
