"""Which folders are on a network file system, by the kernel's table of mounts."""

from pathlib import Path

import pytest

from chaos.errors import EnvironmentFailure
from chaos.host import file_systems
from chaos.host.file_systems import network_file_system
from chaos.undo import run_registry

pytestmark = pytest.mark.unit

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw,nosuid shared:5 - proc proc rw
30 22 0:40 / /home rw,relatime shared:20 - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/local rw,relatime - xfs /dev/sdb1 rw
32 22 0:41 / /scratch rw master:7 propagate_from:2 - lustre mds@o2ib:/scratch rw
33 22 0:40 /alice/project /work rw,relatime - nfs4 server:/home rw
34 22 0:42 / /mnt/my\\040disk\\134x rw - fuse.sshfs host: rw
35 22 0:43 / /mnt/over rw - nfs server:/over rw
36 35 0:44 / /mnt/over rw - tmpfs tmpfs rw
37 22 0:45 / /mnt/under rw - tmpfs tmpfs rw
38 37 0:46 / /mnt/under rw - beegfs beegfs_nodev rw
39 22 0:47 / /mnt/fuse rw - fuse.portal portal rw
"""


@pytest.fixture
def mounts(tmp_path):
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/", None),
        ("/var/lib", None),
        ("/home", "nfs4"),
        ("/home/alice/.local/state", "nfs4"),
        pytest.param("/homes", None, id="a name that only begins so"),
        pytest.param("/home/local/alice", None, id="a local disk within it"),
        ("/scratch/x", "lustre"),
        pytest.param("/work/x", "nfs4", id="a folder of it that is bound elsewhere"),
        pytest.param("/mnt/my disk\\x/y", "fuse.sshfs", id="blanks"),
        pytest.param("/mnt/over/x", None, id="a local one covers it"),
        pytest.param("/mnt/under/x", "beegfs", id="it covers a local one"),
        pytest.param("/mnt/fuse/x", None, id="not every FUSE is of a network"),
        pytest.param("/work/../var/x", None, id="the way there does not count"),
    ],
)
def test_where_a_folder_is(mounts, folder, kind):
    assert network_file_system(Path(folder), mounts) == kind


def test_a_link_leads_to_where_it_leads(tmp_path, mounts):
    (tmp_path / "link").symlink_to("/scratch")
    assert network_file_system(tmp_path / "link/state", mounts) == "lustre"


def test_without_the_table_nothing_is_known(tmp_path):
    assert network_file_system(tmp_path, tmp_path / "none") is None


# ---- what follows for the registry of runs ----


def pretend_shared(monkeypatch, *folders):
    """As if these were a shared home."""

    def kind(path):
        return "nfs4" if any(path.is_relative_to(folder) for folder in folders) else None

    monkeypatch.setattr(run_registry, "network_file_system", kind)


def test_the_registry_is_not_in_a_home_that_hosts_share(tmp_path, monkeypatch):
    shared, local = tmp_path / "home", tmp_path / "local"
    monkeypatch.setattr(run_registry, "_folders", lambda: (shared, local))
    assert run_registry.writable_folder() == shared
    pretend_shared(monkeypatch, shared)
    assert run_registry.writable_folder() == local


def test_a_state_folder_on_one_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv(run_registry.STATE_VARIABLE, str(tmp_path / "state"))
    pretend_shared(monkeypatch, tmp_path)
    with pytest.raises(EnvironmentFailure) as refused:
        run_registry.writable_folder()
    text = str(refused.value)
    assert "nfs4" in text and str(tmp_path / "state") in text
    assert f"Choose one on a local disk with {run_registry.STATE_VARIABLE}" in text


def test_the_kernel_tells_of_this_machine(tmp_path):
    assert file_systems.MOUNTS.read_text()
    assert network_file_system(Path("/proc")) is None
