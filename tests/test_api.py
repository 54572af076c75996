"""The one door of the package."""

import subprocess
import sys

import actorllm


def test_all_is_sorted_and_complete() -> None:
    assert actorllm.__all__ == sorted(actorllm.__all__, key=lambda name: (not name.isupper(), name))
    public = {
        name
        for name, value in vars(actorllm).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("actorllm")
    }
    assert public == set(actorllm.__all__)


def test_every_error_of_the_tree_is_public() -> None:
    tree = {
        name
        for name, value in vars(actorllm.errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert tree <= set(actorllm.__all__)


def test_the_engine_loads_no_torch() -> None:
    code = (
        "import sys, actorllm, actorllm.engine.engine\n"
        "heavy = {'torch', 'transformers', 'triton', 'xgrammar', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_messages_import_nothing_of_the_project() -> None:
    code = (
        "import sys, importlib.util\n"
        "sys.modules['actorllm'] = type(sys)('actorllm')\n"
        "sys.modules['actorllm'].__path__ = [PATH]\n"
        "import actorllm.messages\n"
        "own = {name for name in sys.modules if name.startswith('actorllm')}\n"
        "assert all(name in ('actorllm', 'actorllm.messages') or name.startswith('actorllm.messages.')"
        " for name in own), own"
    ).replace("PATH", repr(actorllm.__path__[0]))
    subprocess.run([sys.executable, "-c", code], check=True)
