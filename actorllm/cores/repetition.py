"""Whether an answer goes round in circles."""

from collections.abc import Sequence

from ..messages import Repetition


def repeats(tokens: Sequence[int], begin: int, rule: Repetition) -> bool:
    """Whether the tokens from `begin` on end with one pattern, as often in a row as the rule says.

    Looks at the last tokens alone: a pattern that does not fit is mostly given up at its first token.
    """
    most = min(rule.max_pattern_size, (len(tokens) - begin) // rule.min_count)
    return any(
        all(tokens[-back] == tokens[-back - size] for back in range(1, size * (rule.min_count - 1) + 1))
        for size in range(rule.min_pattern_size, most + 1)
    )
