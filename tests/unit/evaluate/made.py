"""Episodes made up for the tests of this room."""

import json
import math
import random
from functools import cache

from insitu.evaluate.baselines import Baseline, random_baseline
from insitu.evaluate.report import BusyLane, ReportData
from insitu.evaluate.stats import pass_at_1
from insitu.evaluate.suite import compare_results, summarise
from insitu.evaluate.transcripts import choose_transcripts
from insitu.ledger.summary import StepSummary
from insitu.types import (
    Call,
    CandidateEdit,
    Edit,
    Episode,
    EpisodeEnd,
    Reward,
    Signal,
    Task,
    TokenResult,
)


def task(name: str) -> Task:
    return Task(
        task_id=name, folder=f"/tasks/{name}", instruction="", layers=(), workdir="/w",
        env_path="", agent_timeout_s=1.0, verifier_timeout_s=1.0,
    )  # fmt: skip


def call(index: int = 0, tokens: int = 3, request: str = "{}", response: str = "{}") -> Call:
    result = TokenResult(
        token_ids=tuple(range(tokens)),
        logprobs=(-0.5,) * tokens,
        versions=(0,) * tokens,
        finish="stop",
    )
    return Call(
        call_id=f"c{index}", episode_id="e", index=index, prompt_ids=(1, 2), result=result,
        request=request, response=response,
    )  # fmt: skip


def episode(
    task_id: str,
    passed: bool,
    *,
    attempt: int = 0,
    end: EpisodeEnd = EpisodeEnd.FINISHED,
    calls: tuple[Call, ...] = (),
    wall_s: float = 2.0,
    **signals: float,
) -> Episode:
    return Episode(
        episode_id=f"{task_id}-{attempt}", group_id=task_id, task_id=task_id, attempt=attempt,
        end=end, calls=calls, segments=(), changes=(),
        signals=(
            Signal(name="passed", value=float(passed)),
            *(Signal(name=name, value=value) for name, value in signals.items()),
        ),
        reward=Reward(value=float(passed), formula="passed"), started_at=0.0, wall_s=wall_s, seed=0,
    )  # fmt: skip


def session(
    steps: list[tuple[str, dict[str, object], str]], *, last: str = "finish"
) -> tuple[Call, ...]:
    """The calls of a session over Chat Completions; each step a tool, its arguments, its result."""
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You repair Python code."},
        {
            "role": "user",
            "content": "`clamp` in calc/core.py:4 is broken: tests/test_core.py::test_clamp fails.",
        },
    ]
    calls = []
    for i, (name, arguments, result) in enumerate([*steps, (last, {}, "")]):
        function = {"name": name, "arguments": json.dumps(arguments)}
        reply = {
            "role": "assistant", "content": None,
            "tool_calls": [{"id": f"c{i}", "type": "function", "function": function}],
        }  # fmt: skip
        request = json.dumps({"model": "m", "messages": messages})
        calls.append(call(i, 12, request, json.dumps({"choices": [{"message": reply}]})))
        messages += [reply, {"role": "tool", "tool_call_id": f"c{i}", "content": result}]
    return tuple(calls)


_FAILED = (
    "failed: tests/test_core.py::test_clamp\ntests/test_core.py:7 assert clamp(2, 0, 3) == 2\n"
    "AssertionError: assert 0 == 2\n +  where 0 = clamp(2, 0, 3)"
)
_CODE = "\n".join(
    f"{i} {line}"
    for i, line in [
        (4, "def clamp(value, low, high):"),
        (10, "    if value > low:"),
        (11, "        return low"),
        (12, "    return min(value, high)"),
    ]
)
READ = ("read", {"path": "calc/core.py", "line": 4}, _CODE)
RIGHT = (
    "edit",
    {"path": "calc/core.py", "line": 10, "old": ">", "new": "<"},
    "10     if value < low:",
)
WRONG = (
    "edit",
    {"path": "calc/core.py", "line": 12, "old": "min", "new": "max"},
    "12     return max(value, high)",
)
AGAIN = (
    "edit",
    {"path": "calc/core.py", "line": 12, "old": "min", "new": "max"},
    "error: old is not in line 12",
)


