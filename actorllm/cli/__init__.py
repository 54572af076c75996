"""The command line: serve · chat · generate · fetch · simulate · replay · bench."""

import sys
from collections.abc import Sequence

from ..errors import ActorLLMError, InvalidRequest, UsageError
from .output import told_output

EXTRAS = ("typer", "rich", "click", "fastapi", "uvicorn")
"""Packages that come with the extras `cli` and `serve`."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0 is success, 1 an error, 2 a wrong use. `arguments` instead of sys.argv's."""
    try:
        from .commands import run

        with told_output():
            run(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRAS:
            raise
        _fail(f"this command needs {error.name}; pip install 'actorllm[cli,serve]' brings it", 1)
    except ActorLLMError as error:
        _fail(str(error), 2 if isinstance(error, UsageError | InvalidRequest) else 1)


def _fail(message: str, code: int) -> None:
    line = " ".join(message.split())
    sys.stderr.write(f"actorllm: {line}\n")
    sys.exit(code)
