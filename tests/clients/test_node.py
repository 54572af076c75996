"""OpenAI's client for Node: `openai.mjs`, which has its tests."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from actorllm.checkpoint.fetch import cache_directory

from .real import KEY, MODEL, SEATS, Server

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
OLDEST = 20
"""The version of Node that the client needs."""


@pytest.fixture(scope="session")
def modules() -> Path:
    """The folder of the packages in package-lock.json, installed into the cache once."""
    lock = HERE / "package-lock.json"
    place = cache_directory() / "npm" / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".lock"):
        if not (place / ".installed").exists():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(HERE / name, place)
            install(place)
            (place / ".installed").touch()
    return place / "node_modules"


def install(place: Path) -> None:
    """What the lock in this folder says; skips the test where that is not possible."""
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=240)
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm does not install OpenAI's client: {error}")
    if done.returncode:
        pytest.skip(f"npm does not install OpenAI's client: {done.stderr[-500:]}")


@pytest.fixture(scope="session")
def node() -> str:
    """Where Node is; skips the test without one that is new enough."""
    path = shutil.which("node")
    if path is None or shutil.which("npm") is None:
        pytest.skip("node or npm is not installed")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.removeprefix("v").split(".")[0]) < OLDEST:
        pytest.skip(f"node is {version}, and OpenAI's client needs {OLDEST}")
    return path


def test_the_client_for_node(node: str, modules: Path, server: Server, tmp_path: Path) -> None:
    script = Path(shutil.copy(HERE / "openai.mjs", tmp_path))
    (tmp_path / "node_modules").symlink_to(modules)
    told = {"OPENAI_BASE_URL": server.openai, "OPENAI_API_KEY": KEY, "MODEL": MODEL, "SEATS": str(SEATS)}
    command = [node, "--test", "--test-reporter", "tap", script.name]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | told, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^# pass [1-9]\d*\n# fail 0\n# cancelled 0\n# skipped 0$", done.stdout, re.MULTILINE)
