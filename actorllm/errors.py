"""Every exception of actorllm, named by who has to act.

ActorLLMError
├── UsageError            the program that calls
│   ├── ConfigError       a field of EngineConfig
│   └── EngineClosed      an engine that is not open (any more)
├── RequestError          one request; others are not touched
│   ├── InvalidRequest    it asks for what cannot be (`param` names the field)
│   ├── Overloaded        too many wait already (`retry_after` is a hint in seconds)
│   └── RequestFailed     the engine could not finish it
├── ModelError            the model's files
│   ├── ModelNotFound     there is no such model
│   ├── ModelCorrupt      a file is truncated or foreign (the message names it)
│   └── UnsupportedModel  an architecture, tokenizer or quantisation that we do not know
├── MachineError          this machine
│   ├── DownloadFailed    the model could not be fetched
│   ├── KernelsMissing    the native kernels were asked for, and cannot be had
│   ├── CommandFailed     the engine could not sleep, wake up or take a profile
│   └── EngineDied        an actor crashed; the cause is attached
├── LinkError             the process at the other end of a link
│   ├── LinkLost          it is gone
│   └── LinkRefused       it speaks another version
└── DecodeError           a peer: bytes that are not a message
"""


class ActorLLMError(Exception):
    """The root: catch this to catch everything that actorllm raises on purpose."""


class UsageError(ActorLLMError):
    """The calling program did what it must not do."""


class ConfigError(UsageError, ValueError):
    """A field of EngineConfig has a value that cannot work."""


class EngineClosed(UsageError):
    """The engine is not open: not entered yet, or left already."""


class RequestError(ActorLLMError):
    """One request failed; the others are not touched."""


class InvalidRequest(RequestError, ValueError):
    """A request asks for what cannot be. `param` is the name of the field at fault, or None."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Overloaded(RequestError):
    """Too many requests or tokens wait already. `retry_after` (seconds) is when to come again."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestFailed(RequestError):
    """The engine could not finish this request."""


class ModelError(ActorLLMError):
    """Something about the model's files."""


class ModelNotFound(ModelError, LookupError):
    """There is no model of this name, and no such file or directory."""


class ModelCorrupt(ModelError, ValueError):
    """A model file is truncated, damaged or of another kind."""


class UnsupportedModel(ModelError, ValueError):
    """The model needs something that actorllm does not know."""


class LinkError(ActorLLMError):
    """Something about the process at the other end of a link."""


class LinkLost(LinkError, ConnectionError):
    """The peer is gone: its stream broke, or ended within a frame or without a goodbye."""


class LinkRefused(LinkError):
    """The peer speaks another version; the text says which side is older."""


class DecodeError(ActorLLMError, ValueError):
    """Bytes from a peer that are not a message. The text gives the path of the bad field."""


class MachineError(ActorLLMError):
    """This machine or its network let us down."""


class DownloadFailed(MachineError, OSError):
    """The model could not be fetched."""


class KernelsMissing(MachineError):
    """ACTORLLM_CPU_KERNELS says native, but there is no compiler, or it fails."""


class CommandFailed(MachineError):
    """What a command asks for (sleep, wake_up, a profile) went wrong; the text says how."""


class EngineDied(MachineError):
    """An actor crashed and took the engine with it; `__cause__` has the reason."""


def rebuild(
    kind: str, message: str, param: str | None = None, retry_after: float | None = None
) -> ActorLLMError:
    """The exception that was boxed with these; RequestFailed for foreign kinds."""
    cls = globals().get(kind)
    if cls is InvalidRequest:
        return InvalidRequest(message, param)
    if cls is Overloaded:
        return Overloaded(message, retry_after or 0.0)
    if isinstance(cls, type) and issubclass(cls, ActorLLMError):
        return cls(message)
    return RequestFailed(f"{kind}: {message}")


def again(error: ActorLLMError) -> ActorLLMError:
    """The same error for one more reader, so that each raises one with a traceback of its own."""
    copy = type(error)(str(error))
    copy.__cause__ = error.__cause__
    return copy
