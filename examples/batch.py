"""Answer many prompts from a program that is not async. Usage: python examples/batch.py [MODEL]"""

import sys

from actorllm import LLM, SamplingParams

PROMPTS = ["The sky is", "Two and two is", "A haiku about rain:"]


def main(model: str) -> None:
    with LLM(model) as llm:
        for prompt, answer in zip(PROMPTS, llm.generate(PROMPTS, SamplingParams(max_tokens=24)), strict=True):
            print(f"{prompt!r} -> {answer.text!r}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
