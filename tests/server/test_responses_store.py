"""Stored responses: what can be done with them, who knows of them, and how many there are."""

import time
from typing import Any

import httpx
import pytest

from actorllm import Engine
from actorllm.server.answers import HEAVY
from actorllm.server.app import create_app
from actorllm.server.responses.references import References
from actorllm.server.responses.store import NoSuchItem, NoSuchResponse, Store
from actorllm.server.settings import ServerSettings

from .build import CHAT, CONFIG, client_of, error, scripted, served
from .responses_joined import RESPONSES, join, named_events
from .test_responses import GREEDY, create, said, user

pytestmark = pytest.mark.anyio

ROOM: dict[str, Any] = {"max_model_len": 4096, "num_gpu_blocks_override": 512}


async def get(client: httpx.AsyncClient, path: str, **more: Any) -> dict[str, Any]:
    response = await client.get(f"{RESPONSES}/{path}", **more)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def missing(client: httpx.AsyncClient, response_id: str) -> bool:
    return (await client.get(f"{RESPONSES}/{response_id}")).status_code == 404


async def test_a_response_goes_on_from_an_earlier_one_without_its_instructions() -> None:
    async with served() as (_, client):
        first = await create(client, input="a", instructions="Be brief.", **GREEDY)
        second = await create(client, input="b", previous_response_id=first["id"], **GREEDY)
        await client.delete(f"{RESPONSES}/{first['id']}")
        third = await create(
            client, input="c", previous_response_id=second["id"], instructions="Be.", **GREEDY
        )
        turns = [user("a"), {"role": "assistant", "content": said(first)}, user("b")]
        turns += [{"role": "assistant", "content": said(second)}, user("c")]
        messages = [{"role": "system", "content": "Be."}, *turns]
        asked = {"messages": messages, "temperature": 0, "max_tokens": 12}
        chat = (await client.post(CHAT, json=asked)).json()
    assert second["previous_response_id"] == first["id"]
    assert said(third) == chat["choices"][0]["message"]["content"]
    assert third["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


async def test_a_response_is_found_as_it_was_told() -> None:
    async with served() as (_, client):
        whole = await create(client, input="hello", **GREEDY)
        streamed = await client.post(RESPONSES, json={"input": "hello", "stream": True, **GREEDY})
        response = join(named_events(streamed))
        assert await get(client, whole["id"]) == whole
        assert await get(client, response["id"], params={"stream": "false"}) == response


async def test_log_probabilities_are_stored_but_not_given_to_the_next_response() -> None:
    include = {"include": ["message.output_text.logprobs"]}
    async with served() as (_, client):
        first = await create(client, input="a", **GREEDY, **include)
        assert await get(client, first["id"]) == first
        assert first["output"][0]["content"][0]["logprobs"]
        second = await create(client, input="b", previous_response_id=first["id"], **GREEDY)
        items = (await get(client, f"{second['id']}/input_items", params={"order": "asc"}))["data"]
    assert items[1]["content"][0] == first["output"][0]["content"][0] | {"logprobs": []}


@pytest.mark.slow
async def test_a_response_that_is_written_on_a_thread_is_stored_too() -> None:
    include: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 20}
    body = {"ignore_eos": True, "temperature": 0, "max_output_tokens": 480}
    async with served() as (_, client):
        response = await create(client, input="a", **body, **include)
        assert len(response["output"][0]["content"][0]["logprobs"]) * 21 > HEAVY
        assert await get(client, response["id"]) == response


async def test_a_deleted_response_is_gone() -> None:
    async with served() as (_, client):
        response = await create(client, input="a", **GREEDY)
        deleted = await client.delete(f"{RESPONSES}/{response['id']}")
        again = error(await client.delete(f"{RESPONSES}/{response['id']}"))
        assert await missing(client, response["id"])
    assert deleted.json() == {"id": response["id"], "object": "response", "deleted": True}
    assert (again["code"], again["param"]) == (404, "response_id")


