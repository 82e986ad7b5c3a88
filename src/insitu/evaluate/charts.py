"""Small charts as SVG text: no scripts, no fonts, colours by CSS class so that a page's theme holds.

Every chart is an image with a title and a sentence for screen readers; a chart without data says
so. The classes `tone-NAME` of the page give the colours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from insitu.evaluate.stats import Estimate

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of a line chart.

    Example: `Line(name="mean reward", tone="after", points=[(1, 0.2), (2, 0.3)])`.
    """

    name: str
    tone: str
    points: Points
    faint: bool = False
    """Drawn as dots behind the others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dot:
    """A number with its interval in a dot plot."""

    name: str
    tone: str
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """A linear map from data to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Pixel of a value."""
        span = self.high - self.low or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


_TIME_STEPS = (5, 10, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800, 43_200)


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """About `count` round numbers that cover the range from `low` to `high`."""
    if not high > low:
        high = low + 1.0
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def short_number(value: float) -> str:
    """A short form for axes and tables: 3, 0.25, 1,500, 12.4 k, 2.1 M."""
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.1f} M"
    if size >= 1e4:
        return f"{value / 1e3:.1f} k"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A share as text with one decimal: 37.5 %."""
    return f"{100 * value:.1f} %"


def whole_percent(value: float) -> str:
    """A share as text without decimals, for axes."""
    return f"{100 * value:.0f} %"


def clock(seconds: float) -> str:
    """A duration as text: 45 s, 11:38 min, 2:05 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def moving_mean(points: Points, window: int) -> list[tuple[float, float]]:
    """Centred means of up to `window` neighbours; the ends have fewer."""
    half = window // 2
    values = [y for _, y in points]
    result = []
    for i, (x, _) in enumerate(points):
        part = values[max(0, i - half) : i + half + 1]
        result.append((x, sum(part) / len(part)))
    return result


def svg(title: str, text: str, width: float, height: float, body: list[Markup]) -> Markup:
    """Wrap a chart's shapes; `text` tells in a sentence what they show."""
    return Markup(
        '<svg viewBox="0 0 {w:g} {h:g}" role="img" aria-label="{label}">'
        "<title>{title}</title>{body}</svg>"
    ).format(w=width, h=height, label=f"{title}. {text}", title=title, body=Markup("\n").join(body))


