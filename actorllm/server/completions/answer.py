"""The answers to plain prompts."""

from collections.abc import Sequence

from ...cores.renderer import PROMPT_TAIL
from ...cores.text import Decoder, Vocabulary
from ...engine.outputs import CompletionOutput, Gathered, RequestOutput
from ..answers import NO_ENDING, Answer, ending
from ..told import Echo, Json, Offsets
from .request import CompletionRequest


class CompletionAnswer(Answer):
    """The answers to plain prompts. With `echo` a choice is the prompt and its answer, with one text."""

    prefix = "cmpl"
    whole_kind = "text_completion"
    chunk_kind = "text_completion"

    _request: CompletionRequest

    def __init__(self, body: CompletionRequest, model: str, vocabulary: Vocabulary) -> None:
        super().__init__(body, model)
        self._vocabulary = vocabulary
        self._echoes: dict[int, Echo] = {}
        self._offsets: dict[int, Offsets] = {}

    def _answers(self, output: RequestOutput) -> Sequence[CompletionOutput]:
        if not self._request.only_prompt:
            return output.outputs
        return [
            CompletionOutput(answer.index, Gathered(), "", _without_tokens(answer.finish_reason), None)
            for answer in output.outputs
        ]

    def _choice(self, index: int, output: RequestOutput, answer: CompletionOutput) -> Json:
        logprobs = self._logprobs(index, output, answer)
        if self._request.echo and logprobs is not None:
            before = self._prompt_logprobs(index, output)
            logprobs = before and {name: before[name] + logprobs[name] for name in logprobs}
        return {
            "index": index,
            "text": self._before(index, output) + answer.text,
            "logprobs": logprobs,
            **ending(answer),
            **self._ids(answer),
            **self._prompt_ids(output),
            **self._told_prompt(output),
        }

    def _opening(self, index: int, output: RequestOutput, answer: CompletionOutput) -> list[Json]:
        """The prompt, for those who want it again."""
        if not (self._request.echo or self._request.return_token_ids):
            return []
        logprobs = self._prompt_logprobs(index, output) if self._request.echo else None
        choice = {"index": index, "text": self._before(index, output), "logprobs": logprobs, **NO_ENDING}
        return [self._chunk(choice | self._prompt_ids(output))]

    def _news(self, index: int, output: RequestOutput, answer: CompletionOutput) -> list[Json]:
        """New text; the last one also tells the end."""
        is_news = self._is_news(answer)
        if not is_news and answer.finish_reason is None:
            return []
        logprobs = self._logprobs(index, output, answer) if is_news and self._teller else None
        choice = {"index": index, "text": answer.delta, "logprobs": logprobs, **ending(answer)}
        return [self._chunk(choice | self._ids(answer))]

    def _logprobs(self, index: int, output: RequestOutput, answer: CompletionOutput) -> Json | None:
        if self._teller is None:
            return None
        if index not in self._offsets:
            tail = output.prompt_token_ids[-PROMPT_TAIL:]
            decoder = self._decoder(tail) if self._request.detokenize else None
            self._offsets[index] = Offsets(decoder, len(self._before(index, output)))
        return self._teller.completion(answer.logprobs or (), self._offsets[index].take(answer.token_ids))

    def _prompt_logprobs(self, index: int, output: RequestOutput) -> Json | None:
        """Of the prompt's tokens, the same as of an answer's."""
        told = output.prompt_logprobs
        if self._teller is None or told is None:
            return None
        first = output.prompt_token_ids[0]
        offsets = self._echo(index, output).offsets()
        return self._teller.prompt((first, self._vocabulary.pieces[first]), told, offsets)

    def _before(self, index: int, output: RequestOutput) -> str:
        """The text of the choice before its answer."""
        return self._echo(index, output).text if self._request.echo else ""

    def _echo(self, index: int, output: RequestOutput) -> Echo:
        place = index // self._request.n
        if place not in self._echoes:
            prompt = self._request.prompt[place]
            is_cut = self._request.truncate_prompt_tokens is not None
            text = prompt if isinstance(prompt, str) and not is_cut else None
            self._echoes[place] = Echo(self._decoder(()), output.prompt_token_ids, text)
        return self._echoes[place]

    def _decoder(self, prompt_tail: Sequence[int]) -> Decoder:
        return Decoder(
            self._vocabulary,
            prompt_tail,
            self._request.skip_special_tokens,
            spaces_between_special_tokens=self._request.spaces_between_special_tokens,
        )


def _without_tokens(reason: str | None) -> str | None:
    """Why an answer ended of which no token is shown: what its one token was is nothing to its reader."""
    return "length" if reason == "stop" else reason
