"""The callers of a simulated engine: what they ask, how they read, and when they have enough."""

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

from ..cores.logprobs import concatenate
from ..engine.cell import Cell
from ..messages import (
    CacheKey,
    Conversation,
    Delta,
    Fault,
    Limits,
    Logprobs,
    Media,
    Question,
    Repetition,
    Sampling,
    Terms,
    TextPrompt,
    TextRules,
    ToCell,
    TokenPrompt,
    pack,
    unpack,
)
from ..model.hash import END, VOCAB_SIZE
from .answers import Answer, answer, owed_logprobs, owed_prompt_logprobs, text_of
from .grammars import BAD, CROWDED, NOT_READY, REFUSED, TORN, draw_grammar
from .scenarios import LONG, SECOND, Scenario
from .virtual import RESET_RAISED

EOS = frozenset({END})

EARLY = ("abort", "error", "timeout")
"""Reasons that leave an answer unfinished."""

PROMPT, SLOW, VANISHED = "prompt", "slow", "vanished"
"""How a caller reads."""


class Caller:
    """One request, from the question to the end of its answer.

    `bad` says that the question must be refused; `patience` is after how many moves of the simulation
    the caller cancels, None for never; `excuses` are the reasons that it may fail for.
    """

    def __init__(self, question: Question, *, bad: bool, reading: str, patience: int | None) -> None:
        self.question = question
        self.bad = bad
        self.reading = reading
        self.patience = patience
        self.cell = Cell(0)
        self.entered = self.cancelled = self.ended = False
        self.seed: int | None = None
        self.excuses: set[str] = set()
        self.text = ""
        self.tokens: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.prompt_logprobs: list[Logprobs] = []

    @property
    def is_open(self) -> bool:
        """Whether it has a seat."""
        return self.entered and not self.ended

    def enter(self, request: int) -> None:
        """It has a seat, and this id."""
        self.entered = True
        self.cell = Cell(request)

    def put(self, message: ToCell) -> bool:
        """Take in what has come; True when it was the last. Raises AssertionError for anything after it."""
        assert not self.ended, f"{type(message).__name__} after the last of request {message.request}"
        self.ended = self.cell.put(message)
        if isinstance(message, Delta):
            self._look_at(message)
        if self.reading == PROMPT:
            self.read()
        return self.ended

    def read(self) -> int:
        """Empty the cell; how many tokens were in it."""
        parts, self.cell.parts = self.cell.parts, []
        tokens, self.cell.tokens = self.cell.tokens, []
        self.text += "".join(parts)
        self.tokens += tokens
        self.logprobs += self.cell.logprobs
        self.cell.logprobs = []
        self.prompt_logprobs = self.cell.prompt_logprobs
        return len(tokens)

    def judge(self, scenario: Scenario) -> None:
        """Raise AssertionError unless the caller got what the question deserves."""
        self.read()
        reason = self.cell.finish_reason
        self._judge_reason(scenario)
        if not self.cell.prompt:
            assert reason in EARLY, f"{reason} without a prompt"
            assert not [*self.tokens, *self.prompt_logprobs], "tokens without a prompt"
            return
        whole = self._owed(scenario)
        if reason in EARLY:
            assert self.tokens == whole.tokens[: len(self.tokens)], f"{self.tokens} do not begin {whole}"
            text = text_of(self.cell.prompt, self.tokens) if self.question.text.detokenize else ""
            assert self.text == text, f"{self.text!r} is not the text of {self.tokens}"
        else:
            got = Answer(self.tokens, self.text, reason or "", self.cell.stop_reason)
            assert got == whole, f"got {got}, expected {whole}"
        self._judge_logprobs(whole, scenario)

    def judge_beginning(self, scenario: Scenario) -> None:
        """Raise AssertionError unless what was read, of an answer that went on, is the beginning of it."""
        if self.cell.finish_reason is not None:
            self._judge_reason(scenario)
        if self.tokens or self.text:
            whole = self._owed(scenario)
            assert self.tokens == whole.tokens[: len(self.tokens)], f"{self.tokens} do not begin {whole}"
            assert whole.text.startswith(self.text), f"{self.text!r} does not begin {whole}"
            self._judge_logprobs(whole, scenario)

    def _judge_reason(self, scenario: Scenario) -> None:
        """Raise AssertionError when there is no reason to end with this reason."""
        reason, fault = self.cell.finish_reason, self.cell.fault
        if reason == "error":
            assert fault is not None, "an error without a reason"
            refused = fault.kind == "Overloaded" and scenario.limits_queue
            excused = fault.message in (*self.excuses, RESET_RAISED) or self._has_failed_by_grammar(
                fault, scenario
            )
            assert self.bad or refused or excused, f"failed without a reason: {fault}"
        else:
            assert not self.bad or reason in EARLY, f"a bad question ended with {reason}"
            assert fault is None, f"{reason} with a fault: {fault}"
        assert reason != "abort" or self.cancelled, "aborted, but nobody cancelled it"

    def _has_failed_by_grammar(self, fault: Fault, scenario: Scenario) -> bool:
        """Whether the grammar may have failed like this; `Laws` know whether it was late indeed."""
        grammar = self.question.limits.grammar
        if grammar is None:
            return False
        bad = grammar.startswith(BAD) and fault.message == REFUSED
        torn = grammar.startswith(TORN) and "does not fit the grammar" in fault.message
        late = fault.message.startswith(NOT_READY) and scenario.grammar_timeout < LONG
        return bad or torn or late or fault.message.endswith(CROWDED)

    def _look_at(self, delta: Delta) -> None:
        """Each token comes with its log-probabilities, if any are wanted, and behind those of the prompt."""
        if delta.logprobs is not None:
            counts = unpack(delta.logprobs.counts)
            assert len(counts) == len(delta.tokens) // 4, f"{counts} candidates for {unpack(delta.tokens)}"
            assert all(counts), "a token without its candidates"
        if delta.tokens and self.question.sampling.prompt_logprobs is not None:
            told = sum(len(part.counts) // 4 for part in self.cell.prompt_logprobs)
            assert told == len(self.cell.prompt) - 1, f"a token comes when {told} of its prompt were told of"

    def _judge_logprobs(self, whole: Answer, scenario: Scenario) -> None:
        """Raise AssertionError unless exactly those were told that are owed for the tokens that came."""
        sampling, count = self.question.sampling, len(self.tokens)
        _compare("", self.logprobs, owed_logprobs(sampling, self.tokens, whole.draws[:count]), is_whole=True)
        owed = owed_prompt_logprobs(sampling, self.cell.prompt, scenario.windows)
        _compare("the prompt's ", self.prompt_logprobs, owed, is_whole=count > 0)

    def _owed(self, scenario: Scenario) -> Answer:
        prompt = self.question.prompt
        told = self.cell.prompt
        if isinstance(prompt, TokenPrompt):
            assert told == unpack(prompt.tokens), f"told of another prompt: {told}"
        elif isinstance(prompt, TextPrompt):
            assert bytes(told) == prompt.text.encode(), f"told of another prompt: {told}"
        return answer(told, self.question, self.seed, scenario.max_model_len, EOS, scenario.windows)


def _compare(whose: str, parts: list[Logprobs], owed: Logprobs | None, *, is_whole: bool) -> None:
    """Raise AssertionError unless these are the log-probabilities that are owed, or begin them."""
    assert parts == [] or owed is not None, f"{whose}log-probabilities, which nobody asked for: {parts}"
    got, owed = concatenate(parts), owed or Logprobs()
    for name in ("counts", "tokens", "values", "ranks"):
        have, must = getattr(got, name), getattr(owed, name)
        fits = have == must if is_whole else must.startswith(have)
        assert fits, f"{whose}log-probabilities: {name} {have.hex()}, expected {must.hex()}"


def draw_callers(random: Random, scenario: Scenario) -> list[Caller]:
    """The callers of a run, in the order in which they come."""
    stems = [[97 + random.randrange(3) for _ in range(scenario.longest_prompt)] for _ in range(2)]
    callers: list[Caller] = []
    for _ in range(scenario.num_requests):
        callers.append(_draw_caller(random, scenario, stems))
    return callers


def _draw_caller(random: Random, scenario: Scenario, stems: list[list[int]]) -> Caller:
    bad = random.random() < scenario.bad
    tokens = _draw_tokens(random, scenario, stems)
    question = _draw_question(random, scenario, tokens)
    if bad:
        question = random.choice(_BAD)(question, scenario)
    elif random.random() < scenario.shared and question.sampling.temperature == 0:
        whole = answer(tokens, question, None, scenario.max_model_len, EOS, scenario.windows)
        stems.append(tokens + whole.tokens)
    draw = random.random()
    return Caller(
        question,
        bad=bad or (question.limits.grammar or "").startswith(BAD),
        reading=SLOW
        if draw < scenario.slow
        else VANISHED
        if draw < scenario.slow + scenario.vanished
        else PROMPT,
        patience=random.randrange(random.choice((3, 30, 200, 1500)))
        if random.random() < scenario.aborts
        else None,
    )


def _draw_tokens(random: Random, scenario: Scenario, stems: list[list[int]]) -> list[int]:
    """A prompt that often begins as another one, or is another one."""
    longest = min(scenario.longest_prompt, scenario.max_model_len - 1)
    stem: list[int] = []
    if random.random() < scenario.shared:
        stem = random.choice(stems)[: random.randint(0, longest)]
    own = random.choice((0, 1, 3, longest))
    tokens = [*stem, *(97 + random.randrange(3) for _ in range(random.randint(0, own)))][:longest]
    if random.random() < 0.1:
        tokens = [*tokens[: longest - 1], random.choice((0xC3, 0xD0, 0xF0, 258))]
    return tokens or [97]


def _draw_question(random: Random, scenario: Scenario, tokens: list[int]) -> Question:
    warm = random.random() < scenario.warm
    sampling = Sampling(
        temperature=0.8 if warm else 0.0,
        seed=random.randrange(2**40) if random.random() < 0.7 else None,
    )
    sampling = _draw_wishes(random, scenario, sampling)
    limits = Limits(
        max_tokens=None if random.random() < 0.05 else random.randint(1, scenario.longest_answer),
        stop_token_ids=(101, 116) if random.random() < 0.1 else (),
        ignore_eos=random.random() < scenario.ignore_eos,
        grammar=draw_grammar(random, scenario.longest_answer) if random.random() < scenario.grammar else None,
        repetition=_draw_repetition(random) if random.random() < scenario.repetition else None,
    )
    rules = TextRules(detokenize=random.random() < 0.95, min_tokens=random.choice((0, 0, 0, 1, 4)))
    prompt: TokenPrompt | TextPrompt | Conversation = TokenPrompt(pack(tokens))
    if random.random() < scenario.rendered and max(tokens) < 128:
        text = bytes(tokens).decode()
        prompt = random.choice((TextPrompt(text), _conversation(text[:6])))
    key = _draw_key(random) if random.random() < scenario.keyed else None
    if sampling.prompt_logprobs is not None or random.random() < 0.05:
        key = replace(key or CacheKey(), skip_reading=True)
    question = Question(prompt, sampling, limits, rules, _draw_terms(random, scenario), key)
    if rules.detokenize and random.random() < scenario.stop:
        question = replace(question, text=_draw_stop(random, scenario, tokens, question))
    return question


def _draw_wishes(random: Random, scenario: Scenario, sampling: Sampling) -> Sampling:
    """Wishes for log-probabilities; rarely for those of the whole vocabulary."""
    if random.random() >= scenario.logprobs:
        return sampling
    draw = random.random()
    return replace(
        sampling,
        logprobs=random.choice((0, 1, 3, 5, -1)) if draw < 0.6 else None,
        logprob_tokens=pack(random.sample(range(VOCAB_SIZE), 2)) if 0.5 < draw < 0.7 else b"",
        prompt_logprobs=random.choice((0, 1, 2)) if random.random() < 0.5 or draw >= 0.7 else None,
    )


def _draw_repetition(random: Random) -> Repetition:
    least = random.choice((1, 1, 1, 2))
    return Repetition(least + random.randint(0, 2), least, random.choice((2, 2, 2, 3)))


def _draw_terms(random: Random, scenario: Scenario) -> Terms:
    """Some have timeouts, a few of them so short that they are missed."""

    def seconds() -> float | None:
        return random.choice((5, 60, 600)) / SECOND if random.random() < scenario.timeouts else None

    return Terms(
        priority=random.randrange(3),
        tenant=random.choice(("", "a", "b")),
        queue_timeout=seconds(),
        ttft_timeout=seconds(),
        timeout=seconds(),
    )


def _draw_key(random: Random) -> CacheKey:
    media = Media(random.randrange(4), random.choice((2, 5)), random.choice((b"cat", b"dog")))
    return CacheKey(random.choice(("", "a", "b")), random.randrange(2), (media,) * random.randrange(2))


def _draw_stop(random: Random, scenario: Scenario, tokens: list[int], question: Question) -> TextRules:
    """Stop strings; most of them stand in the answer, if the prompt is one of tokens and the seed is given.

    None has the character that stands for a broken one: an abort in the middle of one would complete it.
    """
    whole = answer(tokens, question, 0, scenario.max_model_len, EOS, scenario.windows)
    text = whole.text.replace("\ufffd", "")
    begin = random.randint(0, max(0, len(text) - 1))
    found = text[begin : begin + random.randint(1, 5)]
    stop = (found, random.choice("eta ")) if random.random() < 0.2 else (found,)
    include = random.random() < 0.3
    return replace(question.text, stop=tuple(filter(None, stop)), include_stop_str_in_output=include)


def _conversation(text: str) -> Conversation:
    return Conversation(json.dumps([{"role": "user", "content": text}]))


def _with_prompt(question: Question, tokens: list[int]) -> Question:
    return replace(question, prompt=TokenPrompt(pack(tokens)))


_BAD: tuple[Callable[[Question, Scenario], Question], ...] = (
    lambda question, scenario: _with_prompt(question, []),
    lambda question, scenario: _with_prompt(question, [97] * scenario.max_model_len),
    lambda question, scenario: _with_prompt(question, [97, VOCAB_SIZE]),
    lambda question, scenario: _with_prompt(question, [97, -1]),
    lambda question, scenario: replace(question, prompt=TextPrompt("a" * scenario.max_model_len)),
)
"""What must be refused: empty, too long, outside the vocabulary."""
