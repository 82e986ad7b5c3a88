"""Calls → segments: each sampled token trainable exactly once, at its place."""

from collections.abc import Sequence

from insitu.types import Call, GatewayError, Segment


def stitch(calls: Sequence[Call]) -> tuple[Segment, ...]:
    """Stitch calls that extend each other into as few sequences as can be.

    Where several calls extend the same one, the one with the longest continuation goes on in
    its segment; each of the others begins a segment of its own, in which the shared prompt is
    context and not trained. Calls without a sampled token (cancelled ones) are left out.

    Raises:
        GatewayError: a call's prompt does not begin with the tokens it claims to extend.
    """
    sampled = [c for c in calls if c.result.token_ids]
    by_id = {c.call_id: c for c in sampled}
    children: dict[str, list[Call]] = {}
    for call in sampled:
        if call.extends is not None:
            children.setdefault(call.extends, []).append(call)
    following = _main_lines(sampled, children)
    continued = {c.call_id for c in following.values()}
    segments = []
    for call in sampled:
        if call.call_id not in continued:
            chain = [call]
            while (after := following.get(chain[-1].call_id)) is not None:
                chain.append(after)
            segments.append(_segment(chain))
    if sum(s.sampled for s in segments) != sum(len(c.result.token_ids) for c in by_id.values()):
        raise GatewayError("stitching lost or doubled sampled tokens")
    return tuple(segments)


def _main_lines(calls: Sequence[Call], children: dict[str, list[Call]]) -> dict[str, Call]:
    """For each call that is extended, the one that goes on in its segment."""
    depth: dict[str, int] = {}
    following: dict[str, Call] = {}
    for call in sorted(calls, key=lambda c: len(c.prompt_ids), reverse=True):
        # A child's prompt is longer than its parent's, so children come first.
        below = children.get(call.call_id, ())
        best = max(below, key=lambda c: depth[c.call_id], default=None)
        depth[call.call_id] = 1 + (depth[best.call_id] if best else 0)
        if best is not None:
            following[call.call_id] = best
    return following


def _segment(chain: Sequence[Call]) -> Segment:
    ids: list[int] = []
    trainable: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    for call in chain:
        known = len(ids)
        if list(call.prompt_ids[:known]) != ids:
            raise GatewayError(f"{call.call_id} does not begin with the tokens of {call.extends}")
        context = len(call.prompt_ids) - known
        result = call.result
        ids += call.prompt_ids[known:] + result.token_ids
        trainable += [False] * context + [True] * len(result.token_ids)
        logprobs += [0.0] * context + list(result.logprobs)
        versions += [-1] * context + list(result.versions)
    return Segment(
        token_ids=tuple(ids),
        trainable=tuple(trainable),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        call_ids=tuple(c.call_id for c in chain),
    )
