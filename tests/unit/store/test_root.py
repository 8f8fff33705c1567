"""What needs root: another identity, a full disk, a root that the storage squashes, a writer that is killed."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmckpt.errors import StoreError
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from tests.unit.store.world import CONTENTS, USER_GID, USER_UID, World

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

SRC = Path(__file__).parents[3] / "src"


@pytest.fixture
def small_disk(world: World) -> Iterator[Path]:
    """A file system of 4 MiB."""
    path = world.top / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=1777", "tmpfs", path], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        # Lazily: after a failed test something may still be open there.
        subprocess.run(["umount", "--lazy", path], check=True)


# --- the identity -------------------------------------------------------------------------------------------------


def thread_status() -> dict[str, list[str]]:
    lines = Path("/proc/thread-self/status").read_text(encoding="utf-8").splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


def test_only_the_thread_has_the_identity() -> None:
    before = thread_status()
    with UserFiles.for_user(USER_UID, USER_GID, [USER_GID, 5, 7]) as files:
        inside = files.run_sync(thread_status)
        during = thread_status()
    assert (inside["Uid"], inside["Gid"]) == (["0", "0", "0", str(USER_UID)], ["0", "0", "0", str(USER_GID)])
    assert sorted(inside["Groups"], key=int) == ["5", "7", str(USER_GID)]
    assert {int(inside[name][0], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
    for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm"):
        assert before[name] == during[name], name


def test_the_thread_has_no_rights_of_root(world: World) -> None:
    secret = world.top / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    own = world.store.dir / "own"
    world.as_user(own.write_text, "own")
    assert (own.stat().st_uid, own.stat().st_gid) == (USER_UID, USER_GID)
    for function, *arguments in (
        (secret.read_text,),
        (secret.write_text, "x"),
        (secret.unlink,),
        (secret.chmod, 0o666),
        (os.chown, own, 0, 0),
        (os.mknod, world.store.dir / "device", 0o020666, os.makedev(1, 3)),
        ((world.top / "new").write_text, "x"),
        (os.setxattr, own, "trusted.a", b"x"),
        (os.mkdir, "/root/x"),
    ):
        with pytest.raises(PermissionError):
            world.as_user(function, *arguments)
    assert secret.read_text() == "secret"


def test_supplementary_groups_count(world: World) -> None:
    shared = world.top / "shared"
    shared.write_text("shared")
    os.chown(shared, 0, 4242)
    shared.chmod(0o640)
    with pytest.raises(PermissionError):
        world.as_user(shared.read_text)
    with UserFiles.for_user(USER_UID, USER_GID, [4242]) as files:
        assert files.run_sync(shared.read_text) == "shared"


def test_root_has_no_groups_left_in_the_thread(world: World) -> None:
    """Files of root's own group are not the user's."""
    shared = world.top / "of-root"
    shared.write_text("root")
    shared.chmod(0o040)
    with UserFiles.for_user(USER_UID, USER_GID, []) as files, pytest.raises(PermissionError):
        files.run_sync(shared.read_text)


def test_root_hands_open_files_over(world: World) -> None:
    secret = world.top / "secret"
    secret.write_bytes(b"secret")
    secret.chmod(0o600)
    with open(secret, "rb") as file:
        assert world.files.run_sync(file.read) == b"secret"


def test_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(StoreError, match="machine riscv64 is not supported; accepted: x86_64, aarch64"):
        UserFiles.for_user(USER_UID, USER_GID, [])


def test_identity_that_the_kernel_did_not_take_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """setfsuid reports no error: the kernel is asked. Here another call stands for setgroups and changes nothing."""
    monkeypatch.setattr("slurmckpt.store.identity._SYSCALLS", {os.uname().machine: (102, 126)})
    with pytest.raises(StoreError, match=r"the kernel kept other rights|setgroups"):
        UserFiles.for_user(USER_UID, USER_GID, [4242])


# --- the store of another user ------------------------------------------------------------------------------------


def test_cluster_directory_is_open_and_sticky(world: World) -> None:
    assert (world.store.root / "cluster").stat().st_mode & 0o7777 == 0o1777
    assert (world.store.root / "cluster").stat().st_uid == 0


def test_directory_of_somebody_else_is_refused(world: World) -> None:
    store = world.other_job(user="john")
    (world.store.root / "cluster" / "john").mkdir()
    with pytest.raises(StoreError, match=r"store directory .*/john is owned by uid 0; it must be owned by john \(uid"):
        asyncio.run(store.prepare(world.files))


def test_link_in_the_place_of_the_users_directory_is_refused(world: World) -> None:
    store = world.other_job(user="john")
    victim = world.top / "victim"
    victim.mkdir()
    os.chown(victim, USER_UID, USER_GID)
    (world.store.root / "cluster" / "john").symlink_to(victim)
    with pytest.raises(StoreError, match=r"/john is not a directory \(a link is not accepted\)"):
        asyncio.run(store.prepare(world.files))
    assert list(victim.iterdir()) == []


SQUASHED = """
import asyncio, ctypes, os, sys
from pathlib import Path

# capset(2): nothing but what setfsuid and setgroups need. As with root_squash, root may now not enter, change or chown
# what belongs to others.
keep = (1 << 6) | (1 << 7)
libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
assert libc.syscall(ctypes.c_long(126 if os.uname().machine == "x86_64" else 91), header,
                    (ctypes.c_uint32 * 6)(keep, keep, 0, 0, 0, 0)) == 0

