"""Small episodes and groups for the ledger's tests, and hypothesis strategies for any."""

from hypothesis import strategies as st

from insitu.types import (
    Call,
    Change,
    ChangeKind,
    Episode,
    EpisodeEnd,
    Group,
    Reward,
    Segment,
    Signal,
    TokenResult,
)


def make_episode(
    episode_id: str = "e1",
    *,
    group_id: str = "g1",
    attempt: int = 0,
    end: EpisodeEnd = EpisodeEnd.FINISHED,
    reward: float = 1.0,
    version: int = 3,
    note: str = "",
) -> Episode:
    result = TokenResult(
        token_ids=(5, 6), logprobs=(-0.5, -0.25), versions=(version, version + 1), finish="stop"
    )
    call = Call(
        call_id=f"{episode_id}-c0",
        episode_id=episode_id,
        index=0,
        prompt_ids=(1, 2, 3),
        result=result,
        request='{"messages": []}',
        response="{}",
    )
    segment = Segment(
        token_ids=(1, 2, 3, 5, 6),
        trainable=(False, False, False, True, True),
        logprobs=(0.0, 0.0, 0.0, -0.5, -0.25),
        versions=(-1, -1, -1, version, version + 1),
        call_ids=(call.call_id,),
    )
    return Episode(
        episode_id=episode_id,
        group_id=group_id,
        task_id="t1",
        attempt=attempt,
        end=end,
        calls=(call,),
        segments=(segment,),
        changes=(Change(path="a.py", kind=ChangeKind.MODIFIED, content=b"x\x00\xff"),),
        signals=(Signal(name="passed", value=reward, evidence="1 of 1"),),
        reward=Reward(value=reward, formula="passed"),
        started_at=100.0,
        wall_s=2.0,
        seed=7,
        note=note,
        timings={"engine": 0.5, "verify": 0.1},
    )


def make_group(group_id: str = "g1", size: int = 2) -> Group:
    episodes = [make_episode(f"{group_id}-{i}", group_id=group_id, attempt=i) for i in range(size)]
    return Group(group_id=group_id, task_id="t1", episodes=tuple(episodes))


_id = st.integers(0, 2**31 - 1)
_number = st.floats(allow_nan=False)
_text = st.text(max_size=20)


@st.composite
def _results(draw: st.DrawFn) -> TokenResult:
    n = draw(st.integers(0, 4))
    fixed = {"min_size": n, "max_size": n}
    return TokenResult(
        token_ids=tuple(draw(st.lists(_id, **fixed))),
        logprobs=tuple(draw(st.lists(_number, **fixed))),
        versions=tuple(draw(st.lists(st.integers(-1, 1000), **fixed))),
        finish=draw(st.sampled_from(["stop", "length", "cancelled"])),
        cached_tokens=draw(_id),
        queue_s=draw(_number),
    )


_calls = st.builds(
    Call,
    call_id=_text,
    episode_id=_text,
    index=st.integers(0, 99),
    prompt_ids=st.lists(_id, max_size=5).map(tuple),
    result=_results(),
    request=_text,
    response=_text,
    extends=st.none() | _text,
    break_cause=st.none() | _text,
    started_at=_number,
    latency_s=_number,
)


@st.composite
def _segments(draw: st.DrawFn) -> Segment:
    n = draw(st.integers(0, 5))
    fixed = {"min_size": n, "max_size": n}
    return Segment(
        token_ids=tuple(draw(st.lists(_id, **fixed))),
        trainable=tuple(draw(st.lists(st.booleans(), **fixed))),
        logprobs=tuple(draw(st.lists(_number, **fixed))),
        versions=tuple(draw(st.lists(st.integers(-1, 1000), **fixed))),
        call_ids=tuple(draw(st.lists(_text, max_size=2))),
    )


_changes = st.builds(
    Change,
    path=_text,
    kind=st.sampled_from(ChangeKind),
    content=st.binary(max_size=20),
    mode=st.integers(0, 0o7777),
    symlink=st.none() | _text,
)
_episodes = st.builds(
    Episode,
    episode_id=_text,
    group_id=st.just("g1"),
    task_id=_text,
    attempt=st.integers(0, 99),
    end=st.sampled_from(EpisodeEnd),
    calls=st.lists(_calls, max_size=2).map(tuple),
    segments=st.lists(_segments(), max_size=2).map(tuple),
    changes=st.lists(_changes, max_size=2).map(tuple),
    signals=st.lists(st.builds(Signal, name=_text, value=_number, evidence=_text), max_size=2).map(
        tuple
    ),
    reward=st.builds(Reward, value=_number, formula=_text),
    started_at=_number,
    wall_s=_number,
    seed=st.integers(-(2**63), 2**63 - 1),
    note=_text,
    timings=st.dictionaries(_text, _number, max_size=3),
)
groups = st.builds(
    Group,
    group_id=st.just("g1"),
    task_id=_text,
    episodes=st.lists(_episodes, max_size=3).map(tuple),
)
