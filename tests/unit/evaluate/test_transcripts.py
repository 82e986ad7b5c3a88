from insitu.evaluate import transcripts
from insitu.types import EpisodeEnd
from tests.unit.evaluate.made import READ, RIGHT, WRONG, call, episode, session


def test_a_conversation_pairs_tool_calls_with_their_results() -> None:
    made = episode("t", True, calls=session([READ, RIGHT]))
    told = transcripts.conversation(made)
    assert [use.name for turn in told.turns for use in turn.tools] == ["read", "edit", "finish"]
    read = told.turns[0].tools[0]
    assert read.arguments == 'path="calc/core.py", line=4'
    assert read.result.startswith("4 def clamp")
    assert told.turns[-1].tools[0].result == ""  # nothing came after it
    assert (told.passed, told.reward, told.end, told.tokens) == (True, 1.0, "finished", 36)
    assert transcripts.first_request(made).startswith("`clamp` in")


def test_what_is_not_a_chat_is_shown_as_it_is() -> None:
    broken = episode("t", False, calls=(call(request="not json", response="wat"),))
    assert transcripts.conversation(broken).turns == (
        transcripts.Turn(role="assistant", text="wat"),
    )
    assert transcripts.conversation(episode("t", False)).turns == ()
    odd = '{"choices": [{"message": {"role": "assistant", "content": [{"text": "hm"}], "tool_calls": [{"id": "1", "function": {"name": "read", "arguments": "{oops"}}]}}]}'
    parts = transcripts.conversation(episode("t", False, calls=(call(response=odd),))).turns
    assert parts[0].text == "hm"
    assert parts[0].tools[0].arguments == "{oops"


def test_three_tasks_are_chosen_by_what_became_of_them() -> None:
    def some(**passed: list[bool]) -> list:
        return [
            episode(task, p, attempt=i, calls=session([READ, RIGHT if p else WRONG]))
            for task, ps in passed.items()
            for i, p in enumerate(ps)
        ]

    before = some(
        a=[False, False], b=[True, True], c=[False, False], d=[False, True], e=[True, True]
    )
    after = some(
        a=[True, False], b=[False, False], c=[False, False], d=[True, True], e=[True, True]
    )
    chosen = transcripts.choose_transcripts(before, after)
    assert [(t.kind, t.task_id) for t in chosen] == [
        ("solved", "a"),
        ("lost", "b"),
        ("unsolved", "c"),
    ]
    assert chosen[0].after.passed
    assert chosen[1].before.passed
    assert not chosen[1].after.passed
    assert (chosen[0].rate_before, chosen[0].rate_after) == (0.0, 0.5)
    assert [t.kind for t in transcripts.choose_transcripts(some(a=[True]), some(a=[True]))] == []


def test_faults_are_never_shown() -> None:
    faults = [episode("a", False, end=EpisodeEnd.FAULT)]
    assert transcripts.choose_transcripts(faults, faults) == ()
