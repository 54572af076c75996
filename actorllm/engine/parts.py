"""The parts of an engine: one core for each actor, and what a caller can put in their place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..actors.worker import Device, OpenRunner, open_runner
from ..checkpoint import Checkpoint, Tokenizer
from ..config import EngineConfig
from ..cores import Core
from ..cores.detokenizer import Detokenizer
from ..cores.executor import Executor
from ..cores.frontend import Frontend
from ..cores.grammar import Grammar, Grammars
from ..cores.kvpool import KVPool
from ..cores.policy import POLICIES, Policy
from ..cores.prefix import Groups
from ..cores.renderer import Renderer
from ..cores.scheduler import Scheduler
from ..cores.worker import Worker
from ..errors import ConfigError
from ..structured.grammars import XGrammars
from .tap import Tap
from .topology import bounds

OpenGrammars = Callable[[Checkpoint], Grammars]
"""Makes what knows a model's grammars; cheap, for most engines never see one."""


def open_grammars(checkpoint: Checkpoint) -> Grammars:
    """xgrammar, which is loaded with the first grammar."""
    tokenizer, vocab_size = checkpoint.tokenizer(), checkpoint.architecture.vocab_size
    return XGrammars(
        lambda: tokenizer.pieces, vocab_size, lambda: tokenizer.special_ids, checkpoint.eos_token_ids
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """What can be put in place of the engine's own parts.

    policy       the order of requests, instead of the one that the configuration names
    open_runner  makes the runner of the worker's device
    grammars     makes what compiles and matches grammars
    taps         actors that listen
    """

    policy: Policy | None = None
    open_runner: OpenRunner = open_runner
    grammars: OpenGrammars = open_grammars
    taps: tuple[Tap, ...] = ()


def max_model_len(config: EngineConfig, checkpoint: Checkpoint, device: Device) -> int:
    """What one request may have: no more than the pool holds, so that each can run to its end.

    Raises ConfigError when the configuration promises more.
    """
    groups = Groups(checkpoint.architecture.windows, config.block_size)
    room = groups.longest(device.num_blocks)
    if config.max_model_len is not None and config.max_model_len > room:
        raise ConfigError(
            f"max_model_len is {config.max_model_len}, but the KV cache holds {room} tokens of one request "
            f"({device.num_blocks} blocks of {config.block_size}); lower max_model_len, or raise "
            "num_gpu_blocks_override or kv_cache_memory_bytes"
        )
    return min(device.max_model_len, room)


def policy_of(config: EngineConfig, parts: Parts) -> Policy:
    """In what order requests are served."""
    return parts.policy or POLICIES[config.policy]()


def make_cores(
    config: EngineConfig,
    checkpoint: Checkpoint,
    tokenizer: Tokenizer,
    device: Device,
    seed: int,
    parts: Parts,
    grammars: Grammars,
) -> dict[str, Core[Any, Any]]:
    """One core for each actor: all that the engine knows."""
    limits = bounds(config)
    return {
        "frontend": Frontend(seed),
        "renderer": Renderer(
            vocab_size=checkpoint.architecture.vocab_size,
            max_model_len=max_model_len(config, checkpoint, device),
            max_requests=limits.requests,
            eos_token_ids=checkpoint.eos_token_ids,
        ),
        "detokenizer": Detokenizer(tokenizer),
        "scheduler": _make_scheduler(config, checkpoint, parts),
        "kvpool": _make_pool(config, checkpoint, device),
        "grammar": Grammar(grammars, timeout=config.structured_outputs_timeout, max_jobs=limits.requests),
        "executor": Executor(num_ranks=1),
        "worker": Worker(rank=0),
    }


def _make_scheduler(config: EngineConfig, checkpoint: Checkpoint, parts: Parts) -> Scheduler:
    return Scheduler(
        policy=policy_of(config, parts),
        eos_token_ids=checkpoint.eos_token_ids,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        steps_in_flight=config.steps_in_flight,
        step_window=bounds(config).texts,
        max_chunk=config.long_prefill_token_threshold,
        max_num_queued_reqs=config.max_num_queued_reqs,
        max_num_queued_tokens=config.max_num_queued_tokens,
    )


def _make_pool(config: EngineConfig, checkpoint: Checkpoint, device: Device) -> KVPool:
    return KVPool(
        device.num_blocks,
        config.block_size,
        windows=checkpoint.architecture.windows,
        enable_prefix_caching=config.enable_prefix_caching,
        watermark=config.watermark,
        max_chunk=config.long_prefill_token_threshold,
        tells=config.enable_kv_cache_events,
    )
