"""Grammar's heavy work: compiling grammars, letting matchers go on, and filling masks."""

from typing import assert_never

from ..cores.grammar import Grammars
from ..messages import Compile, Compiled, Fill, Filled, SampleStep, pack_ids, unpack, unpack_ids

COMPILERS = 4
"""Threads that compile at once: one that takes long must not hold up the others."""

NOBODY = -1
"""No request has this id."""


def work_on(grammars: Grammars, work: Compile | Fill) -> Compiled | Filled:
    """Do a job. Raises InvalidRequest for a grammar that cannot be compiled, with the place."""
    match work:
        case Compile(_, grammar):
            grammars.compile(grammar)
            return Compiled(grammars.size(grammar))
        case Fill():
            return fill(grammars, work)
        case _:
            assert_never(work)


def fill(grammars: Grammars, work: Fill) -> Filled:
    """What the step's tokens may be. When the library fails at a token, so does its request; when it fails
    at the masks, all that ask for one.
    """
    step, asked = work.step, unpack_ids(work.step.requests)
    stuck: dict[int, str] = {}
    for request, token in zip(unpack_ids(work.requests), unpack(work.tokens), strict=True):
        reason = _accept(grammars, request, token)
        if reason is not None:
            stuck.setdefault(request, reason)
    try:
        masks, found = grammars.fill(asked)
    except Exception as error:  # whatever a library raises must not end the engine
        masks, _ = grammars.fill([NOBODY] * len(asked))
        found = dict.fromkeys(asked, _failed(error))
    stuck = found | stuck
    sample = SampleStep(step.step, step.epoch, step.requests, masks)
    return Filled(sample, pack_ids(stuck), tuple(stuck.values()))


def _accept(grammars: Grammars, request: int, token: int) -> str | None:
    """Why the request's matcher cannot take the token; None: it has."""
    try:
        return grammars.accept(request, (token,))
    except Exception as error:  # whatever a library raises over one answer must not end another
        return _failed(error)


def _failed(error: Exception) -> str:
    return f"the grammar could not be followed: {type(error).__name__}: {error}"
