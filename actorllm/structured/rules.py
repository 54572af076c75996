"""The rules of one EBNF text for JSON: what is between elements, and the values that nothing constrains."""

from .charsets import of
from .ebnf import PLAIN, one_of
from .ranges import INTEGER, NUMBER

MAX_INDENT = 32
"""Spaces or tabs after a line break."""

MAX_RULES = 5000

_HEX = "[0-9a-fA-F]"


class TooLarge(ValueError):
    """More rules than MAX_RULES."""


def _escape() -> str:
    """An escape in a JSON string: one character, never half of a surrogate pair."""
    short = one_of(of('"\\/bfnrt'))
    single = f"([0-9a-cA-CefEF] {_HEX} | [dD] [0-7]) {_HEX}{{2}}"
    pair = f'[dD] [89abAB] {_HEX}{{2}} "\\\\u" [dD] [c-fC-F] {_HEX}{{2}}'
    return f'"\\\\" ({short} | "u" ({single} | {pair}))'


# The rest of a string is its next character and a rest: xgrammar then knows beforehand which tokens a string
# allows. Of characters with escapes that are repeated, it would try all tokens at each place, for 30 ms.
_BASIC = {
    "ws": f'"" | " " | "\\n" [ \\t]{{0,{MAX_INDENT}}}',
    "text": f'"\\"" | {one_of(PLAIN)} text | {_escape()} text',
    "string": '"\\"" text',
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": '"true" | "false"',
    "null": '"null"',
}


class Rules:
    """Rules by their names, each text once. `compact`: one space after , and : and no other whitespace."""

    def __init__(self, compact: bool) -> None:
        self.ws = '""' if compact else "ws"
        self.comma = '", "' if compact else '"," ws'
        self.colon = '": "' if compact else '":" ws'
        self._bodies = dict(_BASIC)
        self._bodies["array"] = f'"[" {self.ws} (value ({self.comma} value)* {self.ws})? "]"'
        member = f"string {self.colon} value"
        self._bodies["object"] = f'"{{" {self.ws} ({member} ({self.comma} {member})* {self.ws})? "}}"'
        self._bodies["value"] = "object | array | string | number | boolean | null"
        if compact:
            del self._bodies["ws"]
        self._names: dict[str, str] = {}

    def add(self, body: str) -> str:
        """The name of a rule with this body."""
        name = self._names.get(body)
        if name is None:
            name = self.reserve()
            self._names[body] = name
            self._bodies[name] = body
        return name

    def reserve(self) -> str:
        """A new name, whose body comes by `define`."""
        if len(self._bodies) >= MAX_RULES:
            raise TooLarge(f"needs more than {MAX_RULES} rules")
        name = f"r{len(self._bodies)}"
        self._bodies[name] = ""
        return name

    def define(self, name: str, body: str) -> None:
        """Give a reserved name its body."""
        self._bodies[name] = body

    def text(self, root: str) -> str:
        """The EBNF text; `root` is the body of its root."""
        lines = [f"root ::= {root}", *(f"{name} ::= {body}" for name, body in self._bodies.items())]
        return "\n".join(lines)
