"""actorllm: an LLM inference engine of independent actors that lives inside your async program."""

from .config import EngineConfig
from .engine.engine import Engine
from .engine.llm import LLM
from .engine.logprobs import Logprob
from .engine.outputs import CompletionOutput, RequestOutput
from .engine.parts import Parts
from .engine.stream import Stream
from .engine.tap import Tap
from .errors import (
    ActorLLMError,
    CommandFailed,
    ConfigError,
    DecodeError,
    DownloadFailed,
    EngineClosed,
    EngineDied,
    InvalidRequest,
    KernelsMissing,
    LinkError,
    LinkLost,
    LinkRefused,
    MachineError,
    ModelCorrupt,
    ModelError,
    ModelNotFound,
    Overloaded,
    RequestError,
    RequestFailed,
    UnsupportedModel,
    UsageError,
)
from .params import RepetitionDetection, RequestOutputKind, SamplingParams
from .processors import LogitsProcessor

__all__ = [
    "LLM",
    "ActorLLMError",
    "CommandFailed",
    "CompletionOutput",
    "ConfigError",
    "DecodeError",
    "DownloadFailed",
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "EngineDied",
    "InvalidRequest",
    "KernelsMissing",
    "LinkError",
    "LinkLost",
    "LinkRefused",
    "LogitsProcessor",
    "Logprob",
    "MachineError",
    "ModelCorrupt",
    "ModelError",
    "ModelNotFound",
    "Overloaded",
    "Parts",
    "RepetitionDetection",
    "RequestError",
    "RequestFailed",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "Stream",
    "Tap",
    "UnsupportedModel",
    "UsageError",
]