async def test_a_response_that_has_ended_cannot_be_cancelled() -> None:
    async with served() as (_, client):
        response = await create(client, input="a", **GREEDY)
        found = error(await client.post(f"{RESPONSES}/{response['id']}/cancel"))
        absent = error(await client.post(f"{RESPONSES}/resp_1/cancel"))
    assert (found["code"], found["param"]) == (400, "response_id")
    assert "has ended, and cannot be cancelled: only responses in the background can be" in found["message"]
    assert absent["code"] == 404


async def test_items_are_listed_in_pages_the_last_first() -> None:
    items = [user(text) | {"id": f"msg_{text}"} for text in "abcde"]
    async with served() as (_, client):
        response = await create(client, input=items, **GREEDY)
        path = f"{response['id']}/input_items"
        every = await get(client, path)
        first = await get(client, path, params={"limit": 2})
        second = await get(client, path, params={"limit": 3, "after": "msg_d"})
        forth = await get(client, path, params={"limit": 2, "order": "asc", "after": "msg_b"})
        end = await get(client, path, params={"after": "msg_a"})
    assert [item["id"] for item in every["data"]] == ["msg_e", "msg_d", "msg_c", "msg_b", "msg_a"]
    assert every["object"] == "list"
    pages = [
        (page["first_id"], page["last_id"], page["has_more"]) for page in (every, first, second, forth, end)
    ]
    assert pages == [
        ("msg_e", "msg_a", False),
        ("msg_e", "msg_d", True),
        ("msg_c", "msg_a", False),
        ("msg_c", "msg_d", True),
        (None, None, False),
    ]


@pytest.mark.parametrize(
    ("path", "param", "message"),
    [
        ("?stream=true", "stream", "the query parameter stream is not supported here"),
        ("?include=x", "include", "the query parameter include is not supported here"),
        ("/input_items?limit=0", "limit", "limit: Input should be greater than or equal to 1"),
        ("/input_items?order=up", "order", "order: Input should be 'asc' or 'desc'"),
        ("/input_items?after=msg_9", "after", "after: the response answers no item 'msg_9'"),
        ("/input_items?before=msg_9", "before", "the query parameter before is not supported here"),
    ],
)
async def test_a_question_that_cannot_be_answered(path: str, param: str, message: str) -> None:
    async with served() as (_, client):
        response = await create(client, input="a", **GREEDY)
        found = error(await client.get(f"{RESPONSES}/{response['id']}{path}"))
    assert (found["code"], found["param"]) == (400, param)
    assert message in found["message"]


async def test_stored_items_can_be_referred_to() -> None:
    async with served() as (_, client):
        first = await create(client, input=[user("a") | {"id": "msg_a"}], **GREEDY)
        answer = {"type": "item_reference", "id": first["output"][0]["id"]}
        referred = await create(client, input=[{"id": "msg_a"}, answer, user("b")], **GREEDY)
        written = [user("a"), {"role": "assistant", "content": said(first)}, user("b")]
        same = await create(client, input=written, **GREEDY)
        lost = {"input": [user("a"), {"type": "item_reference", "id": "msg_9"}]}
        found = error(await client.post(RESPONSES, json=lost))
    assert said(referred) == said(same)
    assert (found["code"], found["param"]) == (404, "input.1.id")
    assert found["message"] == "input.1.id: no stored response has an item 'msg_9'; send the item itself"


async def test_what_is_not_to_be_stored_is_not() -> None:
    async with served() as (_, client):
        response = await create(client, input="a", store=False, **GREEDY)
        found = error(
            await client.post(RESPONSES, json={"input": "b", "previous_response_id": response["id"]})
        )
    assert response["store"] is False
    assert (found["code"], found["param"]) == (404, "previous_response_id")
    assert "at most 1000 with store: true are kept, fewer if they have more than 64 MiB" in found["message"]


