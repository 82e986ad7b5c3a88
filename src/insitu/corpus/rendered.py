"""Conversations as token documents, in exactly the tokens of a live session with the model."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from insitu.corpus.conversations import Talk
from insitu.corpus.tokenset import TokenDocument
from insitu.types import UsageError


class AnswerRenderer(Protocol):
    """What is needed of a `TokenRenderer`."""

    def first(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Render a whole conversation, ending where the assistant's next turn begins."""
        ...

    def bridge(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> tuple[int, ...] | None:
        """The next prompt, beginning with what was rendered and sampled; None: render anew."""
        ...

    def answer(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """What the policy samples to give the last message."""
        ...


def conversation_documents(renderer: AnswerRenderer, conversation: Talk) -> list[TokenDocument]:
    """The conversation as the segments that the gateway would record of it.

    Each assistant turn is a target once, its end marker included. As in a live session a prompt
    extends the tokens before it; where the model family's rules rewrite the history, the
    conversation goes on in a new document, in which the turns before are context. What follows
    the last assistant turn is left out: nothing in it is a target.

    Raises:
        UsageError: the model's template cannot render it; names the line.
    """
    try:
        return _documents(renderer, conversation)
    except Exception as e:  # a template of another project over any messages
        cause = " ".join(str(e).split())
        raise UsageError(
            f"{conversation.where}: the model's chat template refuses it: {cause}",
            remedy="correct the conversation or leave it out",
        ) from e


def _documents(renderer: AnswerRenderer, conversation: Talk) -> list[TokenDocument]:
    messages, tools = conversation.messages, conversation.tools
    documents: list[TokenDocument] = []
    ids: tuple[int, ...] = ()
    loss: list[bool] = []
    prompt: tuple[int, ...] | None
    after, sampled = 0, 0
    for i in (i for i, message in enumerate(messages) if message["role"] == "assistant"):
        prompt = None
        if sampled:
            news = messages[after:i]
            prompt = renderer.bridge(ids[:-sampled], ids[-sampled:], news, tools)
        if prompt is None or prompt[: len(ids)] != ids:
            prompt = renderer.first(messages[:i], tools)
        if prompt[: len(ids)] != ids:
            documents.append(TokenDocument(ids=ids, loss=tuple(loss)))
            ids, loss = (), []
        answer = renderer.answer(messages[: i + 1], tools)
        loss += [False] * (len(prompt) - len(ids)) + [i not in conversation.unscored] * len(answer)
        ids, after, sampled = prompt + answer, i + 1, len(answer)
    return [*documents, TokenDocument(ids=ids, loss=tuple(loss))]