def label(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> Markup:
    """A text; `kind` is its CSS class."""
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(
        x, y, kind, anchor, text
    )


def rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line of the CSS class `kind`."""
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(
        x1, y1, x2, y2, kind
    )


def box(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> Markup:
    """A filled rectangle of the CSS class `kind`, with a tool-tip."""
    tip = Markup("<title>{}</title>").format(title) if title else Markup()
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" class="{}">{}</rect>'
    ).format(x, y, max(width, 0.3), height, kind, tip)


def nothing(title: str) -> Markup:
    """What stands in the place of a chart without data."""
    return Markup('<p class="empty">{}: nothing was recorded.</p>').format(title)


_WIDTH, _HEIGHT = 480.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 34.0, 40.0


def line_chart(
    title: str, lines: Sequence[Line], *, x_name: str, shares: bool = False, floor: float | None = 0
) -> Markup:
    """Lines over a common x axis.

    Args:
        title: what is drawn, with its unit.
        lines: those without points are left out.
        x_name: what x is.
        shares: the y axis is in percent.
        floor: the y axis reaches down to it; None for as low as the data.
    """
    drawn = [line for line in lines if line.points]
    if not drawn:
        return nothing(title)
    xs = [x for line in drawn for x, _ in line.points]
    ys = [y for line in drawn for _, y in line.points]
    ticks = nice_ticks(min(ys) if floor is None else min(floor, *ys), max(ys))
    x = Scale(low=min(xs), high=max(xs), start=_LEFT, end=_WIDTH - _RIGHT)
    y = Scale(low=ticks[0], high=ticks[-1], start=_HEIGHT - _BOTTOM, end=_TOP)
    body = _y_axis(ticks, y, shares) + _x_axis(x, x_name)
    body += [shape for line in drawn for shape in _line(line, x, y)]
    body += legend([(line.name, line.tone + " faint" * line.faint) for line in drawn], _LEFT, 16)
    show = percent if shares else short_number
    said = "; ".join(
        f"{line.name} from {show(line.points[0][1])} to {show(line.points[-1][1])}"
        for line in drawn
        if not line.faint
    )
    return svg(title, f"{said}.", _WIDTH, _HEIGHT, body)


def _y_axis(ticks: Sequence[float], y: Scale, shares: bool) -> list[Markup]:
    show = whole_percent if shares else short_number
    shapes = []
    for tick in ticks:
        shapes.append(rule(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid"))
        shapes.append(label(_LEFT - 6, y(tick) + 4, show(tick), "tick", "end"))
    return shapes


def _x_axis(x: Scale, name: str) -> list[Markup]:
    inside = [t for t in nice_ticks(x.low, x.high, 7) if x.low <= t <= x.high]
    shapes = [
        label(x(tick), _HEIGHT - _BOTTOM + 16, short_number(tick), "tick", "middle")
        for tick in inside
    ]
    return [*shapes, label((_LEFT + _WIDTH) / 2, _HEIGHT - 6, name, "axis", "middle")]


def _line(line: Line, x: Scale, y: Scale) -> list[Markup]:
    places = [(x(px), y(py)) for px, py in line.points]
    if line.faint or len(places) == 1:
        radius = 1.7 if line.faint else 3
        kind = f"fill-{line.tone}{' faint' if line.faint else ''}"
        return [circle(px, py, radius, kind) for px, py in places]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in places)
    return [Markup('<polyline points="{}" class="line stroke-{}"/>').format(path, line.tone)]


def circle(x: float, y: float, radius: float, kind: str, title: str = "") -> Markup:
    """A filled dot of the CSS class `kind`, with a tool-tip."""
    tip = Markup("<title>{}</title>").format(title) if title else Markup()
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:g}" class="{}">{}</circle>').format(
        x, y, radius, kind, tip
    )


def legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> list[Markup]:
    """Names with their colours in one row; (name, tone) each."""
    shapes: list[Markup] = []
    for name, tone in entries:
        shapes += [box(x, y - 9, 10, 10, f"fill-{tone}"), label(x + 15, y, name, "key")]
        x += 15 + text_width(name) + 18
    return shapes


def text_width(text: str) -> float:
    """About how wide a text of the charts' size is, in pixels."""
    return 7.0 * len(text)


def dot_plot(
    title: str,
    groups: Sequence[tuple[str, Sequence[Dot]]],
    *,
    names: Sequence[tuple[str, str]] = (),
    width: float = 960.0,
) -> Markup:
    """Shares with their intervals, one row per group, the dots of a group under each other.

    Args:
        title: what is drawn.
        groups: the row's name and its dots.
        names: a legend; (name, tone) each.
        width: of the drawing.
    """
    dots = [dot for _, group in groups for dot in group]
    if not dots:
        return nothing(title)
    left = 24 + max(text_width(name) for name, _ in groups)
    ticks = nice_ticks(0.0, max(dot.estimate.high for dot in dots), 5)
    x = Scale(low=0.0, high=ticks[-1], start=left, end=width - 176)
    top = 34.0 if names else 12.0
    body, y = legend(names, left, 16) if names else [], top
    rows: list[Markup] = []
    for name, group in groups:
        height = 22.0 * len(group) + 12
        rows.append(label(left - 12, y + height / 2 + 4, name, "name", "end"))
        for i, dot in enumerate(group):
            rows += _dot(dot, x, y + 6 + 22 * i + 11, width)
        y += height
        rows.append(rule(12, y, width - 12, y, "grid"))
    for tick in ticks:
        body.append(rule(x(tick), top, x(tick), y, "grid"))
        body.append(label(x(tick), y + 16, whole_percent(tick), "tick", "middle"))
    said = "; ".join(
        f"{name} {dot.name}: {interval(dot.estimate)}" for name, group in groups for dot in group
    )
    return svg(title, f"{said}.", width, y + 26, body + rows)


def _dot(dot: Dot, x: Scale, y: float, width: float) -> list[Markup]:
    e = dot.estimate
    return [
        rule(x(e.low), y, x(e.high), y, f"whisker stroke-{dot.tone}"),
        circle(x(e.value), y, 5.5, f"fill-{dot.tone}", f"{dot.name}: {interval(e)}"),
        label(width - 164, y + 4, percent(e.value), "value"),
        label(width - 104, y + 4, f"[{100 * e.low:.1f}, {100 * e.high:.1f}]", "range"),
    ]


def interval(e: Estimate) -> str:
    """A share with its interval as text: 37.5 % [32.1, 43.0]."""
    return f"{percent(e.value)} [{100 * e.low:.1f}, {100 * e.high:.1f}]"


def share_bars(
    title: str,
    rows: Sequence[tuple[str, dict[str, int]]],
    tones: dict[str, str],
    *,
    width: float = 960.0,
) -> Markup:
    """One bar per row, split by the share of each kind.

    Args:
        title: what is drawn.
        rows: the row's name, and how many of each kind.
        tones: kind -> tone, in the order in which they are drawn.
        width: of the drawing.
    """
    shown = [(name, counts) for name, counts in rows if sum(counts.values())]
    if not shown:
        return nothing(title)
    left = 24 + max(text_width(f"{name} ({sum(counts.values())})") for name, counts in shown)
    present = [kind for kind in tones if any(counts.get(kind) for _, counts in shown)]
    body = legend([(kind.replace("_", " "), tones[kind]) for kind in present], left, 16)
    for i, (name, counts) in enumerate(shown):
        y, total = 34.0 + 34 * i, sum(counts.values())
        body.append(label(left - 12, y + 16, f"{name} ({total})", "name", "end"))
        x = Scale(low=0, high=total, start=left, end=width - 14)
        done = 0
        for kind in present:
            count = counts.get(kind, 0)
            if not count:
                continue
            share = f"{kind.replace('_', ' ')}: {count} of {total}, {percent(count / total)}"
            wide = x(done + count) - x(done)
            body.append(box(x(done), y, wide - 1, 24, f"fill-{tones[kind]}", share))
            if wide > 40:
                middle = x(done) + wide / 2
                text = whole_percent(count / total)
                body.append(label(middle, y + 16, text, f"on-{tones[kind]}", "middle"))
            done += count
    said = "; ".join(
        f"{name}: " + ", ".join(f"{k.replace('_', ' ')} {c}" for k, c in counts.items())
        for name, counts in shown
    )
    return svg(title, f"{said}.", width, 34.0 + 34 * len(shown), body)


def lanes(
    title: str,
    rows: Sequence[tuple[str, str, Points, float]],
    *,
    end: float,
    width: float = 960.0,
) -> Markup:
    """When each process was busy.

    Args:
        title: what is drawn.
        rows: name, tone, busy intervals in seconds since the start, share of the time busy.
        end: seconds at the right edge.
        width: of the drawing.
    """
    if not rows or end <= 0:
        return nothing(title)
    left = 24 + max(text_width(name) for name, *_ in rows)
    x = Scale(low=0.0, high=end, start=left, end=width - 76)
    body: list[Markup] = []
    for i, (name, tone, busy, share) in enumerate(rows):
        y = 8.0 + 32 * i
        body.append(label(left - 12, y + 16, name, "name", "end"))
        body.append(box(left, y, x(end) - left, 22, "lane"))
        body += [box(x(a), y, x(b) - x(a), 22, f"fill-{tone}") for a, b in busy]
        body.append(label(width - 66, y + 16, percent(share), "value"))
    bottom = 8.0 + 32 * len(rows)
    step = next((s for s in _TIME_STEPS if end / s <= 8), 86_400)
    for tick in range(0, int(end) + 1, step):
        body.append(label(x(tick), bottom + 12, clock(tick), "tick", "middle"))
    said = "; ".join(f"{name} busy {percent(share)} of the time" for name, _, _, share in rows)
    return svg(title, f"{said}.", width, bottom + 20, body)


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """A row of block characters for a terminal; each stands for the mean of its part."""
    if not values:
        return ""
    cells = min(width, len(values))
    edges = [round(i * len(values) / cells) for i in range(cells + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    blocks = "▁▂▃▄▅▆▇█"
    span = high - low or 1.0
    return "".join(blocks[min(7, int((m - low) / span * 8))] for m in means)
