"""What a step of a program must read and multiply, by the packed forms of its weights."""

from collections import Counter
from collections.abc import Mapping

from actorllm_kernels.cpu.library import Form
from actorllm_kernels.cpu.packing import Packed

from ..model.program import Attend, Head, Linear, Program


class Work:
    """Bytes and products of a program's steps. `token_bytes` has a token in one layer of the KV cache."""

    def __init__(self, program: Program, matrices: Mapping[str, Packed], token_bytes: int) -> None:
        linears = [op for op in program.operations if isinstance(op, Linear)]
        self._linears = [matrices[name] for op in linears for name in op.weights]
        self._heads = [matrices[op.weight] for op in program.operations if isinstance(op, Head)]
        self._windows = [op.window for op in program.operations if isinstance(op, Attend)]
        self._token_bytes = token_bytes

    def bytes(self, rows: int, context: int) -> int:
        """Read by a step in which so many rows decode: weights (of an embedding nothing), and KV they see."""
        seen = sum(min(context, window or context) for window in self._windows)
        weights = sum(packed.data.nbytes for packed in (*self._linears, *self._heads))
        return weights + rows * seen * self._token_bytes

    def macs(self, tokens: int, wanted: int) -> int:
        """Multiplications with weights, of so many tokens and rows of logits; attention's come on top."""
        return tokens * sum(map(_macs, self._linears)) + wanted * sum(map(_macs, self._heads))

    def commonest(self) -> Packed:
        """The largest matrix of the form that most of the linears' bytes have."""
        sizes: Counter[Form] = Counter()
        for packed in self._linears:
            sizes[packed.form] += packed.data.nbytes
        form = sizes.most_common(1)[0][0]
        return max((packed for packed in self._linears if packed.form is form), key=_macs)


def _macs(packed: Packed) -> int:
    return packed.outputs * packed.columns
