"""The compiled kernels as Python sees them: the structures of src/program.h, field by field."""

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p
from enum import IntEnum


class Kind(IntEnum):
    """What an operation does; see src/program.h."""

    EMBED = 0
    ACTIVATE = 1
    LINEAR = 2
    GATED = 3
    ROTATE = 4
    ATTEND = 5
    JOIN = 6
    NORM = 7


class ThreadsUnavailable(Exception):
    """The system has fewer threads than a program was to run on."""


class Activation(IntEnum):
    """What the left side of a product becomes; see src/activations.h."""

    INT8 = 0
    INT16 = 1
    BF16 = 2
    F32 = 3


class Cache(IntEnum):
    """What numbers keys and values are kept in; see src/cache.h."""

    BF16 = 0
    INT8 = 1

    @property
    def dtype(self) -> str:
        """Its name among the dtypes of a configuration."""
        return {Cache.BF16: "bfloat16", Cache.INT8: "int8"}[self]


class Form(IntEnum):
    """How weights are packed: bits of a code, columns that share scale and offset, how these are stored.

    CENTRED codes have no offset: code 8, or 128 of eight bits, means 0.
    """

    CODES_4_32_HALF = 0
    CODES_4_32 = 1
    CODES_4_16 = 2
    CODES_8_32_HALF = 3
    CODES_8_32 = 4
    CODES_8_16 = 5
    CENTRED_4_32_HALF = 6
    CENTRED_8_32_HALF = 7
    CENTRED_8_16 = 8
    BF16 = 9
    F16 = 10
    F32 = 11

    @property
    def wants(self) -> tuple[int, int]:
        """What the left side of a product must know: spans of 32 columns, and the code that means 0."""
        spans = 2 if self in (Form.CODES_4_16, Form.CODES_8_16, Form.CENTRED_8_16) else 1
        centred = {Form.CENTRED_4_32_HALF: 8, Form.CENTRED_8_32_HALF: 128, Form.CENTRED_8_16: 128}
        return spans, centred.get(self, 0)


class Gate(IntEnum):
    """The activation of a gated layer."""

    NONE = 0
    SILU = 1
    GELU_TANH = 2


class Op(ctypes.Structure):
    """One operation of a program."""

    _fields_ = (
        ("kind", c_int32),
        ("weights", c_int32),
        ("activation", c_int32),
        ("next_weights", c_int32),
        ("next_activation", c_int32),
        ("left", c_int32),
        ("gate", c_int32),
        ("adds", c_int32),
        ("wanted", c_int32),
        ("beside", c_int32),
        ("rope", c_int32),
        ("group", c_int32),
        ("layer", c_int32),
        ("window", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("eps", c_float),
        ("width", c_int64),
        ("outputs", c_int64),
        ("source_stride", c_int64),
        ("target_stride", c_int64),
        ("packed", c_void_p),
        ("packed_up", c_void_p),
        ("bias", c_void_p),
        ("k_norm", c_void_p),
        ("source", c_void_p),
        ("target", c_void_p),
    )


class Heads(ctypes.Structure):
    """The heads of attention, and the blocks of its cache."""

    _fields_ = (
        ("queries", c_int64),
        ("keys", c_int64),
        ("size", c_int64),
        ("padded", c_int64),
        ("block_size", c_int64),
        ("cache", c_int64),
    )


class Shape(ctypes.Structure):
    """What all operations share."""

    _fields_ = (
        ("heads", Heads),
        ("layer_bytes", c_int64),
        ("cache", c_void_p),
        ("cosines", ctypes.POINTER(c_void_p)),
        ("sines", ctypes.POINTER(c_void_p)),
    )


class Step(ctypes.Structure):
    """The inputs of one step."""

    _fields_ = (
        ("num_tokens", c_int64),
        ("num_rows", c_int64),
        ("num_wanted", c_int64),
        ("table_width", c_int64),
        ("input_ids", c_void_p),
        ("positions", c_void_p),
        ("slot_mapping", c_void_p),
        ("query_start_loc", c_void_p),
        ("seq_lens", c_void_p),
        ("block_table", c_void_p),
        ("wanted", c_void_p),
        ("likeliest", c_void_p),
    )


class Kernels:
    """The functions of a compiled library.

    Raises AssertionError when it was compiled from other structures than these.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._open = library.actorllm_open
        self._open.argtypes = (ctypes.POINTER(Op), ctypes.c_int, ctypes.POINTER(Shape), ctypes.c_int)
        self._open.restype = c_void_p
        self._close = library.actorllm_close
        self._close.argtypes = (c_void_p,)
        self._close.restype = None
        self._step = library.actorllm_step
        self._step.argtypes = (c_void_p, ctypes.POINTER(Step), ctypes.c_int, ctypes.c_int, ctypes.c_int)
        self._step.restype = None
        for name in ("sizes", "activation_bytes"):
            function = getattr(library, f"actorllm_{name}")
            function.argtypes, function.restype = (ctypes.c_int,), c_int64
        self._activation_bytes = library.actorllm_activation_bytes
        for name in ("cache_bytes", "query_bytes"):
            function = getattr(library, f"actorllm_{name}")
            function.argtypes, function.restype = (ctypes.POINTER(Heads),), c_int64
        self._cache_bytes, self._query_bytes = library.actorllm_cache_bytes, library.actorllm_query_bytes
        for which, structure in enumerate((Op, Shape, Step)):
            assert library.actorllm_sizes(which) == ctypes.sizeof(structure), f"{structure.__name__} differs"

    def activation_bytes(self, activation: Activation) -> int:
        """Bytes of 16 rows and 32 columns of a product's left side."""
        return int(self._activation_bytes(activation))

    def cache_bytes(self, heads: Heads) -> int:
        """Bytes of one block of one layer's cache."""
        return int(self._cache_bytes(ctypes.byref(heads)))

    def query_bytes(self, heads: Heads) -> int:
        """Bytes of one head of a token's query."""
        return int(self._query_bytes(ctypes.byref(heads)))

    def open(self, ops: list[Op], shape: Shape, num_threads: int, kept: object = None) -> "Running":
        """A program, ready to run on so many threads. Raises ThreadsUnavailable if the system has less.

        `kept` holds what its pointers point to: between two steps a thread may still read there.
        """
        table = (Op * len(ops))(*ops)
        handle = self._open(table, len(ops), ctypes.byref(shape), num_threads)
        if not handle:
            raise ThreadsUnavailable(f"the system gives no {num_threads} threads, or no memory for them")
        return Running(self, handle, len(ops), kept)


class Running:
    """A program with its threads, and what they read."""

    def __init__(self, kernels: Kernels, handle: int, num_ops: int, kept: object) -> None:
        self._kernels = kernels
        self._kept = kept
        self._handle: int | None = handle
        self.num_ops = num_ops

    def step(self, step: Step, num_threads: int, begin: int = 0, end: int | None = None) -> None:
        """Run operations [begin, end) of a step, all in one foreign call, on so many of the threads."""
        assert self._handle is not None, "the program is closed"
        last = self.num_ops if end is None else end
        self._kernels._step(self._handle, ctypes.byref(step), begin, last, num_threads)

    def close(self) -> None:
        """End its threads."""
        if self._handle is not None:
            self._kernels._close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()
