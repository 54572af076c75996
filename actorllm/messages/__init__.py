"""Everything the actors say. Each inbox takes one union; each actor says one union.

Read this page first: it is the whole conversation of the engine.
"""

from .base import MESSAGES, message
from .cache import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheEvents,
    CacheKey,
    Keyed,
    Media,
    PoolReset,
    Release,
    Reserve,
    Reserved,
    ResetPool,
    ResetPrefixCache,
)
from .control import Command, CommandDone, Hello, Job, JobDone
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
from .step import NewRow, RankDone, RankFailed, RunCommand, RunStep, Sampled, StepDone, StepFailed

ToFrontend = Generate | Cancel | Command | Rendered | Failed | Text | CommandDone
FromFrontend = Render | Abort | Seen | Command | Rendered | Failed | Delta | CommandDone

ToRenderer = Render | Abort | JobDone
FromRenderer = Job | Rendered | Failed | Track | Submit | Abort

ToScheduler = Submit | Abort | Seen | Command | Reserved | PoolReset | GrammarReady | StepDone | StepFailed
FromScheduler = (
    Reserve
    | Release
    | ResetPool
    | ResetPrefixCache
    | Compile
    | Drop
    | RunStep
    | RunCommand
    | Tokens
    | CommandDone
)

ToKVPool = Reserve | Release | ResetPool | ResetPrefixCache
FromKVPool = Reserved | PoolReset | CacheEvents

ToGrammar = Compile | Drop
FromGrammar = GrammarReady

ToExecutor = RunStep | RunCommand | RankDone | RankFailed
FromExecutor = RunStep | RunCommand | StepDone | StepFailed

ToWorker = RunStep | RunCommand | JobDone
FromWorker = Job | RankDone | RankFailed

ToDetokenizer = Track | Tokens
FromDetokenizer = Text

ToCell = Rendered | Failed | Delta
"""What ends in the cell of a request."""

ToCaller = ToCell | CommandDone | CacheEvents
"""Besides, what ends with who gave a command, and with subscribers."""

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
    | FromKVPool
    | FromGrammar
    | FromDetokenizer
    | Hello
)

__all__ = [
    "MESSAGES",
    "Abort",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "CacheEvents",
    "CacheKey",
    "Cancel",
    "Command",
    "CommandDone",
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
    "Keyed",
    "Limits",
    "Media",
    "Message",
    "NewRow",
    "PoolReset",
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
    "ResetPrefixCache",
    "RunCommand",
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
    "ToCell",
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
