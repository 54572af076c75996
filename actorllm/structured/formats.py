"""The formats of strings, as patterns: each full match is valid, though not all that is valid matches."""

from functools import cache

from .patterns import Node, anchored, parse

_MONTH_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = f"(?:[1-9][0-9]{{3}}-{_MONTH_DAY}|{_LEAP_YEAR}-02-29)"
_HOUR_MINUTE = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_HOUR_MINUTE}:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR_MINUTE})"
_CLOCK = "(?:[0-9]{1,4}H(?:[0-9]{1,4}M(?:[0-9]{1,4}S)?)?|[0-9]{1,4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S)"
_DAYS = "(?:[0-9]{1,4}Y(?:[0-9]{1,4}M(?:[0-9]{1,4}D)?)?|[0-9]{1,4}M(?:[0-9]{1,4}D)?|[0-9]{1,4}D)"
_LABEL = "[a-zA-Z][a-zA-Z0-9]{0,25}(?:-[a-zA-Z0-9]{1,15}){0,2}"
_HOST = rf"(?:{_LABEL}\.){{1,4}}[a-zA-Z]{{2,17}}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_SEGMENT = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_URI = (
    f"[a-z][a-z0-9+.-]{{0,15}}://{_HOST}(?::[0-9]{{1,4}})?(?:/{_SEGMENT}{{0,30}}){{0,6}}"
    rf"(?:\?{_SEGMENT}{{0,60}})?(?:#{_SEGMENT}{{0,30}})?"
)

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:[0-9]{{1,4}}W|{_DAYS}(?:T{_CLOCK})?|T{_CLOCK})",
    "email": rf"[a-zA-Z0-9_+-]{{1,30}}(?:\.[a-zA-Z0-9_+-]{{1,15}}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": "[0-9a-fA-F]{1,4}(?::[0-9a-fA-F]{1,4}){7}",
    "uri": _URI,
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}

FORMATS = tuple(_PATTERNS)
"""The names of those that are enforced."""


@cache
def format_pattern(name: str) -> Node:
    """The pattern of one of FORMATS, without anchors."""
    return anchored(parse(_PATTERNS[name]))
