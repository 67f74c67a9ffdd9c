"""Which file systems are shared over a network: locks and syncs of a ledger do not hold on them as on a local disk."""

from __future__ import annotations

from pathlib import Path

# By the names of the kernel (proc_pid_mountinfo(5)); those of FUSE after `fuse.`.
_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "ncpfs", "coda"),
        *("glusterfs", "orangefs", "pvfs2", "wekafs", "panfs", "ocfs2", "gfs2", "daos", "vast", "quobyte"),
        *("fuse.sshfs", "fuse.glusterfs", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.dfuse"),
        *("fuse.ceph-fuse", "fuse.moosefs", "fuse.quobyte", "fuse.cvmfs"),
    )
)
MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The kernel's name of the network file system that `path` is on, or would be on; None: it is a local one."""
    place = path.resolve()
    best, kind = -1, ""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(_unescaped(before.split()[4]))
        # A later mount on the same place covers the earlier one.
        if place.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind if kind in _NETWORK else None


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
