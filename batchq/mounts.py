"""Which file system a folder lies on, what would take it away, and what room it has.

The first two are read from the kernel's own tables (proc(5), sysfs(5)); where there are
none, nothing is known, and unknown is said to be unknown.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MOUNTS",
    "Lifetime",
    "Mount",
    "free_bytes",
    "lifetime",
    "mount_of",
    "network_filesystem",
]

MOUNTS = Path("/proc/self/mountinfo")
BLOCK_DEVICES = Path("/sys/dev/block")

_NETWORK = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs", "gfs2", "glusterfs", "gpfs"),
        *("lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs", "virtiofs"),
    )
)
_MEMORY = frozenset(("tmpfs", "ramfs", "devtmpfs"))
_LAYERS = frozenset(("overlay", "aufs"))

_INSTANCE_STORES = re.compile("Instance Storage|nvme_card|Microsoft NVMe Direct Disk")
"""Models of the disks that EC2, Google and Azure lend with an instance and wipe with it."""

_EBS = "Elastic Block Store"


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system: its type, and the device's number as `major:minor`."""

    kind: str
    device: str

    @property
    def is_network(self) -> bool:
        """Whether it lies on other machines, as far as its type tells."""
        return self.kind in _NETWORK or self.kind.startswith("fuse")


@dataclass(frozen=True, slots=True)
class Lifetime:
    """What ends it. `durable`: whether it outlives this machine; none where nobody can say."""

    what: str
    durable: bool | None


def mount_of(folder: Path, mounts: Path = MOUNTS) -> Mount | None:
    """The mount that `folder` lies on, or would once it is created; none if unknown."""
    real = folder.resolve()
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    found, longest = None, -1
    for line in lines:
        fields = line.split(" ")
        point = Path(_unescape(fields[4]))
        # Of two mounts on one folder the later one covers the other.
        if (real == point or point in real.parents) and len(point.parts) >= longest:
            kind = fields[fields.index("-") + 1]
            found, longest = Mount(kind, fields[2]), len(point.parts)
    return found


def network_filesystem(folder: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the network file system that `folder` lies on, or none if it is local."""
    mount = mount_of(folder, mounts)
    return mount.kind if mount is not None and mount.is_network else None


def lifetime(folder: Path, mounts: Path = MOUNTS, devices: Path = BLOCK_DEVICES) -> Lifetime:
    """What would take away what is written to `folder`."""
    mount = mount_of(folder, mounts)
    if mount is None:
        return Lifetime("a file system of unknown type", None)
    if mount.kind in _NETWORK:
        return Lifetime(f"a network file system ({mount.kind})", True)
    if mount.kind.startswith("fuse"):
        return Lifetime(f"a file system in user space ({mount.kind})", None)
    if mount.kind in _MEMORY:
        return Lifetime(f"memory ({mount.kind}), gone with a restart", False)
    if mount.kind in _LAYERS:
        return Lifetime("a container's own layer, gone with the container", False)
    model = _model(devices / mount.device)
    if _INSTANCE_STORES.search(model):
        return Lifetime(f"the instance's own disk ({model}), gone with the instance", False)
    if _EBS in model:
        return Lifetime("an EBS volume, gone with the instance if DeleteOnTermination is set", None)
    return Lifetime(f"a disk of this machine ({mount.kind})", None)


def free_bytes(folder: Path) -> int:
    """Bytes that are free where `folder` is, or will be once it is created."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _model(device: Path) -> str:
    """As the disk says, also for one of its partitions."""
    for folder in (device / "device", device / ".." / "device"):
        try:
            return (folder.resolve() / "model").read_text(errors="replace").strip()
        except OSError:
            continue
    return ""


def _unescape(field: str) -> str:
    """The kernel writes blanks, tabs, newlines and backslashes as octal numbers."""
    for character in " \t\n\\":
        field = field.replace(f"\\{ord(character):03o}", character)
    return field
