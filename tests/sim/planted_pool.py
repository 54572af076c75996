"""Bugs to plant in the pool, and in what the workers make of its blocks."""

from actorllm.cores import kvpool, prefix
from actorllm.cores.batch import Batch
from actorllm.cores.blocks import Blocks
from actorllm.cores.kvpool import KVPool
from actorllm.cores.prefix import Groups

from .planted import Bug

BLOCKS = (
    Bug(
        "a held block is handed out",
        "calm",
        Blocks,
        "_allocate_one",
        {"self._empty.pop()": "self._references.index(1) if 1 in self._references else self._empty.pop()"},
    ),
    Bug(
        "a shared block is written",
        "calm",
        KVPool,
        "_let_in",
        {"walk.grant(request, cached,": "walk.grant(request, cached - (cached > 0),"},
        caught_by="which others hold too",
    ),
    Bug("blocks are freed twice", "tight", KVPool, "_give_up", {"table.blocks = [[] for": "[[] for"}),
    Bug("blocks are freed never", "calm", KVPool, "_give_up", {"self._blocks.free(": "list("}),
    Bug(
        "a shared block counts as one's own",
        "calm",
        Blocks,
        "share",
        {"self._references[block] += 1": "self._references[block] = 1"},
    ),
    Bug(
        "the pool keeps the blocks of an ended epoch",
        "faulty",
        KVPool,
        "feed",
        {"self._blocks.clear()": "pass"},
    ),
    Bug(
        "a request that lacks a block runs without",
        "calm",
        KVPool,
        "_serve_all",
        {"for index in lacking:": "for index in lacking[:-1]:"},
    ),
    Bug(
        "more blocks are granted than are free",
        "tight",
        KVPool,
        "_suffice",
        {"<= self._blocks.num_free": ">= 0"},
    ),
)

PREFIXES = (
    Bug(
        "a block is published before it is computed",
        "calm",
        KVPool,
        "_advance",
        {"min(num_computed // self._block_size": "min(len(table.tokens) // self._block_size"},
    ),
    Bug(
        "the whole prompt is a hit",
        "calm",
        KVPool,
        "_find",
        {"(debt - 1) // self._block_size": "debt // self._block_size"},
    ),
    Bug(
        "a block's content forgets what came before",
        "calm",
        kvpool,
        "extend",
        {"parent + pack(": "pack("},
    ),
    Bug(
        "an evicted block can still be found",
        "tight",
        Blocks,
        "_allocate_one",
        {"del self._index[content]": "pass"},
    ),
    Bug(
        "a salt is not in the content",
        "calm",
        prefix,
        "root",
        {"{key.adapter} {key.salt}": "{key.adapter}"},
        caught_by="finds a block",
        settings={"keyed": 1.0},
    ),
    Bug(
        "an adapter is not in the content",
        "calm",
        prefix,
        "root",
        {"{key.adapter} {key.salt}": "{key.salt}"},
        caught_by="finds a block",
        settings={"keyed": 1.0},
    ),
    Bug(
        "media are not in the content",
        "calm",
        kvpool,
        "extend",
        {"media.digest": "b''"},
        caught_by="finds a block",
        settings={"keyed": 1.0},
    ),
    Bug(
        "where media begin is not in the content",
        "calm",
        kvpool,
        "extend",
        {"begin - media.offset, ": ""},
        caught_by="finds a block",
        settings={"keyed": 1.0},
    ),
    Bug(
        "how long media are is not in the content",
        "calm",
        kvpool,
        "extend",
        {", media.length": ""},
        caught_by="finds a block",
        settings={"keyed": 1.0},
    ),
    Bug(
        "after a reset of the prefix cache those that run publish what was computed before",
        "calm",
        KVPool,
        "_reset_prefix_cache",
        {"table.private = table.room > 0": "pass"},
        caught_by="after a reset",
    ),
    Bug(
        "a reset of the prefix cache forgets nothing",
        "calm",
        KVPool,
        "_reset_prefix_cache",
        {"self._blocks.forget()": "pass"},
    ),
    Bug(
        "subscribers do not hear of an eviction",
        "tight",
        Blocks,
        "_allocate_one",
        {"self._log.removed(content)": "pass"},
    ),
    Bug(
        "subscribers do not hear that the cache was cleared",
        "faulty",
        KVPool,
        "_is_reset",
        {"self._log.cleared()": "pass"},
        caught_by="subscribers",
    ),
)

WINDOWS = (
    Bug(
        "a block is freed one block before it falls out of the window",
        "calm",
        Groups,
        "first_seen",
        {"num_blocks - behind": "num_blocks - behind + 1"},
    ),
    Bug(
        "a window is one token shorter than a token sees",
        "calm",
        Groups,
        "__init__",
        {"-(-(window - 1) // block_size)": "-(-(window - 2) // block_size)"},
    ),
    Bug(
        "what fell out of a window is kept",
        "calm",
        KVPool,
        "_drop",
        {"self._blocks.free(fallen)": "pass"},
    ),
    Bug(
        "a hit needs too little of the window",
        "calm",
        Groups,
        "_in_window",
        {"if run == behind": "if run == behind - 1"},
    ),
    Bug(
        "a hit needs nothing of the window",
        "calm",
        Groups,
        "hits",
        {"length = self._in_window(blocks, contents[:length], group)": "pass"},
    ),
    Bug(
        "the groups' blocks are mixed up",
        "calm",
        Batch,
        "_extend",
        {"begins + group * each": "begins + (self.num_groups - 1 - group) * each"},
    ),
    Bug(
        "a group finds the blocks of another",
        "calm",
        Groups,
        "key",
        {"content + self._marks[group]": "content"},
    ),
)

POOL = (*BLOCKS, *PREFIXES, *WINDOWS)
