"""The instruction sets that the CPU kernels are compiled for, and which of them this machine has."""

import os
import platform
import subprocess
import sys
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


class InvalidSetting(ValueError):
    """An environment variable of the kernels asks for what cannot be; the text names it and the choices."""


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set.

    name   how ACTORLLM_CPU_ISA calls it
    flags  what the compiler is told
    needs  what the CPU must have, in the words of /proc/cpuinfo
    """

    name: str
    flags: tuple[str, ...]
    needs: tuple[str, ...]

    def missing(self, cpu: Set[str]) -> tuple[str, ...]:
        """What a CPU with the flags `cpu` lacks to run it; empty if it can."""
        return tuple(flag for flag in self.needs if flag not in cpu)


AVX512 = Isa(
    name="avx512",
    flags=(
        "-mavx512f",
        "-mavx512bw",
        "-mavx512vl",
        "-mavx512dq",
        "-mavx512vnni",
        "-mavx512bf16",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ),
    needs=("avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "avx512_bf16", "f16c", "fma"),
)
AVX2 = Isa(name="avx2", flags=("-mavx2", "-mfma", "-mf16c"), needs=("avx2", "fma", "f16c"))
PORTABLE = Isa(name="portable", flags=(), needs=())
ISAS = (AVX512, AVX2, PORTABLE)
"""Best first."""


def choose_isa(cpu: Set[str] | None = None) -> Isa:
    """The best instruction set of the CPU, or the one that ACTORLLM_CPU_ISA names.

    `cpu` has the CPU's flags, by default those of this machine. Raises InvalidSetting if the named one is
    unknown, or lacks something here.
    """
    has = cpu_flags() if cpu is None else cpu
    forced = os.environ.get("ACTORLLM_CPU_ISA")
    if not forced:
        return next(isa for isa in ISAS if not isa.missing(has))
    named = {isa.name: isa for isa in ISAS}
    if forced not in named:
        raise InvalidSetting(f"ACTORLLM_CPU_ISA={forced} is none of {', '.join(named)}")
    if missing := named[forced].missing(has):
        raise InvalidSetting(f"ACTORLLM_CPU_ISA={forced} cannot run: this CPU lacks {', '.join(missing)}")
    return named[forced]


def cpu_flags() -> frozenset[str]:
    """The flags of this machine's CPU in the words of /proc/cpuinfo; none where it is not an x86-64."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return frozenset()
    if sys.platform == "darwin":
        return _sysctl_flags()
    try:
        with CPUINFO.open() as lines:
            line = next((line for line in lines if line.startswith("flags")), "")
    except OSError:
        return frozenset()
    return frozenset(line.partition(":")[2].split())


def _sysctl_flags() -> frozenset[str]:
    """What macOS tells. It spells the flags of AVX2 as Linux does; no Mac has all that AVX-512 needs."""
    command = ["sysctl", "-n", "machdep.cpu.features", "machdep.cpu.leaf7_features"]
    try:
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError:
        return frozenset()
    return frozenset(told.stdout.lower().split())
