import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

from rich.console import Console

from insitu.evaluate.report import ReportData, headline, html, p_value, summary, write_report
from insitu.evaluate.terminal import print_report
from tests.unit.evaluate.made import report_data

KEYS = [
    "heldout_pass_before", "heldout_pass_after", "heldout_pass_table_baseline",
    "heldout_pass_greedy_before", "diff_ci95", "episodes", "steps", "wall_s",
    "engine_tokens_per_s", "trainer_tokens_per_s", "overlap_fraction", "lost_episodes",
]  # fmt: skip

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Balance(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_is_one_page_and_one_summary(tmp_path: Path) -> None:
    data = report_data()
    page = write_report(data, tmp_path / "report")
    text = page.read_text()
    assert sorted(p.name for p in page.parent.iterdir()) == ["index.html", "summary.json"]
    numbers = json.loads((page.parent / "summary.json").read_text())
    assert list(numbers) == KEYS
    assert numbers["heldout_pass_after"] == data.after.rate.value
    assert len(numbers["diff_ci95"]) == 2
    assert numbers["steps"] == 149
    balance = Balance()
    balance.feed(text)
    assert balance.open == []
    for section in (
        "Held-out tasks", "Training", "Utilisation", "How episodes ended",
        "Behaviour on held-out tasks", "Became solved", "Lost", "Never solved", "most frequent fixes",
    ):  # fmt: skip
        assert section in text


def test_the_page_needs_nothing_from_outside() -> None:
    text = html(report_data())
    assert not re.search(r"(src|href)=|url\(|@import|<script", text)
    assert "prefers-color-scheme: dark" in text
    assert text.count('role="img"') == text.count("<svg")


def test_every_tone_that_is_used_has_a_colour_in_both_themes() -> None:
    text = html(report_data())
    used = set(re.findall(r'class="[^"]*?(?:fill|stroke|on)-([a-z-]+)', text))
    assert used
    for tone in used:
        assert len(re.findall(rf"--{tone}: #", text)) == 2, tone


def test_what_the_policy_wrote_is_escaped() -> None:
    text = html(report_data())
    assert "if value &lt; low:" in text
    assert "old=&#34;&gt;&#34;" in text


def test_a_run_without_evaluation_still_has_a_report(tmp_path: Path) -> None:
    data = ReportData(run="half")
    assert "not yet evaluated" in write_report(data, tmp_path).read_text()
    assert summary(data)["heldout_pass_before"] is None
    assert summary(data)["diff_ci95"] is None
    output = StringIO()
    print_report(data, Console(file=output, width=80))
    assert "not yet evaluated" in output.getvalue()


def test_the_terminal_shows_the_same_and_ends_with_the_result() -> None:
    data = report_data()
    output = StringIO()
    print_report(data, Console(file=output, width=120))
    text = output.getvalue()
    for part in (
        "Training",
        "How episodes ended",
        "Behaviour",
        "Held-out tasks",
        "became solved",
        "lost",
        "never solved",
    ):
        assert part in text
    assert " ".join(text.split()).endswith(headline(data))
    output = StringIO()
    print_report(data, Console(file=output, width=120), transcripts=False)
    assert "never solved" not in output.getvalue()


def test_p_values_are_never_zero() -> None:
    assert p_value(1e-9) == "< 0.0001"
    assert p_value(0.01234) == "= 0.012"