from slurmckpt.identity import JobIdentity
from slurmckpt.store import lease, record, retention, transfer
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from tests.unit.store.world import CONTENTS, KEY, USER_GID, USER_UID, World

top = Path(sys.argv[1])
job = JobIdentity("cluster", "jane", USER_UID, USER_GID, 4712)
store = JobStore(top / "squashed", job)
files = UserFiles.for_user(USER_UID, USER_GID, [])
world = World(top, job, store, files, top / "staging")

async def main():
    await store.prepare(files)
    try:
        os.listdir(store.dir)
    except PermissionError:
        pass
    else:
        raise AssertionError("root is not squashed: this test shows nothing")
    epoch = await lease.take(store, files, "n1")
    for seq in (1, 2, 3):
        assert await files.run(store.next_seq) == seq
        world.fill(CONTENTS)
        await transfer.publish(world.staging, store, files, world.manifest(seq), KEY, "zstd", 1,
                               lambda: lease.check(store, files, epoch))
    noted = record.Record(4712, "jane", "cluster")
    noted.add_event(1.0, "committed")
    await record.save(store, files, noted)
    assert await record.load(store, files) == noted
    assert await retention.prune(store, files, 2, set()) == [1]
    manifest = await transfer.fetch(store, 3, files, KEY, top / "fetched")
    assert {file.path for file in manifest.files} == set(CONTENTS)
    assert await retention.remove_all(store, files) == [2, 3]

asyncio.run(main())
files.close()
print("done")
"""


def test_root_that_is_squashed(world: World) -> None:
    """A root without CAP_DAC_OVERRIDE, CAP_CHOWN and their kin has no rights in the user's directories, as on NFS."""
    (world.top / "squashed").mkdir()
    (world.top / "squashed" / "cluster").mkdir()
    (world.top / "squashed" / "cluster").chmod(0o1777)
    environment = {"PYTHONPATH": f"{SRC}:{SRC.parent}", "PATH": os.environ["PATH"]}
    child = subprocess.run(
        [sys.executable, "-c", SQUASHED, world.top], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (child.stdout, child.returncode) == ("done\n", 0), child.stderr


# --- a full disk --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_store_is_full(world: World, small_disk: Path, compression: str) -> None:
    """One line says so, the partial goes, staging and the checkpoint before stay, and a smaller one fits again."""
    world.store = JobStore(small_disk, world.job)
    asyncio.run(world.store.prepare(world.files))
    small = {"file": b"small"}
    first = world.publish(seq=1, contents=small)
    with pytest.raises(StoreError, match=r"^checkpoint 2 cannot be written to .*: No space left on device$"):
        world.publish(seq=2, contents={"big": os.urandom(6 * 2**20)}, compression=compression)  # type: ignore[arg-type]
    assert world.names() == {"1"}
    assert (world.staging / "big").stat().st_size == 6 * 2**20
    assert world.fetch(1)[0] == first
    world.publish(seq=2, contents=small)
    assert world.store.sequence_numbers() == [1, 2]


def test_staging_is_full(world: World, small_disk: Path) -> None:
    """Not the checkpoint's fault, so not Refused: the earlier one would fare no better."""
    world.publish(contents={"big": bytes(6 * 2**20)})
    world.top, top = small_disk, world.top
    try:
        with pytest.raises(StoreError, match=r"^staging directory .* cannot be written: No space left on device$"):
            world.fetch()
    finally:
        world.top = top
    assert os.listdir(small_disk / "fetched") == []


# --- a writer that dies -------------------------------------------------------------------------------------------

KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from slurmckpt.identity import JobIdentity
from slurmckpt.store import transfer
from slurmckpt.store.identity import UserFiles
from slurmckpt.store.layout import JobStore
from slurmckpt.store.partial import Partial
from tests.unit.store.world import KEY, USER_GID, USER_UID, World

top, moment = Path(sys.argv[1]), sys.argv[2]
job = JobIdentity("cluster", "jane", USER_UID, USER_GID, 4711)
files = UserFiles.for_user(USER_UID, USER_GID, [])
store = JobStore(top / "store", job)

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

async def kept():
    if moment == "lease":
        die()

if moment == "file":
    Partial._copy = die
if moment == "manifest":
    Partial.seal = die
if moment == "rename":
    os.rename = die
world = World(top, job, store, files, top / "staging")
asyncio.run(transfer.publish(world.staging, store, files, world.manifest(2), KEY, "zstd", 1, kept))
"""


@pytest.mark.parametrize("moment", ["file", "manifest", "lease", "rename"])
def test_writer_is_killed(world: World, moment: str) -> None:
    """Wherever it happens: no checkpoint 2 exists, checkpoint 1 is whole, and the next commit is not disturbed."""
    first = world.publish(seq=1)
    environment = {"PYTHONPATH": f"{SRC}:{SRC.parent}", "PATH": os.environ["PATH"]}
    child = subprocess.run(
        [sys.executable, "-c", KILLED, world.top, moment], env=environment, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == -9, child.stderr
    assert world.names() == {"1", "2.partial"}
    assert world.store.sequence_numbers() == [1]
    assert world.store.next_seq() == 3
    assert world.fetch(1)[0] == first
    shutil.rmtree(world.top / "fetched")
    world.publish(seq=3)
    assert {file.path for file in world.fetch(3)[0].files} == set(CONTENTS)
