"""Structured output: what a caller may ask for, and the grammars that hold a model to it."""

from .grammars import XGrammars
from .spec import spec

__all__ = ["XGrammars", "spec"]
