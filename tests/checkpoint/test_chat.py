import json
from datetime import datetime
from typing import Any

import pytest

from actorllm.checkpoint import ChatTemplate
from actorllm.errors import InvalidRequest

USER: dict[str, Any] = {"role": "user", "content": "hi"}


def render(template: str, *messages: dict[str, Any], **variables: Any) -> str:
    return ChatTemplate({"default": template}, {"bos_token": "<s>"}).render(messages or [USER], **variables)


def test_messages_special_tokens_and_the_generation_prompt() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert render(template) == "<s>[user]hi[assistant]"
    assert render(template, USER, USER, add_generation_prompt=False) == "<s>[user]hi[user]hi"


def test_blocks_swallow_their_line_and_its_indentation() -> None:
    template = "a\n  {% if true %}\n  b\n  {% endif %}\nc"
    assert render(template) == "a\n  b\nc"


def test_loop_controls() -> None:
    template = "{% for n in [1, 2, 3, 4] %}{% if n == 2 %}{% continue %}{% endif %}"
    template += "{% if n == 4 %}{% break %}{% endif %}{{ n }}{% endfor %}"
    assert render(template) == "13"


def test_generation_blocks_render_their_body() -> None:
    assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abhic"


def test_json_without_html_escapes() -> None:
    message = {"role": "user", "content": {"b": "<ü'>", "a": [1, None, True]}}
    assert render("{{ messages[0].content | tojson }}", message) == '{"b": "<ü\'>", "a": [1, null, true]}'
    spread = render("{{ messages[0].content | tojson(indent=2) }}", {"role": "user", "content": {"a": 1}})
    assert spread == '{\n  "a": 1\n}'


def test_the_date_of_today() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    rendered = render("{{ strftime_now('%Y-%m-%d') }}")
    assert rendered in (before, datetime.now().strftime("%Y-%m-%d"))


def test_tools_and_variables_reach_the_template() -> None:
    template = "{{ tools is none }}{{ documents is none }}{{ thinking is defined }}"
    assert render(template) == "TrueTrueFalse"
    assert render(template, tools=[{"name": "f"}], thinking=1) == "FalseTrueTrue"


def test_a_template_for_tools_is_preferred_with_tools() -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "with {{ tools | length }}"}, {})
    assert chat.render([USER]) == "plain"
    assert chat.render([USER], tools=[]) == "plain"
    assert chat.render([USER], tools=[{}, {}]) == "with 2"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "the chat template refused: roles must alternate"),
        ("{{ messages[0]['content'] + 1 }}", "the chat template refused"),
        ("{% for %}", "the chat template refused"),
        ("{{ messages[0].append(1) }}", "the chat template refused"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "the chat template refused"),
    ],
)
def test_errors_are_the_requests(template: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        render(template)
    assert caught.value.param == "messages"


def test_a_template_cannot_change_the_messages() -> None:
    messages = [dict(USER)]
    chat = ChatTemplate({"default": "{% set _ = messages[0].update({'role': 'root'}) %}"}, {})
    with pytest.raises(InvalidRequest):
        chat.render(messages)
    assert messages == [USER]


def test_without_a_template_the_error_says_so() -> None:
    with pytest.raises(InvalidRequest, match="this model has no chat template"):
        ChatTemplate({}, {}).render([USER])
    with pytest.raises(InvalidRequest, match="this model has no chat template"):
        ChatTemplate({"rag": "x"}, {}).render([USER])


PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "How is it?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"in": "Köln"}}}],
    },
    {"role": "tool", "content": "rain", "tool_call_id": "1"},
]


def test_a_template_that_knows_no_tools_is_told_of_them_in_messages() -> None:
    first, _, last = render(PLAIN, *CALLED, tools=[WEATHER]).partition("[user]")
    assert first.startswith("[system]")
    assert json.dumps(WEATHER) in first
    assert last == (
        'How is it?[assistant]<tool_call>\n{"name": "weather", "arguments": {"in": "Köln"}}\n</tool_call>'
        "[user]<tool_response>\nrain\n</tool_response>"
    )
    system = {"role": "system", "content": "Be kind."}
    assert render(PLAIN, system, USER, tools=[WEATHER]).startswith("[system]Be kind.\n\nYou can call")


def test_a_template_that_knows_tools_gets_the_messages_as_they_are() -> None:
    known = PLAIN + "{{ tools }}{{ messages[1].tool_calls[0].function.arguments['in'] }}"
    assert render(known, *CALLED) == "[user]How is it?[assistant]None[tool]rainNoneKöln"


@pytest.mark.parametrize(
    ("template", "ending"),
    [
        (PLAIN + "<end>", "[user]hi[assistant] Well "),
        ("{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}<end>", "[assistant]Well"),
    ],
)
def test_a_final_message_can_be_continued(template: str, ending: str) -> None:
    last = {"role": "assistant", "content": " Well "}
    assert render(template, USER, last, continue_final_message=True).endswith(ending)


@pytest.mark.parametrize("content", ["", " ", None])
def test_what_has_no_text_cannot_be_continued(content: str | None) -> None:
    last = {"role": "assistant", "content": content}
    with pytest.raises(InvalidRequest, match="no text in the prompt") as caught:
        render(PLAIN, USER, last, continue_final_message=True)
    assert caught.value.param == "continue_final_message"


@pytest.mark.parametrize("content", ["<", "|", "end", "<|im_end|", "i", "m", "<|im_end|>", "x"])
def test_a_final_message_that_looks_like_a_marker_is_continued(content: str) -> None:
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    last = {"role": "assistant", "content": content}
    text = render(chatml, USER, last, continue_final_message=True)
    assert text == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{content}"
