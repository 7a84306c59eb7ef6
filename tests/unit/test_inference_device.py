"""Devices: which errors mean a smaller step, and which the end of the process."""

from __future__ import annotations

import os

import pytest

from batchq.errors import DeviceLost, ExitCode, UsageError
from batchq.inference.device import is_out_of_memory, pick_device, raise_if_lost, use_cores

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        torch.AcceleratorError("CUDA error: out of memory", 2),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 18 GB)"),
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


def test_other_errors_are_left_to_the_caller() -> None:
    """A mistake in a document is neither."""
    error = RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")
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


def test_torch_gets_every_core_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """All cores of the affinity mask, or what OMP_NUM_THREADS left torch with."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert use_cores() == 1
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert use_cores() == len(os.sched_getaffinity(0))
    finally:
        torch.set_num_threads(before)
