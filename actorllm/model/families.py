"""Which file describes the step of which family."""

from ..checkpoint.architecture import Architecture
from . import gemma, llama
from .program import Program

PROGRAMS = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), llama.program) | {"gemma3": gemma.program}


def program_of(architecture: Architecture) -> Program:
    """A step of the model, for any back end. Raises UnsupportedModel for a rotary embedding unknown here."""
    return PROGRAMS[architecture.family](architecture)
