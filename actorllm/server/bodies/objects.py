"""The JSON in a body that goes on as it is: to the chat template, to a grammar, or back to the client."""

import json
from typing import Annotated

from pydantic import AfterValidator

from ...errors import InvalidRequest
from ..sse import dumps
from ..told import Json


def check_json(value: Json) -> Json:
    """The value, if it can be written as JSON; else raises InvalidRequest."""
    flaw = _flaw(value)
    if flaw is not None:
        raise InvalidRequest(f"must be JSON in UTF-8, with finite numbers: {flaw}")
    return value


def _flaw(value: Json) -> str | None:
    """Why it cannot be written as JSON; None if it can."""
    try:
        dumps(value)
    except UnicodeEncodeError:
        return "it has half of a surrogate pair"
    except RecursionError:
        return "it is nested too deep"
    except ValueError:
        return "it has NaN or an infinite number"
    return None


JsonObject = Annotated[Json, AfterValidator(check_json)]


def called_with(arguments: str) -> Json:
    """What the arguments of a call say. Raises InvalidRequest unless they are the JSON text of an object."""
    try:
        value = json.loads(arguments)
    except RecursionError as error:
        raise _no_arguments("it is nested too deep") from error
    except json.JSONDecodeError as error:
        raise _no_arguments(str(error)) from error
    except ValueError as error:
        raise _no_arguments("it has a number of too many digits") from error
    if not isinstance(value, dict):
        raise _no_arguments("it is no object")
    flaw = _flaw(value)
    if flaw is not None:
        raise _no_arguments(flaw)
    return value


def _no_arguments(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the arguments of a call must be the JSON text of an object: {reason}", "arguments"
    )
