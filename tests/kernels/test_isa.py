import os
from pathlib import Path

import pytest
from actorllm_kernels.cpu.build import KernelsUnavailable, load
from actorllm_kernels.cpu.isa import AVX2, AVX512, PORTABLE, InvalidSetting, Isa, choose_isa, cpu_flags

pytestmark = pytest.mark.usefixtures("cache")


def test_the_best_that_the_cpu_has() -> None:
    assert choose_isa({*AVX512.needs, *AVX2.needs}) is AVX512
    assert choose_isa({*AVX512.needs, "avx2"} - {"avx512_bf16"}) is AVX2
    assert choose_isa({"avx2", "fma"}) is PORTABLE
    assert choose_isa(frozenset()) is PORTABLE


def test_a_forced_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_ISA", "portable")
    assert choose_isa() is PORTABLE
    monkeypatch.setenv("ACTORLLM_CPU_ISA", "avx2")
    assert choose_isa({*AVX512.needs, *AVX2.needs}) is AVX2


def test_a_forced_one_that_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_ISA", "sse9")
    with pytest.raises(InvalidSetting, match="ACTORLLM_CPU_ISA=sse9 is none of avx512, avx2, portable"):
        choose_isa()


def test_a_forced_one_that_the_cpu_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORLLM_CPU_ISA", "avx512")
    with pytest.raises(InvalidSetting, match=r"this CPU lacks avx512_vnni, avx512_bf16$"):
        choose_isa({*AVX512.needs} - {"avx512_vnni", "avx512_bf16"})


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux tells its flags there")
def test_this_machines_flags_are_those_of_every_cpu() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = [set(line.split(":")[1].split()) for line in lines if line.startswith("flags")]
    assert all(cpu_flags() <= each for each in told)
    assert bool(cpu_flags()) == (os.uname().machine == "x86_64")


def test_a_cpu_that_lacks_something_gets_no_library(sources: Path) -> None:
    alien = Isa(name="alien", flags=(), needs=("avx2048",))
    with pytest.raises(KernelsUnavailable, match="lacks avx2048, which alien needs"):
        load(alien, sources=sources)
