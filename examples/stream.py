"""Stream an answer inside an async program. Usage: python examples/stream.py [MODEL]"""

import sys

import anyio

from actorllm import Engine, SamplingParams


async def main(model: str) -> None:
    async with Engine(model) as engine:
        async for output in engine.generate("Once upon a time", SamplingParams(max_tokens=64, seed=1)):
            print(output.delta, end="", flush=True)
        print()
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = await engine.chat(question, SamplingParams(temperature=0, max_tokens=32))
        print(answer.text)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m", backend="trio")
