"""Devices: which errors mean a smaller step, and which the end of the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batchq.errors import DeviceLost, ExitCode, UsageError
from batchq.inference import device
from batchq.inference.device import (
    cores_here,
    is_out_of_memory,
    pick_device,
    raise_if_lost,
    use_cores,
)

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.AcceleratorError("CUDA error: out of memory", 2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 18 GB)"),
        RuntimeError("could not create a primitive"),
        RuntimeError("could not execute a primitive"),
        MemoryError(),
    ],
)
def test_out_of_memory_is_recognised_on_every_device(error: Exception) -> None:
    """Each device words it in its own way; none of them costs the device."""
    assert is_out_of_memory(error)
    raise_if_lost(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: device-side assert triggered\nCompile with ..."),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        torch.AcceleratorError("CUDA error: unspecified launch failure", 719),
    ],
)
def test_a_poisoned_context_ends_the_process(error: Exception) -> None:
    """After these no later call on the device succeeds, so another process must start."""
    assert not is_out_of_memory(error)
    with pytest.raises(DeviceLost) as raised:
        raise_if_lost(error)
    assert raised.value.exit_code is ExitCode.DEVICE_LOST
    assert "\n" not in raised.value.message


@pytest.mark.parametrize(
    "words",
    [
        "The size of tensor a (3) must match the size of tensor b (4)",
        "could not create a primitive descriptor for the matmul primitive. Run workload with ...",
    ],
)
def test_other_errors_are_left_to_the_caller(words: str) -> None:
    """A mistake in a document, or a shape that a layer does not know, is neither."""
    error = RuntimeError(words)
    assert not is_out_of_memory(error)
    raise_if_lost(error)


def test_auto_picks_a_device_that_exists() -> None:
    """What `auto` becomes can hold a tensor."""
    assert torch.ones(1, device=pick_device("auto")).item() == 1.0


@pytest.mark.parametrize("wanted", ["cuda:97", "gpu", ""])
def test_a_device_that_is_not_there_is_refused_by_name(wanted: str) -> None:
    """The message names it, and says what would work."""
    with pytest.raises(UsageError) as raised:
        pick_device(wanted)
    assert f"no device {wanted}" in raised.value.message
    assert "auto" in (raised.value.hint or "")


@pytest.fixture
def given_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets how many cores there are, and puts torch's threads back afterwards."""
    before = torch.get_num_threads()
    yield lambda cores: monkeypatch.setenv("OMP_NUM_THREADS", str(cores))
    torch.set_num_threads(before)


@pytest.mark.parametrize(("cores", "calls", "threads"), [(1, 1, 1), (6, 6, 1), (64, 16, 4)])
def test_a_cpu_runs_a_call_a_core_up_to_a_bound(
    given_cores: Callable[[int], None], cores: int, calls: int, threads: int
) -> None:
    """Torch has as many threads for each as are left; none stays idle."""
    given_cores(cores)
    assert use_cores("cpu") == calls
    assert torch.get_num_threads() == threads


def test_an_accelerator_runs_one_call_and_torch_has_every_core(
    given_cores: Callable[[int], None],
) -> None:
    """For what it does on the CPU meanwhile."""
    given_cores(6)
    assert use_cores("cuda") == 1
    assert torch.get_num_threads() == 6


def test_the_cores_are_those_of_the_affinity_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the container has fewer, or OMP_NUM_THREADS says something sensible."""
    monkeypatch.setattr(device, "_QUOTA", Path("/nowhere/cpu.max"))
    for nothing in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert cores_here() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "7,2")
    assert cores_here() == 7


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("50000 100000", 1), ("250000 100000", 3), ("max 100000", 5), ("", 5), ("0 0", 5)],
)
def test_a_containers_quota_bounds_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: int
) -> None:
    """Threads beyond it would only be made to wait, all of them at once."""
    file = tmp_path / "cpu.max"
    file.write_text(f"{quota}\n")
    monkeypatch.setattr(device, "_QUOTA", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cores_here() == cores
