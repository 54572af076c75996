"""Everything the actors say. Each inbox takes one union; each actor says one union.

Read this page first: it is the whole conversation of the engine.
"""

from .base import MESSAGES, message
from .cache import Release, Reserve, Reserved, ResetPool
from .control import Hello, Job, JobDone
from .grammar import Compile, Drop, GrammarReady
from .packed import RequestId, pack, pack_ids, request_id, unpack, unpack_ids
from .request import (
    Abort,
    Cancel,
    Conversation,
    Delta,
    Ending,
    Failed,
    Fault,
    Generate,
    Limits,
    Question,
    Render,
    Rendered,
    Sampling,
    Seen,
    Submit,
    Terms,
    Text,
    TextPrompt,
    TextRules,
    TokenPrompt,
    Tokens,
    Track,
)
from .step import NewRow, RankDone, RankFailed, RunStep, Sampled, StepDone, StepFailed

ToFrontend = Generate | Cancel | Rendered | Failed | Text
FromFrontend = Render | Abort | Seen | Rendered | Failed | Delta

ToRenderer = Render | Abort | JobDone
FromRenderer = Job | Rendered | Failed | Track | Submit | Abort

ToScheduler = Submit | Abort | Seen | Reserved | GrammarReady | StepDone | StepFailed
FromScheduler = Reserve | Release | ResetPool | Compile | Drop | RunStep | Tokens

ToKVPool = Reserve | Release | ResetPool
FromKVPool = Reserved

ToGrammar = Compile | Drop
FromGrammar = GrammarReady

ToExecutor = RunStep | RankDone | RankFailed
FromExecutor = RunStep | StepDone | StepFailed

ToWorker = RunStep | JobDone
FromWorker = Job | RankDone | RankFailed

ToDetokenizer = Track | Tokens
FromDetokenizer = Text | Abort

ToCaller = Rendered | Failed | Delta
"""What ends in a caller's output cell."""

Message = (
    ToFrontend
    | FromFrontend
    | ToRenderer
    | FromRenderer
    | ToScheduler
    | FromScheduler
    | ToExecutor
    | FromExecutor
    | ToWorker
    | FromWorker
    | FromGrammar
    | FromDetokenizer
    | Hello
)

__all__ = [
    "MESSAGES",
    "Abort",
    "Cancel",
    "Compile",
    "Conversation",
    "Delta",
    "Drop",
    "Ending",
    "Failed",
    "Fault",
    "FromDetokenizer",
    "FromExecutor",
    "FromFrontend",
    "FromGrammar",
    "FromKVPool",
    "FromRenderer",
    "FromScheduler",
    "FromWorker",
    "Generate",
    "GrammarReady",
    "Hello",
    "Job",
    "JobDone",
    "Limits",
    "Message",
    "NewRow",
    "Question",
    "RankDone",
    "RankFailed",
    "Release",
    "Render",
    "Rendered",
    "RequestId",
    "Reserve",
    "Reserved",
    "ResetPool",
    "RunStep",
    "Sampled",
    "Sampling",
    "Seen",
    "StepDone",
    "StepFailed",
    "Submit",
    "Terms",
    "Text",
    "TextPrompt",
    "TextRules",
    "ToCaller",
    "ToDetokenizer",
    "ToExecutor",
    "ToFrontend",
    "ToGrammar",
    "ToKVPool",
    "ToRenderer",
    "ToScheduler",
    "ToWorker",
    "TokenPrompt",
    "Tokens",
    "Track",
    "message",
    "pack",
    "pack_ids",
    "request_id",
    "unpack",
    "unpack_ids",
]
