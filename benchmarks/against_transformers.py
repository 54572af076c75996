"""Tokens per second of the engine and of transformers' `generate`, alternating, on the same bf16 weights.

Usage: python benchmarks/against_transformers.py [--rounds 3] [--tokens 64] [--many 16]
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers

from actorllm import LLM, EngineConfig, SamplingParams
from actorllm.checkpoint import Checkpoint, open_checkpoint

MODEL = "smollm2-135m"
PROMPT_TOKENS = 32


def open_transformers(checkpoint: Checkpoint) -> Any:
    """The checkpoint's weights in bfloat16, in transformers' own model."""
    shape = checkpoint.architecture
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_position_embeddings,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    weights = checkpoint.weights().items()
    model.load_state_dict(
        {name: torch.from_numpy(raw.to_float32().copy()) for name, raw in weights}, strict=False
    )
    return model.to(torch.bfloat16).eval()


def rate(run: Callable[[], object], tokens: int) -> float:
    """Tokens per second of one run."""
    begun = time.perf_counter()
    run()
    return tokens / (time.perf_counter() - begun)


def prompts(count: int) -> list[list[int]]:
    """Prompts of random token ids, no two alike."""
    generator = torch.Generator().manual_seed(count)
    rows: list[list[int]] = torch.randint(1000, 40000, (count, PROMPT_TOKENS), generator=generator).tolist()
    return rows


def show(name: str, rates: Sequence[float], base: float) -> None:
    """One line of the table."""
    median = statistics.median(rates)
    spread = f"{min(rates):.1f} to {max(rates):.1f}"
    print(f"{name:32} {median:8.1f} tokens/s ({spread}), {median / base:5.2f} x transformers alone")


def main() -> None:
    """Alternate the three runs and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--many", type=int, default=16)
    chosen = parser.parse_args()
    model = open_transformers(open_checkpoint(MODEL))
    params = SamplingParams(temperature=0, max_tokens=chosen.tokens, ignore_eos=True)
    alone = torch.tensor(prompts(1))

    def generate() -> None:
        model.generate(
            alone,
            attention_mask=torch.ones_like(alone),
            do_sample=False,
            min_new_tokens=chosen.tokens,
            max_new_tokens=chosen.tokens,
        )

    rates: dict[str, list[float]] = {"transformers": [], "one": [], "many": []}
    config = EngineConfig(model=MODEL, dtype="bfloat16", enable_prefix_caching=False)
    with torch.inference_mode(), LLM(config) as llm:
        for _ in range(chosen.rounds):
            rates["transformers"].append(rate(generate, chosen.tokens))
            rates["one"].append(rate(lambda: llm.generate(prompts(1), params), chosen.tokens))
            total = chosen.many * chosen.tokens
            rates["many"].append(rate(lambda: llm.generate(prompts(chosen.many), params), total))
    base = statistics.median(rates["transformers"])
    show("transformers, 1 request", rates["transformers"], base)
    show("actorllm, 1 request", rates["one"], base)
    show(f"actorllm, {chosen.many} requests", rates["many"], base)


if __name__ == "__main__":
    main()
