"""What the built-in processors need to know of the device. Imports torch when called."""

from __future__ import annotations

import gc
import math
import os
from pathlib import Path
from typing import Any

from batchq.errors import BatchqError, DeviceLost, UsageError
from batchq.words import pip_install

__all__ = [
    "cores_here",
    "describe_device",
    "import_torch",
    "is_out_of_memory",
    "load_failed",
    "make_room",
    "pick_device",
    "raise_if_lost",
    "use_cores",
]

_MOST_CALLS = 16
"""Calls of one model at a time: Python's part in them takes turns."""

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_UNLIMITED = 1 << 20

# As torch words them; it has no type of its own for the memory of CPUs and of MPS.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "_alloc_failed")
# All that oneDNN says, which runs some layers on CPUs, where a kernel or its buffer finds no room.
_NO_ROOM_FOR_KERNEL = (
    "could not create a primitive",
    "could not create a memory object",
    "could not execute a primitive",
)
# After any of these every later call on the device fails as well.
_LOST = (
    "cuda error",
    "device-side assert",
    "cublas_status",
    "cudnn_status",
    "hip error",
    "nccl error",
    "unspecified launch failure",
)


def import_torch() -> Any:
    """torch. Raises UsageError, with the way to install it, where it is absent."""
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            f"this processor needs torch, which cannot be imported: {error}",
            hint=pip_install("inference"),
        ) from None
    return torch


def pick_device(wanted: str) -> str:
    """`wanted`, with `auto` made concrete: cuda where there is one, else mps, else cpu.

    Raises UsageError for what torch does not know or this machine does not have.
    """
    torch = import_torch()
    if wanted == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"no device {wanted} here: {reason}", hint="--device auto takes what there is"
        ) from None
    return wanted


def describe_device(wanted: str) -> tuple[str, dict[str, Any]]:
    """What `wanted` is on this machine, in words and in figures. Raises as `pick_device`."""
    torch = import_torch()
    name = pick_device(wanted)
    about: dict[str, Any] = {"device": name, "torch": torch.__version__}
    if not name.startswith("cuda"):
        cores = cores_here()
        return f"{name}, {cores} threads, torch {torch.__version__}", about | {"threads": cores}
    found = torch.cuda.get_device_properties(name)
    about |= {"name": found.name, "memory_bytes": found.total_memory, "cuda": torch.version.cuda}
    memory = f"{found.total_memory / 2**30:,.0f} GiB"
    return f"{name}, {found.name}, {memory}, torch {torch.__version__}", about


def use_cores(device: str) -> int:
    """Share out the cores of this process; how many calls of a model to make at a time.

    On a CPU many, each on as many cores as are left for it, one as a rule. On an
    accelerator one, and torch may use every core for what it does beside.
    """
    cores = cores_here()
    calls = min(cores, _MOST_CALLS) if device == "cpu" else 1
    import_torch().set_num_threads(cores // calls)
    return calls


def cores_here() -> int:
    """Cores that this process may use: its affinity, its container's quota.

    Fewer or more if OMP_NUM_THREADS says so.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if given.isdigit() and int(given) > 0:
        return int(given)
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min(cores, _quota(_QUOTA)))


def _quota(file: Path) -> int:
    """Cores that a container is allowed, rounded up, as cgroup v2 says: `max 100000`."""
    try:
        allowed, period = file.read_text().split()
        return math.ceil(int(allowed) / int(period))
    except (OSError, ValueError, ZeroDivisionError):
        return _UNLIMITED


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that a smaller step might fit."""
    if isinstance(error, (MemoryError, import_torch().OutOfMemoryError)):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return text in _NO_ROOM_FOR_KERNEL or any(words in text for words in _OUT_OF_MEMORY)


def raise_if_lost(error: BaseException) -> None:
    """Raise DeviceLost if `error` means that this process can use the device no more."""
    text = str(error).lower()
    if is_out_of_memory(error) or not isinstance(error, RuntimeError):
        return
    if any(words in text for words in _LOST):
        first = str(error).splitlines()[0]
        raise DeviceLost(
            f"the device failed: {first}",
            hint="start another worker; if it fails again on the same item, the item is at fault",
        ) from error


def make_room(device: str) -> None:
    """Free what a failed step held. Call it outside the `except` block, which holds more."""
    gc.collect()
    torch = import_torch()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    elif device.startswith("mps"):
        torch.mps.empty_cache()


def load_failed(name: str, error: BaseException) -> BatchqError:
    """The error to raise when a model does not load."""
    reason = str(error).strip().splitlines() or [type(error).__name__]
    return BatchqError(
        f"model {name} does not load: {type(error).__name__}: {reason[0]}",
        hint="its folder may be incomplete, or of a kind this version of transformers lacks",
    )
