"""The responses that clients can come back to, in memory: so many, and of so many bytes in all."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from ..sse import dumps
from ..told import Json

MAX_BYTES = 64 << 20
"""Bytes of all stored responses, as JSON, with what they were given to answer."""

ENTRY_BYTES = 1000
"""What is counted for a response besides."""

ITEM_BYTES = 200
"""What is counted for the id of an item, by which it can be referred to."""


class NoSuchResponse(HTTPException):
    """A response that is not stored, or not for this tenant; `param` is what names it."""

    def __init__(self, response_id: str, most: int, param: str) -> None:
        text = (
            f"there is no response {response_id[:100]!r} here; at most {most} with store: true are kept, "
            f"fewer if they have more than {MAX_BYTES >> 20} MiB, until the server ends"
        )
        super().__init__(404, text)
        self.param = param


class NoSuchItem(HTTPException):
    """An item that belongs to no stored response of this tenant; `param` is what refers to it."""

    def __init__(self, item_id: str, param: str) -> None:
        text = f"{param}: no stored response has an item {item_id[:100]!r}; send the item itself"
        super().__init__(404, text)
        self.param = param


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One response as JSON, the items that it answers (a list, as JSON), and the ids of all items.

    It equals only itself, so that it can be a key without its bytes being hashed.
    """

    response: bytes
    given: bytes
    ids: tuple[str, ...]

    @property
    def size(self) -> int:
        """The bytes that are counted for it."""
        return ENTRY_BYTES + len(self.response) + len(self.given) + ITEM_BYTES * len(self.ids)

    def items(self) -> list[Json]:
        """What it answers."""
        items: list[Json] = json.loads(self.given)
        return items

    def turns(self) -> list[Json]:
        """The same and the answer, without log-probabilities."""
        return [*self.items(), *map(_plain, json.loads(self.response)["output"])]


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What is stored now."""

    num_responses: int
    num_bytes: int


class Store:
    """Responses by tenant and id.

    When there is no room for one more, the tenant that would hold most (of the responses, or of the bytes,
    whichever is short) loses its oldest: nobody pushes out those who hold less. A response is not kept if
    there would be no room even if no other tenant held more than it has. `keep` may be called on any thread.
    """

    def __init__(self, most: int, most_bytes: int = MAX_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._shelves: dict[str, _Shelf] = {}

    def keep(self, tenant: str, response: Json, given: Sequence[Json]) -> None:
        """Store a response that has ended, with all the items that it answers."""
        ids = tuple(item["id"] for item in [*given, *response["output"]])
        stored = Stored(dumps(response), dumps(given), ids)
        with self._lock:
            if self._least(tenant, stored.size) > self._most_bytes:
                return
            self._make_room(tenant, stored.size)
            self._shelves.setdefault(tenant, _Shelf()).add(response["id"], stored)

    def find(self, tenant: str, response_id: str, param: str = "response_id") -> Stored:
        """A response of the tenant. Raises NoSuchResponse."""
        with self._lock:
            return self._find(tenant, response_id, param)

    def holder(self, tenant: str, item_id: str, param: str) -> Stored:
        """The last response of the tenant that has this item. Raises NoSuchItem."""
        with self._lock:
            shelf = self._shelves.get(tenant)
            if shelf is None or item_id not in shelf.owners:
                raise NoSuchItem(item_id, param)
            return shelf.responses[shelf.owners[item_id]]

    def delete(self, tenant: str, response_id: str) -> None:
        """Forget a response; those that go on from it keep what it said. Raises NoSuchResponse."""
        with self._lock:
            self._find(tenant, response_id, "response_id")
            self._drop(tenant, response_id)

    def statistics(self) -> StoreStatistics:
        """How much is stored."""
        with self._lock:
            return self._statistics()

    def _statistics(self) -> StoreStatistics:
        shelves = self._shelves.values()
        return StoreStatistics(
            sum(len(shelf.responses) for shelf in shelves), sum(shelf.num_bytes for shelf in shelves)
        )

    def _find(self, tenant: str, response_id: str, param: str) -> Stored:
        shelf = self._shelves.get(tenant)
        if shelf is None or response_id not in shelf.responses:
            raise NoSuchResponse(response_id, self._most, param)
        return shelf.responses[response_id]

    def _least(self, tenant: str, size: int) -> int:
        """Bytes of all, if the tenant had only one of this size, and nobody else more than that."""
        others = (shelf.num_bytes for name, shelf in self._shelves.items() if name != tenant)
        return size + sum(min(held, size) for held in others)

    def _make_room(self, tenant: str, size: int) -> None:
        """Drop responses until the tenant can have one more, of this size. It counts as if it had it."""
        while self._shelves:
            now = self._statistics()
            if now.num_responses >= self._most:
                held = {name: len(shelf.responses) for name, shelf in self._shelves.items()}
                more = 1
            elif now.num_bytes + size > self._most_bytes:
                held = {name: shelf.num_bytes for name, shelf in self._shelves.items()}
                more = size
            else:
                return
            most = max(held, key=lambda name: held[name] + more * (name == tenant))
            self._drop(most, next(iter(self._shelves[most].responses)))

    def _drop(self, tenant: str, response_id: str) -> None:
        shelf = self._shelves[tenant]
        shelf.remove(response_id)
        if not shelf.responses:
            del self._shelves[tenant]


class _Shelf:
    """What one tenant has: its responses, the oldest first, and which of them has an item last."""

    def __init__(self) -> None:
        self.responses: dict[str, Stored] = {}
        self.owners: dict[str, str] = {}
        self.num_bytes = 0

    def add(self, response_id: str, stored: Stored) -> None:
        self.responses[response_id] = stored
        self.num_bytes += stored.size
        self.owners.update((item_id, response_id) for item_id in stored.ids)

    def remove(self, response_id: str) -> None:
        stored = self.responses.pop(response_id)
        self.num_bytes -= stored.size
        for item_id in stored.ids:
            if self.owners.get(item_id) == response_id:
                del self.owners[item_id]


def _plain(item: Json) -> Json:
    """An item of an answer as it is given to the next one."""
    parts: list[dict[str, Any]] = item.get("content", [])
    if not any(part.get("logprobs") for part in parts):
        return item
    return item | {"content": [part | {"logprobs": []} for part in parts]}