@pytest.mark.slow
async def test_a_call_that_was_cut_off_cannot_be_continued() -> None:
    tool = {"type": "function", "name": "f", "strict": True}
    body = {"tools": [tool], "tool_choice": "required", "max_output_tokens": 45}
    async with served() as (_, client):
        response = await create(client, input="a", **body)
        assert [(item["type"], item["status"]) for item in response["output"]] == [
            ("function_call", "incomplete")
        ]
        found = error(
            await client.post(RESPONSES, json={"input": "b", "previous_response_id": response["id"]})
        )
    assert (found["code"], found["param"]) == (400, "previous_response_id")
    assert "its call of 'f' are not the JSON text of an object, or were cut off" in found["message"]


async def test_a_call_whose_arguments_are_no_object_cannot_be_continued() -> None:
    script = '<tool_call>\n{"name": "f", "arguments": [1]}\n</tool_call>'
    tool = {"type": "function", "name": "f", "strict": False}
    async with served(scripted(script), **ROOM) as (_, client):
        response = await create(client, input="a", tools=[tool])
        (call,) = response["output"]
        body = {"input": "b", "previous_response_id": response["id"]}
        found = error(await client.post(RESPONSES, json=body))
    assert (call["type"], call["status"], call["arguments"]) == ("function_call", "incomplete", "[1]")
    assert (found["code"], found["param"]) == (400, "previous_response_id")


async def test_the_oldest_makes_room_and_a_tenant_knows_of_its_own_only() -> None:
    settings = ServerSettings(api_keys=("red=1", "blue=2"), max_responses=2)
    red, blue = ({"authorization": f"Bearer {key}"} for key in "12")
    async with Engine(CONFIG) as engine, client_of(create_app(engine, settings)) as client:
        client.headers.update(red)
        first, second = [await create(client, input="a", **GREEDY) for _ in range(2)]
        for path in ("", "/input_items", "/cancel"):
            method = "POST" if path == "/cancel" else "GET"
            url = f"{RESPONSES}/{second['id']}{path}"
            assert (await client.request(method, url, headers=blue)).status_code == 404
        assert (await client.delete(f"{RESPONSES}/{second['id']}", headers=blue)).status_code == 404
        for body in (
            {"input": "b", "previous_response_id": second["id"]},
            {"input": [{"type": "item_reference", "id": second["output"][0]["id"]}]},
        ):
            assert (await client.post(RESPONSES, json=body, headers=blue)).status_code == 404
            assert (await client.post(RESPONSES, json=body | GREEDY)).status_code == 200
            assert await missing(client, first["id"])


def response(number: int, text: str = "") -> dict[str, Any]:
    message = {"type": "message", "id": f"out_{number}", "content": [{"text": text, "logprobs": []}]}
    return {"id": f"resp_{number}", "output": [message]}


def given(number: int) -> list[dict[str, Any]]:
    return [{"type": "message", "id": f"in_{number}"}, {"type": "message", "id": "shared"}]


def test_the_bytes_of_a_store_are_bounded_and_counted() -> None:
    store = Store(100, most_bytes=20_000)
    sizes = []
    for number in range(5):
        store.keep("", response(number, "x" * 4000), given(number))
        sizes.append(store.find("", f"resp_{number}").size)
    assert sizes[0] > 5600
    assert store.statistics().num_responses == 3
    assert store.statistics().num_bytes == sum(sizes[-3:]) <= 20_000
    store.keep("", response(5, "x" * 19_000), given(5))
    assert store.statistics().num_responses == 3
    for lost in ("resp_0", "resp_1", "resp_5"):
        with pytest.raises(NoSuchResponse, match="at most 100 with"):
            store.find("", lost)
    for number in (2, 3, 4):
        store.delete("", f"resp_{number}")
    assert (store.statistics().num_responses, store.statistics().num_bytes) == (0, 0)


