"""Threads that are put aside in the middle of their tasks: what others do in their place counts once."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from actorllm_kernels.cpu.library import Activation, Form, Kernels

from .programs import Product, random_weight, same_bits
from .test_linear import random_rows

HOGS = 3
STEPS = 400


@pytest.fixture
def hogs() -> Iterator[None]:
    """Processes that take the cores from the helpers, which are nicer than they."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(HOGS)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.usefixtures("hogs")
@pytest.mark.parametrize("adds", [False, True])
def test_a_step_is_the_same_when_its_threads_are_put_aside(kernels: Kernels, adds: bool) -> None:
    """Also where sums are added to what stands there: done twice, they would be added twice."""
    weight, x = random_weight(Form.CODES_4_32_HALF, 640, 512), random_rows(9, 512)
    product = Product(kernels, weight.packed, Activation.INT8, 9, adds=adds)
    onto = np.random.default_rng(2).standard_normal((9, 640)).astype(np.float32)
    alone = product(x, 1, onto)
    for _ in range(STEPS):
        assert same_bits(product(x, 2, onto), alone)


@pytest.mark.usefixtures("hogs")
def test_steps_of_one_thread_and_of_two_may_follow_each_other_in_any_order(kernels: Kernels) -> None:
    weight, x = random_weight(Form.CODES_4_32_HALF, 640, 512), random_rows(9, 512)
    product = Product(kernels, weight.packed, Activation.INT8, 9)
    alone = product(x, 1)
    for num_threads in np.random.default_rng(3).integers(1, 3, STEPS).tolist():
        assert same_bits(product(x, num_threads), alone)
