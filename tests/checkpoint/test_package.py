import subprocess
import sys

import pytest


@pytest.mark.slow
def test_opening_a_checkpoint_imports_neither_torch_nor_transformers() -> None:
    program = (
        "import sys; from actorllm.checkpoint import open_checkpoint; light = set(sys.modules); "
        "open_checkpoint('hash').tokenizer().pieces; "
        "sys.exit(str([m for m in ('torch', 'transformers') if m in sys.modules] "
        "+ [m for m in ('gguf', 'tokenizers', 'huggingface_hub') if m in light]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