def kept(store: Store, tenant: str) -> list[int]:
    """The numbers of the tenant's responses."""
    found = []
    for number in range(10):
        try:
            store.find(tenant, f"resp_{number}")
        except NoSuchResponse:
            continue
        found.append(number)
    return found


def test_who_stores_most_makes_room_first() -> None:
    store = Store(4)
    store.keep("red", response(0), given(0))
    for number in range(1, 7):
        store.keep("blue", response(number), given(number))
    assert (kept(store, "red"), kept(store, "blue")) == ([0], [4, 5, 6])
    for number in (7, 8, 9):
        store.keep("red", response(number), given(number))
    assert (kept(store, "red"), kept(store, "blue")) == ([8, 9], [5, 6])
    store.keep("green", response(0), given(0))
    assert (kept(store, "green"), store.statistics().num_responses) == ([0], 4)


def test_who_stores_most_bytes_makes_room_first() -> None:
    store = Store(100, most_bytes=20_000)
    for number in range(3):
        store.keep("red", response(number), given(number))
    for number in range(3, 9):
        store.keep("blue", response(number, "x" * 4000), given(number))
    assert (kept(store, "red"), kept(store, "blue")) == ([0, 1, 2], [7, 8])
    store.keep("green", response(9, "x" * 10_000), given(9))
    assert (kept(store, "red"), kept(store, "blue"), kept(store, "green")) == ([0, 1, 2], [7, 8], [])
    store.keep("green", response(9, "x" * 5000), given(9))
    assert (kept(store, "red"), kept(store, "blue"), kept(store, "green")) == ([0, 1, 2], [8], [9])


def test_an_item_is_found_as_long_as_a_response_has_it() -> None:
    store = Store(2)
    for number in range(3):
        store.keep("me", response(number), given(number))
    find = References(store, "me", 1000).item
    assert find("in_1", "p") == given(1)[0]
    assert find("out_2", "p") == response(2)["output"][0]
    store.delete("me", "resp_1")
    assert find("shared", "p") == given(2)[1]
    for tenant, item in (("me", "in_0"), ("me", "out_1"), ("you", "shared")):
        with pytest.raises(NoSuchItem, match=f"p: no stored response has an item '{item}'"):
            References(store, tenant, 1000).item(item, "p")


def test_of_an_id_that_two_responses_have_the_last_is_meant_whatever_was_read_before() -> None:
    store = Store(2)
    for number in range(2):
        message = {"type": "message", "id": "shared", "role": str(number)}
        store.keep("me", response(number), [message])
    references = References(store, "me", 1000)
    references.item("out_0", "p")
    assert references.item("shared", "p")["role"] == "1"


def test_who_refers_to_an_item_often_shares_it_and_reads_its_response_once() -> None:
    store = Store(2)
    store.keep("me", response(0, "x" * 1_000_000), given(0))
    references = References(store, "me", 300_100_000)
    begun = time.process_time()
    found = [references.item("out_0", f"input.{place}.id") for place in range(300)]
    assert time.process_time() - begun < 0.15
    assert all(item is found[0] for item in found)
    assert references.item("in_0", "p") == given(0)[0]


@pytest.mark.slow
async def test_what_is_referred_to_is_bounded_as_a_body_is() -> None:
    async with served(settings=ServerSettings(max_body_bytes=3000), **ROOM) as (_, client):
        first = await create(client, input=[user("a" * 800) | {"id": "msg_a"}], **GREEDY)
        two = await create(client, input=[{"id": "msg_a"}] * 2, **GREEDY)
        found = error(await client.post(RESPONSES, json={"input": [{"id": "msg_a"}] * 4}))
    assert two["usage"]["input_tokens"] > first["usage"]["input_tokens"] + 800
    assert (found["code"], found["param"]) == (400, "input.3.id")
    assert found["message"] == (
        "input.3.id: with this one the items that are referred to have more than 3000 bytes; "
        "refer to less, or raise max_body_bytes"
    )
