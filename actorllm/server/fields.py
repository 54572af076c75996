"""What a body may say: fields that are honoured, and fields that may only say nothing new."""

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

from ..errors import InvalidRequest

Neutral = Mapping[str, tuple[Any, ...]]
"""Fields that OpenAI or vLLM know and we do not, with the values that change nothing."""

ANY_ROUTE: Neutral = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "echo": (False,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "stream_interval": (1,),
    "detokenize": (True,),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "priority": (0,),
    "request_id": (),
    "cache_salt": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
}

CHAT: Neutral = {
    **ANY_ROUTE,
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": ("none",),
    "include_reasoning": (True,),
    "verbosity": ("medium",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}

COMPLETION: Neutral = {
    **ANY_ROUTE,
    "suffix": ("",),
    "add_special_tokens": (True,),
    "prompt_embeds": (),
}

MESSAGE: Neutral = {
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "tool_calls": ([],),
    "tool_call_id": (),
    "reasoning": (),
    "reasoning_content": (),
}


class Body(BaseModel):
    """A JSON object. A field that is null was not given; an unknown one is an error that names it."""

    model_config = ConfigDict(strict=True)

    neutral: ClassVar[Neutral] = {}

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            raise InvalidRequest("must be a JSON object")
        given = {name: value for name, value in body.items() if value is not None}
        for name, value in given.items():
            if name in cls.neutral:
                cls._stay_neutral(name, value)
            elif name not in cls.model_fields:
                raise cls._unknown(name)
        return {name: value for name, value in given.items() if name in cls.model_fields}

    @classmethod
    def _stay_neutral(cls, name: str, value: Any) -> None:
        allowed = cls.neutral[name]
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed):
            only = f"can only be {' or '.join(map(json.dumps, allowed))}" if allowed else "is not supported"
            raise InvalidRequest(f"{name} {only}; leave it out", name)

    @classmethod
    def _unknown(cls, name: str) -> InvalidRequest:
        near = difflib.get_close_matches(name, [*cls.model_fields, *cls.neutral], 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return InvalidRequest(f"unknown field {name[:200]!r}{hint}", name)


def check_text(text: str) -> str:
    """The text, if it can be written in UTF-8; else raises InvalidRequest."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"the text has half of a surrogate pair at character {error.start}: it is not Unicode"
        raise InvalidRequest(message) from error
    return text


Text = Annotated[str, AfterValidator(check_text)]
