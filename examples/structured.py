"""An answer that is a pydantic model, and how sure of it the model was.

Usage: python examples/structured.py [MODEL]
"""

import math
import sys

import anyio
from pydantic import BaseModel, Field

from actorllm import Engine, SamplingParams


class Person(BaseModel):
    name: str = Field(max_length=30)
    profession: str = Field(max_length=30)
    is_alive: bool


async def main(model: str) -> None:
    params = SamplingParams(
        temperature=0,
        max_tokens=120,
        logprobs=0,
        structured_outputs={"json": Person.model_json_schema()},
    )
    question = [{"role": "user", "content": "Who was Ada Lovelace? Answer as JSON."}]
    async with Engine(model) as engine:
        answer = await engine.chat(question, params)
    print(Person.model_validate_json(answer.text))
    sure = answer.outputs[0].cumulative_logprob or 0.0
    print(f"a token was drawn with a probability of {math.exp(sure / len(answer.token_ids)):.0%} on average")


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
