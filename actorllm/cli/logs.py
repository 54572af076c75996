"""What a server writes on stderr: lines for people, and a line of JSON for each request."""

import logging.config

from ..errors import UsageError

LEVELS = ("debug", "info", "warning", "error")


def log_to_stderr(level: str) -> None:
    """Send the program's logs there, from this level on. Raises UsageError unless it is one of LEVELS."""
    if level not in LEVELS:
        raise UsageError(f"--log-level must be one of {', '.join(LEVELS)}, not {level!r}")
    line = {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}
    ours = {"level": level.upper(), "handlers": ["lines"], "propagate": False}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": line, "bare": {"format": "%(message)s"}},
            "handlers": {
                "lines": {"class": "logging.StreamHandler", "formatter": "line"},
                "access": {"class": "logging.StreamHandler", "formatter": "bare"},
            },
            "loggers": {
                "actorllm": ours,
                "actorllm.access": {**ours, "handlers": ["access"]},
                "uvicorn": ours,
            },
        }
    )
