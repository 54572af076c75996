"""How many KV blocks a device has, and how long a request may be."""

from collections.abc import Sequence

from ..config import EngineConfig
from ..cores.prefix import Groups
from ..errors import ConfigError


def capacity(
    config: EngineConfig, limit: int, block_bytes: int, windows: Sequence[int] = (0,)
) -> tuple[int, int]:
    """(num_blocks, max_model_len) for a model of at most `limit` tokens and blocks of `block_bytes`.

    A block holds `config.block_size` tokens of one group of layers; `windows` has an entry for each group.
    Without an override there are as many blocks as the memory holds, but no more than all requests
    together can fill. Without a configured `max_model_len` it is what both model and blocks can hold.
    Raises ConfigError when the model is shorter than configured, or not one block fits the memory.
    """
    length = config.max_model_len or limit
    if length > limit:
        raise ConfigError(f"max_model_len is {length}, but the model was made for {limit} tokens")
    groups = Groups(windows, config.block_size)
    enough = config.max_num_seqs * len(groups) * groups.num_blocks(length)
    affordable = config.kv_cache_memory_bytes // block_bytes
    num_blocks = config.num_gpu_blocks_override or min(affordable, enough)
    if not num_blocks:
        memory = config.kv_cache_memory_bytes
        raise ConfigError(f"kv_cache_memory_bytes is {memory}, but one block takes {block_bytes}")
    return num_blocks, config.max_model_len or min(length, groups.longest(num_blocks))
