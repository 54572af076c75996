"""Which format a chat template speaks, and formats by name."""

import pytest

from actorllm.errors import ConfigError
from actorllm.parsing import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ToolFormat,
    reasoning_format,
    reasoning_format_for,
    tool_format,
    tool_format_for,
)

# Short templates in the manner of real ones, with their markers: the tool format and the reasoning format.
TEMPLATES = {
    "qwen2.5": (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for c in m.tool_calls %}<tool_call>\n"
        '{"name": "{{ c.name }}", "arguments": {{ c.arguments }}}\n</tool_call>{% endfor %}',
        "hermes",
        None,
    ),
    "qwen3": (
        "{{ content.split('</think>')[-1] }}{{ '<tool_call>\\n' }}{{ '\\n</tool_call>' }}<think>\n\n</think>",
        "hermes",
        "think",
    ),
    "llama3.1": (
        "<|start_header_id|>assistant<|end_header_id|>\n\n{% if builtin %}<|python_tag|>{{ call }}{% else %}"
        '{"name": "{{ name }}", "parameters": {{ arguments | tojson }}}{% endif %}<|eot_id|>',
        "llama3_json",
        None,
    ),
    "llama3.2": (
        "<|start_header_id|>{{ role }}<|end_header_id|>{{ '{\"name\": \"' + name + '\", ' }}"
        "{{ '\"parameters\": ' }}{{ arguments | tojson }}",
        "llama3_json",
        None,
    ),
    "llama3.2 pythonic": (
        "<|start_header_id|>system<|end_header_id|>Write [func_name1(a=1), func_name2()] to call",
        "pythonic",
        None,
    ),
    "llama4": (
        "<|header_start|>assistant<|header_end|>\n\n<|python_start|>[{{ call }}]<|python_end|>",
        "pythonic",
        None,
    ),
    "mistral v3": ("[INST]{{ m.content }}[/INST][TOOL_CALLS] [{{ calls }}]</s>", "mistral", None),
    "mistral v13": ("[TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}", "mistral_args", None),
    "magistral": (
        "[THINK]{{ t }}[/THINK][TOOL_CALLS]{{ name }}[ARGS]{{ arguments }}",
        "mistral_args",
        "mistral",
    ),
    "deepseek r1": ("{% set content = content.split('</think>')[-1] %}Assistant: <think>\n", None, "think"),
    "seed": ("<seed:think>{{ t }}</seed:think>", None, "seed_oss"),
    # calls between the same markers in another format, and none
    "qwen3 coder": (
        "<tool_call>\n<function={{ name }}>\n<parameter=a>\n</function>\n</tool_call>",
        None,
        None,
    ),
    "glm 4.5": (
        "<tool_call>{{ name }}\n<arg_key>{{ k }}</arg_key></tool_call><think></think>",
        None,
        "think",
    ),
    "llama2": ("<s>[INST] {{ m.content }} [/INST]", None, None),
    "smollm2": ("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>", None, None),
    "another with parameters": ('{"parameters": {{ tool.parameters }}}', None, None),
    "empty": ("", None, None),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_tells_its_formats(name: str) -> None:
    template, tools, reasoning = TEMPLATES[name]
    assert tool_format_for(template) == (None if tools is None else TOOL_FORMATS[tools])
    assert reasoning_format_for(template) == (None if reasoning is None else REASONING_FORMATS[reasoning])


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("qwen", "hermes"),
        ("llama4_json", "llama3_json"),
        ("llama4_pythonic", "pythonic"),
        ("mistral", "mistral"),
    ],
)
def test_a_tool_format_by_name(name: str, same: str) -> None:
    found = tool_format(name)
    assert found.name == same
    assert found is TOOL_FORMATS[name]


@pytest.mark.parametrize(("name", "end"), [("deepseek_r1", "</think>"), ("mistral", "[/THINK]")])
def test_a_reasoning_format_by_name(name: str, end: str) -> None:
    assert reasoning_format(name).end == end


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as refusal:
        tool_format("openai")
    known = "hermes, qwen, qwen2, qwen3, llama3_json, llama4_json, mistral, mistral_args, pythonic"
    assert str(refusal.value) == f"there is no tool format 'openai'; known are {known}, llama4_pythonic"
    with pytest.raises(ConfigError, match="there is no reasoning format 'gpt'; known are think, deepseek"):
        reasoning_format("gpt")


def test_markers_that_may_be_special_are_markers() -> None:
    for form in TOOL_FORMATS.values():
        assert set(form.special) <= {form.begin, form.end, form.infix}
        assert form.keeps_special
    assert not ToolFormat("plain", "CALL:", "", True, "object").keeps_special
