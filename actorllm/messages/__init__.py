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
from .grammar import Advance, Compile, Compiled, Drop, Fill, Filled, GrammarReady, MaskStep
from .logprobs import Logprobs, PromptLogprobs
from .packed import RequestId, pack, pack_ids, request_id, unpack, unpack_floats, unpack_ids
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
    Repetition,
    Sampling,
    Seen,
    Submit,
    Terms,
    Text,
    TextPrompt,
    TextRules,
    Thinking,
    TokenPrompt,
    Tokens,
    Track,
)
from .step import (
    NewRow,
    RankDone,
    RankFailed,
    RunCommand,
    RunStep,
    Sampled,
    SampleStep,
    StepDone,
    StepFailed,
)

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
    | Advance
    | MaskStep
    | Drop
    | RunStep
    | RunCommand
    | Tokens
    | CommandDone
)

ToKVPool = Reserve | Release | ResetPool | ResetPrefixCache
FromKVPool = Reserved | PoolReset | CacheEvents

ToGrammar = Compile | Advance | MaskStep | Drop | JobDone
FromGrammar = Job | GrammarReady | SampleStep

ToExecutor = RunStep | SampleStep | RunCommand | RankDone | RankFailed
FromExecutor = RunStep | SampleStep | RunCommand | StepDone | StepFailed

ToWorker = RunStep | SampleStep | RunCommand | JobDone
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
    "Advance",
    "BlocksRemoved",
    "BlocksStored",
    "CacheCleared",
    "CacheEvents",
    "CacheKey",
    "Cancel",
    "Command",
    "CommandDone",
    "Compile",
    "Compiled",
    "Conversation",
    "Delta",
    "Drop",
    "Ending",
    "Failed",
    "Fault",
    "Fill",
    "Filled",
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
    "Logprobs",
    "MaskStep",
    "Media",
    "Message",
    "NewRow",
    "PoolReset",
    "PromptLogprobs",
    "Question",
    "RankDone",
    "RankFailed",
    "Release",
    "Render",
    "Rendered",
    "Repetition",
    "RequestId",
    "Reserve",
    "Reserved",
    "ResetPool",
    "ResetPrefixCache",
    "RunCommand",
    "RunStep",
    "SampleStep",
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
    "Thinking",
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
    "unpack_floats",
    "unpack_ids",
]
