"""Answers as models write them, and what is to be made of them."""

from .told import Called, Thought, Told

Sample = tuple[str, Told]

HERMES: list[Sample] = [
    ("Hello.", ["Hello."]),
    ("", []),
    (" \n", [" \n"]),
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [Called("f", '{"a": 1}')]),
    (
        '<tool_call>{"name":"f","arguments":{"a":[1,{"b":null}]}}</tool_call>',
        [Called("f", '{"a":[1,{"b":null}]}')],
    ),
    (
        'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>\nDone.',
        ["I look.\n", Called("get_weather", '{"city": "Köln"}'), "\nDone."],
    ),
    (
        '\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n<tool_call>\n'
        '{"name": "get_weather", "arguments": {"a": "日本 😀"}}\n</tool_call>\n',
        [Called("f"), Called("get_weather", '{"a": "日本 😀"}')],
    ),
    (  # the arguments before the name
        '<tool_call>\n{"arguments": {"a": "}"}, "name": "f"}\n</tool_call>',
        [Called("f", '{"a": "}"}')],
    ),
    ('<tool_call>\n{"name": "f"}\n</tool_call>', [Called("f")]),
    (
        '<tool_call>{"id": "x", "parameters": {"a": 1}, "name": "f", "more": [1]}</tool_call>',
        [Called("f", '{"a": 1}')],
    ),
    (  # markers and escapes within strings
        '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>\\"}} <tool_call>\\\\"}}</tool_call>!',
        [Called("f", '{"a": "</tool_call>\\"}} <tool_call>\\\\"}'), "!"],
    ),
    (
        '<tool_call>{"n\\u0061me": "\\u0066", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [Called("f", '"{\\"a\\": 1}"')],
    ),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', [Called("f", "null")]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1},}</tool_call>', [Called("f", '{"a": 1}')]),
    # a tool that there is not
    (
        '<tool_call>\n{"name": "rm", "arguments": {"a": "<tool_call>"}}\n</tool_call>\n',
        ['<tool_call>\n{"name": "rm", "arguments": {"a": "<tool_call>"}}\n</tool_call>\n'],
    ),
    (
        '<tool_call>{"arguments": {}, "name": "F"}</tool_call><tool_call>{"name": "f"}</tool_call>',
        ['<tool_call>{"arguments": {}, "name": "F"}</tool_call>', Called("f")],
    ),
    # no call
    ("Use <tool_call> tags, a <tool_cal, <", ["Use <tool_call> tags, a <tool_cal, <"]),
    ("<tool_call>\nf(a=1)\n</tool_call> ok", ["<tool_call>\nf(a=1)\n</tool_call> ok"]),
    ("<tool_call>{}</tool_call>", ["<tool_call>{}</tool_call>"]),
    ('<tool_call>{"name": 1}</tool_call>', ['<tool_call>{"name": 1}</tool_call>']),
    ('<tool_call>{"name" "f"}</tool_call>', ['<tool_call>{"name" "f"}</tool_call>']),
    ('<tool_call>{name: "f"}</tool_call>', ['<tool_call>{name: "f"}</tool_call>']),
    (
        '<tool_call>{"arguments": {"a": 1]}, "name": "f"}</tool_call>',
        ['<tool_call>{"arguments": {"a": 1]}, "name": "f"}</tool_call>'],
    ),
    ('<tool_call>{"\\x": 1, "name": "f"}</tool_call>', ['<tool_call>{"\\x": 1, "name": "f"}</tool_call>']),
    (
        '<tool_call>\n<tool_call> {"name": "f", "arguments": {}}</tool_call>',
        ["<tool_call>\n", Called("f")],
    ),
    # broken
    ('<tool_call>{"name": "f", "arguments": {"a": 1}\n</tool_call>.', [Called("f", '{"a": 1}'), "."]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1\n</tool_call>.', [Called("f", '{"a": 1\n'), "."]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1]}}</tool_call> x', [Called("f", '{"a": 1]}}'), " x"]),
    ('<tool_call>{"name": "f", "arguments": {\'a\': \'<\'}}</tool_call>', [Called("f", "{'a': '<'}}")]),
    ('<tool_call>{"name": "f", "arguments": }</tool_call>', [Called("f", "}")]),
    ('<tool_call>{"name": "f" </tool_call>', [Called("f", "")]),
    (
        '<tool_call>{"name": "f", "arguments": {}} and more</tool_call>',
        [Called("f"), " and more</tool_call>"],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "f", "arguments": {}}',
        [Called("f"), Called("f")],
    ),
    # cut off
    ("<tool_call>", ["<tool_call>"]),
    ('<tool_call>{"name": "f', ['<tool_call>{"name": "f']),
    ('<tool_call>{"name": "f"', [Called("f", "")]),
    ('<tool_call>{"name": "f", "arguments": {"a": "xy\\', [Called("f", '{"a": "xy\\')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1', [Called("f", '{"a": 1')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}\n</tool', [Called("f", '{"a": 1}'), "\n</tool"]),
]

LLAMA: list[Sample] = [
    ("Hello {", ["Hello {"]),
    ('{"name": "f", "parameters": {"a": 1}}', [Called("f", '{"a": 1}')]),
    ('  {"name": "f", "arguments": {"a": "ü"}}\n', [Called("f", '{"a": "ü"}')]),
    ('<|python_tag|>{"name": "f", "parameters": {}}', [Called("f")]),
    ('\n<|python_tag|> {"type": "function", "name": "f", "parameters": {}}', [Called("f")]),
    (
        '{"name": "f", "parameters": {"a": ";"}}; {"name": "get_weather", "parameters": {"b": "}; {"}}',
        [Called("f", '{"a": ";"}'), Called("get_weather", '{"b": "}; {"}')],
    ),
    ('{"name": "f"};{"name": "f"} ; {"name": "f"}', [Called("f"), Called("f"), Called("f")]),
    ('{"name": "f"};', [Called("f")]),
    ('{"name": "f"}; \n', [Called("f")]),
    ('{"parameters": {"a": 1}, "name": "f"}', [Called("f", '{"a": 1}')]),
    ('{"name": "f", "parameters": {"a": "\\"\\\\"}}', [Called("f", '{"a": "\\"\\\\"}')]),
    ('{"name": "f", "parameters": {"a": "<|python_tag|>"}}', [Called("f", '{"a": "<|python_tag|>"}')]),
    # content beside it
    ('{"name": "f", "parameters": {}} is it.', [Called("f"), " is it."]),
    ('{"name": "f", "parameters": {}}; and', [Called("f"), "; and"]),
    ('{"name": "f"}}', [Called("f"), "}"]),
    ('So: {"name": "f", "parameters": {}}', ['So: {"name": "f", "parameters": {}}']),
    ("<|python_tag|>print(1)", ["<|python_tag|>print(1)"]),
    # no call
    ('{"name": "Bob", "age": 3}', ['{"name": "Bob", "age": 3}']),
    ('{"name": "Bob"}; {"name": "f"}', ['{"name": "Bob"}', Called("f")]),
    ('{"name": "f"}; {"name": "Bob"}; x', [Called("f"), '; {"name": "Bob"}; x']),
    ('{"title": "x", "name": "f"}', ['{"title": "x", "name": "f"}']),
    ('{"name": "f"}; {"parameters": {]', [Called("f"), '; {"parameters": {]']),
    ("{}", ["{}"]),
    ('[{"name": "f"}]', ['[{"name": "f"}]']),
    # broken and cut off
    ('{"name": "f", "parameters": {"a": 1]}; {"name": "f"}', [Called("f", '{"a": 1]}; {"name": "f"}')]),
    ('{"name": "f", "parameters": <|eom', [Called("f", "<|eom")]),
    ('{"name": "f", "parameters": {"a": [1, 2', [Called("f", '{"a": [1, 2')]),
    ('{"name": "f", "parameters": {"a": 1}', [Called("f", '{"a": 1}')]),
    ('{"name": ', ['{"name": ']),
    ("<|python", ["<|python"]),
]

MISTRAL: list[Sample] = [
    ("Hello [TOOL] [", ["Hello [TOOL] ["]),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', [Called("f", '{"a": 1}')]),
    ('[TOOL_CALLS][{"name":"f","arguments":{"a":"]"}}]', [Called("f", '{"a":"]"}')]),
    (
        '[TOOL_CALLS] [{"name": "f", "arguments": {}}, {"arguments": {"b": [[]]}, "name": "get_weather"}] ',
        [Called("f"), Called("get_weather", '{"b": [[]]}')],
    ),
    ('Yes.[TOOL_CALLS] [ {"name": "f"} , ] ok', ["Yes.", Called("f"), " ok"]),
    ('[TOOL_CALLS][{"name": "f"}, {"name": "f"}\n]', [Called("f"), Called("f")]),
    ('[TOOL_CALLS]f[ARGS]{"a": "é"}', [Called("f", '{"a": "é"}')]),
    (
        '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]get_weather[ARGS]{"b": "[TOOL_CALLS]f[ARGS]{}"}',
        [Called("f", '{"a": 1}'), Called("get_weather", '{"b": "[TOOL_CALLS]f[ARGS]{}"}')],
    ),
    (
        'Hm. [TOOL_CALLS]f{"a": 1} \n[TOOL_CALLS]naïve[ARGS] {}',
        ["Hm. ", Called("f", '{"a": 1}'), Called("naïve")],
    ),
    ('[TOOL_CALLS] f[ARGS]{"a": "\\"}{"}, and', [Called("f", '{"a": "\\"}{"}'), ", and"]),
    ('[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS] [{"name": "f"}]', [Called("f"), Called("f")]),
    # a tool that there is not
    (
        '[TOOL_CALLS] [{"name": "rm", "arguments": {}}] .',
        ['[TOOL_CALLS] [{"name": "rm", "arguments": {}}] .'],
    ),
    (
        '[TOOL_CALLS] [{"name": "rm"}, {"name": "f"}, {"name": "rm", "arguments": {"a": "[TOOL_CALLS]f{}"}}]',
        [
            '[TOOL_CALLS] [{"name": "rm"}',
            Called("f"),
            ', {"name": "rm", "arguments": {"a": "[TOOL_CALLS]f{}"}}]',
        ],
    ),
    (
        '[TOOL_CALLS]rm[ARGS]{"a": "[TOOL_CALLS]f{}"}[TOOL_CALLS]f{}',
        ['[TOOL_CALLS]rm[ARGS]{"a": "[TOOL_CALLS]f{}"}', Called("f")],
    ),
    # no call
    ("[TOOL_CALLS] [1, 2]", ["[TOOL_CALLS] [1, 2]"]),
    ("[TOOL_CALLS][] x", ["[TOOL_CALLS][] x"]),
    ("[TOOL_CALLS]f (x)", ["[TOOL_CALLS]f (x)"]),
    ("[TOOL_CALLS]{}", ["[TOOL_CALLS]{}"]),
    ("[TOOL_CALLS][ARGS]{}", ["[TOOL_CALLS][ARGS]{}"]),
    ('[TOOL_CALLS] [{"name": "f"}, x]', [Called("f"), ", x]"]),
    ('[TOOL_CALLS] [{"name": "f"} x]', [Called("f"), " x]"]),
    # broken
    (
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": (1)}}][TOOL_CALLS]f{}',
        [Called("f", '{"a": (1)}}]'), Called("f")],
    ),
    ("[TOOL_CALLS]f[ARGS][TOOL_CALLS]f[ARGS]{}", [Called("f", ""), Called("f")]),
    ("[TOOL_CALLS]f[ARGS]{'a': 1} b", [Called("f", "{'a': 1} b")]),
    ("[TOOL_CALLS]rm[ARGS]{'a': 1} b", ["[TOOL_CALLS]rm[ARGS]{'a': 1} b"]),
    # cut off
    ("[TOOL_CALLS]", ["[TOOL_CALLS]"]),
    ("x [TOOL_CAL", ["x [TOOL_CAL"]),
    ("[TOOL_CALLS]f", ["[TOOL_CALLS]f"]),
    ("[TOOL_CALLS]f[ARG", ["[TOOL_CALLS]f[ARG"]),
    ("[TOOL_CALLS]f[ARGS]", [Called("f", "")]),
    ('[TOOL_CALLS]f[ARGS]{"a', [Called("f", '{"a')]),
    ('[TOOL_CALLS] [{"name": "f"}, ', [Called("f")]),
    ('[TOOL_CALLS] [{"name": "f"', [Called("f", "")]),
]

PYTHONIC: list[Sample] = [
    ("Hello f(a=1)", ["Hello f(a=1)"]),
    ("[f()]", [Called("f")]),
    ('[f(a=1, b="x"), get_weather()]', [Called("f", '{"a": 1, "b": "x"}'), Called("get_weather")]),
    ("<|python_start|>[f(a=1)]<|python_end|>", [Called("f", '{"a": 1}')]),
    ("\n<|python_start|> [ f ( a = 1 , ) , ] <|python_end|>\n", [Called("f", '{"a": 1}')]),
    (
        "[f(a=True, b=False, c=None, d=true, e=null)]",
        [Called("f", '{"a": true, "b": false, "c": null, "d": true, "e": null}')],
    ),
    (
        "[f(a=-1, b=1.5e3, c=.5, d=-2., e=0, g=1E-2)]",
        [Called("f", '{"a": -1, "b": 1.5e3, "c": 0.5, "d": -2.0, "e": 0, "g": 1E-2}')],
    ),
    (
        "[f(a=[1, [2, []], {}], b={'k': {\"l\": [None]}, 'm': 'n',})]",
        [Called("f", '{"a": [1, [2, []], {}], "b": {"k": {"l": [null]}, "m": "n"}}')],
    ),
    (  # brackets, quotes and markers within strings
        "[f(a='it\\'s \"<|python_end|>\" )]', b=\"d'or\")]",
        [Called("f", '{"a": "it\'s \\"<|python_end|>\\" )]", "b": "d\'or"}')],
    ),
    (r"[f(a='\n\t\\\x41\u00e9\U0001F600\101\d')]", [Called("f", r'{"a": "\n\t\\Aé😀A\\d"}')]),
    (r"[f(a='\ud83d\ude00', b='\ud800é')]", [Called("f", r'{"a": "\ud83d\ude00", "b": "\ud800\u00e9"}')]),
    ("[f(a='日\n本', naïve=1)]", [Called("f", '{"a": "日\\n本", "naïve": 1}')]),
    ("[f(a=123456789012345678901234567890)]", [Called("f", '{"a": 123456789012345678901234567890}')]),
    # content beside it
    ("[f()] and", [Called("f"), " and"]),
    ("<|python_start|>[f()] and<|python_end|>", [Called("f"), " and<|python_end|>"]),
    ("So [f()]", ["So [f()]"]),
    ("[f() f()]", [Called("f"), " f()]"]),
    # a tool that there is not
    ("[rm(a=1)]", ["[rm(a=1)]"]),
    ("[rm(a=']'), f(), rm()] .", ["[rm(a=']')", Called("f"), ", rm()] ."]),
    ("<|python_start|>[rm()]<|python_end|>", ["<|python_start|>[rm()]<|python_end|>"]),
    # no call
    ("[f(x)]", ["[f(x)]"]),
    ("[f(1)]", ["[f(1)]"]),
    ("[f(a=g())]", ["[f(a=g())]"]),
    ("[f(), f(a=1+1)]", [Called("f"), ", f(a=1+1)]"]),
    ("[f(a=(1, 2))]", ["[f(a=(1, 2))]"]),
    ("[f(a={1: 2})]", ["[f(a={1: 2})]"]),
    ("[f(a=1, a=2)]", ["[f(a=1, a=2)]"]),
    ("[f(a=007)]", ["[f(a=007)]"]),
    ("[f(a='b' 'c')]", ["[f(a='b' 'c')]"]),
    (r"[f(a='\x4')]", [r"[f(a='\x4')]"]),
    (r"[f(a='\U00110000')]", [r"[f(a='\U00110000')]"]),
    (r"[f(a='\Uffffffff')]", [r"[f(a='\Uffffffff')]"]),
    ("[f(a=[,])]", ["[f(a=[,])]"]),
    ("[f(a=[1}])]", ["[f(a=[1}])]"]),
    ("[1, 2]", ["[1, 2]"]),
    ("[]", ["[]"]),
    ("f()", ["f()"]),
    ("{}", ["{}"]),
    ("[f(**{'a': 1})]", ["[f(**{'a': 1})]"]),
    # cut off
    ("[f(a=1", ["[f(a=1"]),
    ("[f(a='x\\", ["[f(a='x\\"]),
    ("[f(a=1)", [Called("f", '{"a": 1}')]),
    ("[f(a=1), f(", [Called("f", '{"a": 1}'), ", f("]),
    ("<|python_start|>[f()]<|pyth", [Called("f"), "<|pyth"]),
]

REASONING: list[Sample] = [
    ("Hello.", ["Hello."]),
    ("<think>Hm.</think>Yes.", [Thought("Hm."), "Yes."]),
    (" \n<think>\nHm.\n</think>\n\nYes.\n", [Thought("\nHm.\n"), "Yes.\n"]),
    ("<think></think> \n ", []),
    ("<think>never ends <tool_call> </think", [Thought("never ends <tool_call> </think")]),
    ("<thin", ["<thin"]),
    (" <thing>", [" <thing>"]),
    ("So <think>a</think>", ["So <think>a</think>"]),
    ("</think>a", ["</think>a"]),
    ("<think>a</think><think>b</think>", [Thought("a"), "<think>b</think>"]),
    ("<think>a<think>b</think>c", [Thought("a<think>b"), "c"]),
    ("<think>a</thin</think>b", [Thought("a</thin"), "b"]),
    ("<think>é😀<</think>ü", [Thought("é😀<"), "ü"]),
    (
        '<think>a</think>\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        [Thought("a"), Called("f")],
    ),
    (
        '<think><tool_call>{"name": "f"}</tool_call></think>b<tool_call>{"name": "f"}</tool_call>',
        [Thought('<tool_call>{"name": "f"}</tool_call>'), "b", Called("f")],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "<think></think>"}}</tool_call>',
        [Called("f", '{"a": "<think></think>"}')],
    ),
    ('\n<tool_call>{"name": "f"}</tool_call>', [Called("f")]),
    ("\n\n", ["\n\n"]),
    ("<think>", []),
    ("<think>a", [Thought("a")]),
]

IN_REASONING: list[Sample] = [
    ("Hm.</think>\nYes.", [Thought("Hm."), "Yes."]),
    ("\nHm.", [Thought("\nHm.")]),
    ("\n<think>\nHm.</think>Yes.", [Thought("\nHm."), "Yes."]),
    (" \n", [Thought(" \n")]),
    ("</think>", []),
    ("<think", [Thought("<think")]),
    ('a</think>\n<tool_call>{"name": "f"}</tool_call>', [Thought("a"), Called("f")]),
]
