"""Bugs to plant in what an answer brings besides its text, and in how it ends."""

from actorllm.cores.batch import Batch
from actorllm.cores.detokenizer import Detokenizer, _Writer
from actorllm.cores.repetition import Circles
from actorllm.cores.scheduler import Scheduler
from actorllm.cores.table import Table
from actorllm.cores.walk import Table as Blocks

from .planted import Bug

TOLD = {"logprobs": 0.8}

LOGPROBS = (
    Bug(
        "the log-probabilities of a late token go to the next",
        "impatient",
        Scheduler,
        "_step_is_done",
        {
            "iter(zip(tokens, logprobs, strict=True))": "iter(tokens)",
            "token, candidates = next(sampled) if samples else (None, None)": "token = next("
            "sampled) if samples else None; candidates = "
            "logprobs.pop(0) if samples and request.status is not Status.ENDED else None",
        },
        settings=TOLD,
    ),
    Bug(
        "log-probabilities behind a stop string are told",
        "calm",
        Detokenizer,
        "_write",
        {"logprobs[:num_tokens]": "logprobs"},
        settings=TOLD,
    ),
    Bug(
        "log-probabilities of a turn's first message are lost",
        "calm",
        Detokenizer,
        "_write",
        {"news.logprobs += logprobs[:num_tokens]": "news.logprobs = list(logprobs[:num_tokens])"},
        settings=TOLD,
    ),
    Bug(
        "those of a prompt are lost when its answer ends with them",
        "calm",
        Detokenizer,
        "_absorb",
        {
            "if each.request in self._tracked:": "if each.request in self._tracked "
            "and each.request not in endings:",
        },
        settings=TOLD,
    ),
    Bug(
        "those of a prompt are told again after a preemption",
        "tight",
        Scheduler,
        "_join",
        {"request.num_prompt_told,": "0,"},
        settings=TOLD,
    ),
    Bug(
        "those of a prompt are computed again after a preemption",
        "tight",
        Batch,
        "_join",
        {"max(1, row.num_told)": "1"},
        settings=TOLD,
    ),
    Bug(
        "those of a prompt are of the token behind",
        "calm",
        Batch,
        "_parts",
        {"begin += first - 1 -": "begin += first -"},
        settings=TOLD,
    ),
    Bug(
        "a prompt is told of what the prefix cache leaves",
        "calm",
        Blocks,
        "skips_reading",
        {"self.key.skip_reading": "False"},
        caught_by="skip the prefix cache",
        settings=TOLD,
    ),
)

ENDINGS = (
    Bug(
        "an answer may repeat itself once more",
        "calm",
        Circles,
        "feed",
        {"min_count - 1": "min_count"},
        caught_by="expected Answer",
        settings={"repetition": 0.8},
    ),
    Bug(
        "an answer that repeats its prompt ends",
        "calm",
        Table,
        "accept",
        {
            "request.circles.feed(token)": "[request.circles.feed(each) for each in "
            "(request.tokens if request.num_output == 1 else [token])][-1]"
        },
        caught_by="expected Answer",
        settings={"repetition": 0.8},
    ),
    Bug(
        "stop strings are looked for one token too late",
        "calm",
        _Writer,
        "__init__",
        {"= rules.min_tokens": "= rules.min_tokens + 1"},
        caught_by="expected Answer",
    ),
    Bug(
        "stop strings are looked for one token too early",
        "calm",
        _Writer,
        "__init__",
        {"= rules.min_tokens": "= max(0, rules.min_tokens - 1)"},
        caught_by="expected Answer",
        settings={"stop": 0.8},
    ),
)

ANSWERS = (*LOGPROBS, *ENDINGS)
