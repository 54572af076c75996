"""What a model is on disk: its architecture, its tokenizer and its weights, whatever the format.

Nothing here imports torch.
"""

from .architecture import FAMILIES, Architecture, tensor_shapes
from .chat import ChatTemplate
from .fetch import Progress, cache_directory
from .opened import Checkpoint, open_checkpoint
from .rope import RopeScaling
from .tensor import RawTensor
from .tokenizer import Tokenizer

__all__ = [
    "FAMILIES",
    "Architecture",
    "ChatTemplate",
    "Checkpoint",
    "Progress",
    "RawTensor",
    "RopeScaling",
    "Tokenizer",
    "cache_directory",
    "open_checkpoint",
    "tensor_shapes",
]
