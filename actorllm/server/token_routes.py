"""Texts and conversations as tokens, and back, as vLLM's /tokenize and /detokenize have it; the version."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import Field, model_validator

from ..engine.prompts import Template
from ..errors import InvalidRequest
from .asking import Asking, json_response
from .bodies.fields import Body, Neutral, Text
from .bodies.requests import renaming
from .chat.conversation import Messages, Tools


class TokenizeRequest(Body):
    """A prompt, or a conversation, to be made tokens."""

    neutral: ClassVar[Neutral] = {"chat_template": (), "mm_processor_kwargs": ({},), "media_io_kwargs": ({},)}

    model: str | None = None
    prompt: Text | None = None
    messages: Messages = Field([])
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    tools: Tools = Field([])
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    _OF_CHATS: ClassVar[tuple[str, ...]] = (
        "tools",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "TokenizeRequest":
        if (self.prompt is None) is not bool(self.messages):
            raise InvalidRequest("give either a prompt or messages", "prompt")
        for name in self._OF_CHATS:
            if not self.messages and name in self.model_fields_set:
                raise InvalidRequest(f"{name} needs messages", name)
        return self

    @property
    def template(self) -> Template:
        """What the chat template is to know besides the messages."""
        return Template(
            tools=[tool.for_template() for tool in self.tools],
            chat_template_kwargs=self.chat_template_kwargs,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            add_special_tokens=bool(self.add_special_tokens),
        )


class DetokenizeRequest(Body):
    """Tokens to be made text."""

    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]


def open_token_router(asking: Asking) -> APIRouter:
    """/tokenize and /detokenize."""
    routes = TokenRoutes(asking)
    router = APIRouter(redirect_slashes=False)
    router.add_api_route("/tokenize", routes.tokenize, methods=["POST"], response_model=None)
    router.add_api_route("/detokenize", routes.detokenize, methods=["POST"], response_model=None)
    return router


def version_routes() -> APIRouter:
    """/version, which needs no engine."""

    async def tell() -> Response:
        """The version of this package."""
        return json_response({"version": version("actorllm")})

    router = APIRouter(redirect_slashes=False)
    router.add_api_route("/version", tell, methods=["GET"], response_model=None)
    return router


class TokenRoutes:
    """The functions behind the paths."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def tokenize(self, body: TokenizeRequest) -> Response:
        """The tokens of a prompt, as it would be computed."""
        self._asking.served(body.model)
        engine = self._asking.engine
        if body.messages:
            messages = [message.for_template() for message in body.messages]
            with renaming(lambda param: "messages" if param == "prompt" else param):
                tokens = await engine.tokenize_chat(messages, **body.template)
        else:
            assert body.prompt is not None
            special = True if body.add_special_tokens is None else body.add_special_tokens
            tokens = await engine.tokenize(body.prompt, add_special_tokens=special)
        names = self._names(tokens) if body.return_token_strs else None
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": engine.max_model_len,
                "tokens": tokens,
                "token_strs": names,
            }
        )

    def _names(self, tokens: Sequence[int]) -> list[str]:
        pieces = self._asking.engine.tokenizer.pieces
        return [pieces[token].decode(errors="replace") for token in tokens]

    async def detokenize(self, body: DetokenizeRequest) -> Response:
        """The text of tokens."""
        self._asking.served(body.model)
        most = self._asking.engine.max_model_len
        if len(body.tokens) > most:
            raise InvalidRequest(
                f"tokens has {len(body.tokens)} ids; at most {most} (max_model_len)", "tokens"
            )
        return json_response({"prompt": await self._asking.engine.detokenize(body.tokens)})
