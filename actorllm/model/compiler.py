"""Makes of a program the operations of the CPU kernels, over buffers that are allocated once.

A norm before a product, and a gate, are computed on the way into the product's left side, so that no
buffer holds them; where two products of one form are gated, not even their sums are kept.
"""

from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_void_p, cast
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np
from actorllm_kernels.cpu.library import Activation, Cache, Form, Heads, Kernels, Kind, Op, Shape
from actorllm_kernels.cpu.library import Gate as GateKind
from actorllm_kernels.cpu.packing import GROUP, LANES, STRIP, Packed
from numpy.typing import NDArray

from ..cores.arrays import Float32
from .program import HIDDEN, Attend, Embed, Gate, Head, Linear, Norm, Operation, Program

_GATES = {"silu": GateKind.SILU, "gelu_tanh": GateKind.GELU_TANH}


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """The weights of a program: matrices packed, norms (with their offset) and biases in float32."""

    matrices: Mapping[str, Packed]
    vectors: Mapping[str, Float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is allocated: tokens and sampling rows of a step, tokens of a request, blocks of the cache."""

    tokens: int
    wanted: int
    length: int
    num_blocks: int
    block_size: int
    cache: Cache = Cache.BF16
    num_threads: int


def heads_of(program: Program, block_size: int, cache: Cache) -> Heads:
    """The heads of a program, whose keys and values are kept in such numbers."""
    size = program.head_dim
    return Heads(program.num_heads, program.num_kv_heads, size, _padded(size, LANES), block_size, cache)


@dataclass(frozen=True, slots=True)
class _Left:
    """The left side of products, and the number of the operation that makes it."""

    blocks: NDArray[np.uint8]
    maker: int


_Key = tuple[str, Activation, tuple[int, int]]
"""Of a left side: which buffer or view, what its numbers become, and what the weights want."""


@dataclass(slots=True)
class _View:
    """What a named buffer holds that is only computed on the way into a product."""

    source: str
    norm: str | None = None
    gate: GateKind = GateKind.NONE
    wanted: bool = False


@dataclass(slots=True)
class Compiler:
    """Makes the list of operations, and everything they point to."""

    program: Program
    weights: NativeWeights
    kernels: Kernels
    limits: Limits
    integers: Activation
    ops: list[Op] = field(default_factory=list)
    shape: Shape = field(default_factory=Shape)
    logits: Float32 = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    head: int = 0
    soft_cap: float = 0.0
    _kept: list[Any] = field(default_factory=list)
    _buffers: dict[str, Float32] = field(default_factory=dict)
    _views: dict[str, _View] = field(default_factory=dict)
    _ready: dict[_Key, _Left] = field(default_factory=dict)
    _queries: NDArray[np.uint8] | None = None
    _lefts: dict[tuple[Activation, int, int, bool], NDArray[np.uint8]] = field(default_factory=dict)

    def compile(self) -> list[Any]:
        """Fill `ops`, `shape`, `logits`, and `head`: the number of the first operation that reads only what
        the others have left in `hidden`. What is returned is kept as long as they are used.
        """
        self._make_shape()
        operations = list(self.program.operations)
        while operations:
            match operations:
                case [Linear() as both, Gate() as gate, Linear() as down, *rest] if self._fits(
                    both, gate, down
                ) and not _reads(rest, both.target, gate.target):
                    self._gated(both, gate, down)
                    operations = rest
                case [operation, *rest]:
                    self._one(operation)
                    operations = rest
        return self._kept

    def _one(self, operation: Operation) -> None:
        match operation:
            case Embed():
                self._embed(operation)
            case Norm():
                self._norm(operation)
            case Linear():
                self._linear(operation)
            case Attend():
                self._attend(operation)
            case Gate():
                self._define(operation.target, _View(operation.source, gate=_GATES[operation.activation]))
            case Head():
                self._head(operation)
            case _:
                assert_never(operation)

    # -- memory -------------------------------------------------------------------------------------

    def _zeros(self, shape: Sequence[int], dtype: Any) -> NDArray[Any]:
        """Zeros that begin at a cache line and stay."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        whole = np.zeros(size + 64, np.uint8)
        start = -whole.ctypes.data % 64
        self._kept.append(whole)
        aligned: NDArray[Any] = whole[start : start + size].view(dtype).reshape(shape)
        return aligned

    def _buffer(self, name: str) -> Float32:
        """The buffer of this name, [tokens, width rounded up to 32]."""
        if name not in self._buffers:
            width = _padded(self.program.widths[name], GROUP)
            self._buffers[name] = self._zeros((self.limits.tokens, width), np.float32)
        return self._buffers[name]

    def _vector(self, name: str | None, size: int) -> int | None:
        """Where a norm's factors or a bias stand, with zeros behind."""
        return None if name is None else self._padded_vector(self.weights.vectors[name], size)

    def _padded_vector(self, values: Float32, size: int) -> int:
        vector = self._zeros((_padded(size, GROUP),), np.float32)
        vector[: len(values)] = values
        return int(vector.ctypes.data)

    def _make_shape(self) -> None:
        program, limits = self.program, self.limits
        heads = heads_of(program, limits.block_size, limits.cache)
        layer_bytes = limits.num_blocks * self.kernels.cache_bytes(heads)
        cache = self._zeros((program.num_slabs, layer_bytes), np.uint8)
        tables: list[list[int]] = [[], []]
        for frequencies, factor in program.ropes:
            angles = np.outer(np.arange(limits.length, dtype=np.float64), frequencies)
            for place, function in zip(tables, (np.cos, np.sin), strict=True):
                table = np.ascontiguousarray(function(angles) * factor, np.float32)
                self._kept.append(table)
                place.append(table.ctypes.data)
        pointers = [(c_void_p * len(table))(*table) for table in tables]
        self._kept += pointers
        self.shape = Shape(
            heads,
            layer_bytes,
            cache.ctypes.data,
            *(cast(table, POINTER(c_void_p)) for table in pointers),
        )

    # -- operations ---------------------------------------------------------------------------------

    def _emit(self, kind: Kind, **fields: Any) -> None:
        self.ops.append(Op(kind=kind, **fields))

    def _wrote(self, name: str) -> None:
        """What was made of this buffer before is old."""
        self._views = {view: of for view, of in self._views.items() if of.source != name}
        self._views.pop(name, None)
        views = {HIDDEN, *self._buffers, *self._views} - {name}
        self._ready = {key: left for key, left in self._ready.items() if key[0] in views}

    def _define(self, name: str, view: _View) -> None:
        self._views[name] = view
        self._ready = {key: left for key, left in self._ready.items() if key[0] != name}

    def _embed(self, operation: Embed) -> None:
        packed, target = self.weights.matrices[operation.weight], self._buffer(HIDDEN)
        self._kept.append(packed)
        self._emit(
            Kind.EMBED,
            weights=packed.form,
            scale=operation.scale,
            width=packed.columns,
            packed=packed.data.ctypes.data,
            target=target.ctypes.data,
            target_stride=target.shape[1],
        )
        self._wrote(HIDDEN)

    def _norm(self, operation: Norm) -> None:
        if not operation.adds:
            self._define(operation.target, _View(operation.source, norm=operation.weight))
            return
        source, target = self._buffer(operation.source), self._buffer(operation.target)
        width = self.program.widths[operation.source]
        self._emit(
            Kind.NORM,
            adds=True,
            eps=self.program.eps,
            width=width,
            bias=self._vector(operation.weight, width),
            source=source.ctypes.data,
            source_stride=source.shape[1],
            target=target.ctypes.data,
            target_stride=target.shape[1],
        )
        self._wrote(operation.target)

    def _blocks(self, activation: Activation, rows: int, width: int, gated: bool) -> NDArray[np.uint8]:
        """Memory for a left side. Those of one shape share it: only one of them is ready at a time.

        That which a gate makes is not the one that the gate's own products read.
        """
        blocks = -(-width // GROUP)
        shape = (activation, rows, blocks, gated)
        if shape not in self._lefts:
            size = -(-rows // LANES) * blocks * self.kernels.activation_bytes(activation)
            self._lefts[shape] = self._zeros((size,), np.uint8)
        memory = self._lefts[shape]
        self._ready = {key: other for key, other in self._ready.items() if other.blocks is not memory}
        return memory

    def _left(self, name: str, form: Form) -> _Left:
        """The buffer or view of this name as the left side of a product with weights of this form."""
        activation = _activation(form, self.integers)
        key = (name, activation, form.wants)
        if key in self._ready:
            return self._ready[key]
        view = self._views.get(name, _View(name))
        source = self._buffer(view.source)
        width = self.program.widths[HIDDEN if view.wanted else name]
        rows = self.limits.wanted if view.wanted else self.limits.tokens
        left = _Left(self._blocks(activation, rows, width, False), len(self.ops))
        self._emit(
            Kind.ACTIVATE,
            next_weights=form,
            next_activation=activation,
            gate=view.gate,
            wanted=view.wanted,
            eps=self.program.eps,
            width=width,
            bias=self._vector(view.norm, width),
            source=source.ctypes.data,
            source_stride=source.shape[1],
            target=left.blocks.ctypes.data,
        )
        self._ready[key] = left
        return left

    def _product(
        self, source: str, packed: Packed, target: Float32, first: int, bias: Float32 | None, **fields: Any
    ) -> None:
        """One weight's columns [first, first + outputs) of the target; those of one Linear run together."""
        left = self._left(source, packed.form)
        self._kept.append(packed)
        self._emit(
            Kind.LINEAR,
            beside=first > 0 and self.ops[-1].kind == Kind.LINEAR,
            weights=packed.form,
            activation=_activation(packed.form, self.integers),
            left=left.maker,
            width=packed.columns,
            outputs=packed.outputs,
            packed=packed.data.ctypes.data,
            bias=None if bias is None else self._padded_vector(bias, packed.outputs),
            source=left.blocks.ctypes.data,
            target=target.ctypes.data + 4 * first,
            target_stride=target.shape[1],
            **fields,
        )

    def _fits(self, both: Linear, gate: Gate, down: Linear) -> bool:
        """Whether these three are two products, their gate, and the product that takes it."""
        if both.target != gate.source or gate.target != down.source or len(both.weights) != 2:
            return False
        one, other = (self.weights.matrices[weight] for weight in both.weights)
        alike = one.form == other.form and one.outputs == other.outputs
        return alike and not both.biases and not both.adds and len(down.weights) == 1

    def _gated(self, both: Linear, gate: Gate, down: Linear) -> None:
        one, other = (self.weights.matrices[weight] for weight in both.weights)
        self._kept += [one, other]
        left = self._left(both.source, one.form)
        form = self.weights.matrices[down.weights[0]].form
        activation = _activation(form, self.integers)
        blocks = self._blocks(activation, self.limits.tokens, one.outputs, True)
        made = _Left(blocks, len(self.ops))
        self._emit(
            Kind.GATED,
            weights=one.form,
            activation=_activation(one.form, self.integers),
            next_weights=form,
            next_activation=activation,
            left=left.maker,
            gate=_GATES[gate.activation],
            width=one.columns,
            outputs=one.outputs,
            packed=one.data.ctypes.data,
            packed_up=other.data.ctypes.data,
            source=left.blocks.ctypes.data,
            target=made.blocks.ctypes.data,
        )
        self._define(gate.target, _View(both.target))
        self._ready[gate.target, activation, form.wants] = made
        self._linear(down)

    def _linear(self, operation: Linear) -> None:
        view = self._views.get(operation.source, _View(operation.source))
        assert view.source != operation.target, "threads make a left side while others write the product"
        target, first = self._buffer(operation.target), 0
        biases = operation.biases or (None,) * len(operation.weights)
        for weight, bias in zip(operation.weights, biases, strict=True):
            packed = self.weights.matrices[weight]
            values = None if bias is None else self.weights.vectors[bias]
            self._product(operation.source, packed, target, first, values, adds=operation.adds)
            first += packed.outputs
        self._wrote(operation.target)

    def _attend(self, operation: Attend) -> None:
        program = self.program
        source, target = self._buffer(operation.source), self._buffer(operation.target)
        if self._queries is None:
            size = self.kernels.query_bytes(self.shape.heads)
            self._queries = self._zeros((self.limits.tokens, program.num_heads, size), np.uint8)
        queries = self._queries.ctypes.data
        place = {"layer": operation.layer, "group": operation.group}
        self._emit(
            Kind.ROTATE,
            **place,
            window=operation.window,
            rope=operation.rope,
            scale=operation.scale,
            eps=program.eps,
            bias=self._vector(operation.q_norm, program.head_dim),
            k_norm=self._vector(operation.k_norm, program.head_dim),
            source=source.ctypes.data,
            source_stride=source.shape[1],
            target=queries,
        )
        rotate = len(self.ops) - 1
        for kind in (Kind.ATTEND, Kind.JOIN):
            self._emit(
                kind,
                **place,
                left=rotate,
                window=operation.window,
                soft_cap=operation.soft_cap,
                source=queries,
                target=target.ctypes.data,
                target_stride=target.shape[1],
            )
        self._wrote(operation.target)

    def _head(self, operation: Head) -> None:
        self.head = len(self.ops)
        packed = self.weights.matrices[operation.weight]
        self.soft_cap = operation.soft_cap
        self.logits = self._zeros((self.limits.wanted, _padded(packed.outputs, STRIP)), np.float32)
        self._define("wanted", _View(HIDDEN, norm=operation.norm, wanted=True))
        self._product("wanted", packed, self.logits, 0, None, wanted=True)


def _reads(operations: Sequence[Operation], *names: str) -> bool:
    """Whether any of these reads one of the buffers as it is now."""
    left = set(names)
    for operation in operations:
        match operation:
            case Norm() | Linear() | Attend() | Gate():
                if operation.source in left:
                    return True
                if not (isinstance(operation, Norm | Linear) and operation.adds):
                    left.discard(operation.target)
                elif operation.target in left:
                    return True
            case Embed() | Head():
                pass
    return False


def _activation(form: Form, integers: Activation) -> Activation:
    if form < Form.BF16:
        return integers
    return Activation.BF16 if form is Form.BF16 else Activation.F32


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