def evaluations(seed: int = 0) -> tuple[list[Episode], list[Episode]]:
    """Held-out episodes of a policy before and after training; a good deal better after."""
    rng = random.Random(seed)

    def some(chance: float, habits: float) -> list[Episode]:
        found = []
        for i in range(110):
            hard = i % 3 == 0
            for attempt in range(2):
                passed = rng.random() < (0.04 if hard else chance)
                end = rng.choices(
                    [EpisodeEnd.FINISHED, EpisodeEnd.GAVE_UP, EpisodeEnd.TURN_LIMIT, EpisodeEnd.TIMED_OUT],
                    [0.5 + 0.4 * habits, 0.3 * (1 - habits), 0.2, 0.03],
                )[0]  # fmt: skip
                tested = ("run_tests", {}, _FAILED)
                good = [tested, READ, RIGHT, ("run_tests", {}, "passed")]
                steps = good if passed else [READ, WRONG, AGAIN, ("run_tests", {}, _FAILED)]
                found.append(
                    episode(
                        f"pkg-{i:03d}",
                        passed,
                        attempt=attempt,
                        end=end,
                        calls=session(steps),
                        wall_s=rng.uniform(1, 6),
                        tested_before_edit=float(rng.random() < habits),
                        no_repeated_edit=float(rng.random() < 0.3 + habits / 2),
                        finished_after_pass=float(rng.random() < 0.2 + 0.7 * habits),
                    )
                )
        return found

    return some(0.3, 0.35), some(0.6, 0.85)


BEHAVIOURS = {
    "ran the test before editing": "tested_before_edit",
    "repeated no failed edit": "no_repeated_edit",
    "finished when the test passed": "finished_after_pass",
}


def steps(count: int, seed: int = 0) -> tuple[StepSummary, ...]:
    """The steps of a run whose reward rises."""
    rng = random.Random(seed)
    found = []
    for i in range(1, count + 1):
        passed = 0.25 + 0.35 * (1 - math.exp(-i / 60)) + rng.gauss(0, 0.06)
        found.append(
            StepSummary(
                step=i,
                version=i,
                loss=rng.gauss(0, 0.02),
                reward=passed - 0.05,
                signals={"passed": passed},
                episodes=64,
                groups=8,
                calls=6.0,
                sampled_tokens=5400,
                lag_max=rng.choice([1, 1, 2, 2, 3]),
                started_at=4.0 * i,
                ended_at=4.0 * i + 3,
                wall_s=3.0,
                metrics={
                    "lag_mean": rng.uniform(0.4, 1.2),
                    "entropy": 0.5 - 0.001 * i + rng.gauss(0, 0.02),
                    "k3": abs(rng.gauss(0.002, 0.001)),
                    "tokens_per_s": rng.gauss(5200, 300),
                },
            )
        )
    return tuple(found)


@cache
def report_data(seed: int = 0) -> ReportData:
    """A whole run, made up."""
    rng = random.Random(seed)
    before, after = evaluations(seed)
    was = summarise(before, suite="heldout", label="before", seed=0, behaviours=BEHAVIOURS)
    now = summarise(after, suite="heldout", label="after", seed=0, behaviours=BEHAVIOURS)
    edit = Edit(path="a.py", line=1, old="<", new="<=")
    pools = {
        f"pkg-{i:03d}": [
            CandidateEdit(edit=edit, family="comparison", passes=j == 0) for j in range(8 + i % 30)
        ]
        for i in range(110)
    }
    table = {
        t: min(1.0, 1.6 * c) for t, c in random_baseline(pools, tries=5, seed=0).per_task.items()
    }
    baselines = (
        random_baseline(pools, tries=5, seed=0),
        Baseline(
            name="table", tries=5, rate=pass_at_1(list(table.values()), seed=0), per_task=table
        ),
    )
    starts = [4.0 * i for i in range(1, 150)]
    return ReportData(
        run="demo", steps=steps(149, seed), before=was, after=now, greedy_before=was,
        comparison=compare_results(was, now, seed=0), baselines=baselines,
        training_ends={"finished": 8200, "gave_up": 620, "turn_limit": 610, "timed_out": 90, "context_limit": 40},
        faults={"sandbox: time-out": 3}, discards={"too stale": 4, "no signal": 31},
        episodes=10_440, wall_s=698.0, engine_tokens_per_s=1411.0, trainer_tokens_per_s=5210.0,
        engine_rate=tuple((t, rng.gauss(1400, 150)) for t in starts),
        trainer_rate=tuple((t, rng.gauss(5200, 300)) for t in starts),
        lanes=(
            BusyLane(name="rollout", tone="rollout", busy=((0.0, 301.0), (309.0, 600.0)), share=0.987),
            BusyLane(name="trainer", tone="train", busy=tuple((t, t + 3.1) for t in starts), share=0.77),
        ),
        overlap_fraction=0.76, transcripts=choose_transcripts(before, after),
        facts={"base policy": "pocket-12m", "seed": "0", "machine": "2 cores, 6 GB"},
        finished_at=1_790_000_000.0,
    )  # fmt: skip
