"""The stored items that a request refers to."""

from ...errors import InvalidRequest
from ..sse import dumps
from ..told import Json
from .store import Store, Stored


class References:
    """Finds the items of one request: each response is read once, and who refers to an item twice shares it.

    What all references say together is bounded as a body is: a reference is short, whatever it stands for.
    """

    def __init__(self, store: Store, tenant: str, most_bytes: int) -> None:
        self._store = store
        self._tenant = tenant
        self._most_bytes = most_bytes
        self._bytes = 0
        self._read: dict[Stored, dict[str, Json]] = {}
        self._found: dict[str, tuple[Json, int]] = {}

    def item(self, item_id: str, param: str) -> Json:
        """What `param` refers to, not to be changed. Raises NoSuchItem, and InvalidRequest for too much."""
        if item_id not in self._found:
            item = self._items(self._store.holder(self._tenant, item_id, param))[item_id]
            self._found[item_id] = item, len(dumps(item))
        item, size = self._found[item_id]
        self._bytes += size
        if self._bytes > self._most_bytes:
            text = (
                f"{param}: with this one the items that are referred to have more than {self._most_bytes} "
                "bytes; refer to less, or raise max_body_bytes"
            )
            raise InvalidRequest(text, param)
        return item

    def _items(self, stored: Stored) -> dict[str, Json]:
        """All items of a response, the last of each id."""
        if stored not in self._read:
            self._read[stored] = {item["id"]: item for item in stored.turns()}
        return self._read[stored]
