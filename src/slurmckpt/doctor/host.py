"""What is known about this host before the checks look at it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from slurmckpt import config
from slurmckpt.capture import criu
from slurmckpt.config import Settings
from slurmckpt.errors import ConfigError, SlurmckptError, SlurmError
from slurmckpt.slurm.ownnode import own_name
from slurmckpt.slurm.port import NodeInfo, PartitionInfo, SlurmPort
from slurmckpt.slurm.select import installed_release


@dataclass(frozen=True)
class Cluster:
    """What slurmctld says. node: the node that this host is; None when it is none, why_no_node then says so."""

    config: Mapping[str, str]
    node: NodeInfo | None
    why_no_node: str = ""
    partitions: tuple[PartitionInfo, ...] = ()

    @property
    def name(self) -> str:
        """ClusterName, as it is part of paths in the store."""
        return self.config.get("ClusterName", "")

    @property
    def several_nodes(self) -> bool:
        """Whether a job may come back on another node; assumed when Slurm does not say."""
        return self.config.get("MaxNodeCount", "") != "1"

    def values(self, name: str) -> list[str]:
        """The values of a parameter that may stand several times: `Prolog` or `Prolog[0]`, `Prolog[1]`, ..."""
        found = [value for key, value in self.config.items() if key == name or key.startswith(f"{name}[")]
        return [value for value in found if value]

    def words(self, name: str) -> list[str]:
        """The words of a parameter that is a list with commas."""
        return [word.strip() for word in self.config.get(name, "").split(",") if word.strip()]


@dataclass(frozen=True)
class Host:
    """This host. Fields named why_* say why another one is empty.

    settings: the defaults when the file is faulty. slurmd: pid of the one that runs here, slurmctld likewise.
    release: of the Slurm commands installed here, such as "26.05" or "unknown". kernel: as uname -r.
    root: whether we are. proc, etc: /proc and the directory of slurmckpt's settings.
    """

    settings: Settings
    why_no_settings: str
    cluster: Cluster | None
    why_no_cluster: str
    criu: criu.Installation | None
    why_no_criu: str
    release: str
    name: str
    slurmd: int | None
    slurmctld: int | None
    root: bool
    kernel: str
    settings_file: Path = config.DEFAULT_PATH
    proc: Path = Path("/proc")
    etc: Path = config.DEFAULT_PATH.parent

    @property
    def is_node(self) -> bool:
        """Whether jobs run here."""
        return self.slurmd is not None or (self.cluster is not None and self.cluster.node is not None)

    @property
    def is_controller(self) -> bool:
        """Whether slurmctld runs here, or would in its turn."""
        hosts = self.cluster.values("SlurmctldHost") if self.cluster else []
        # "ctl(10.0.0.1)" where an address is given
        names = {host.partition("(")[0] for host in hosts}
        return self.slurmctld is not None or bool(names & {self.name, self.name.partition(".")[0]})

    @property
    def roles(self) -> list[str]:
        """What this host is for Slurm, in words."""
        roles = [("compute node", self.is_node), ("controller", self.is_controller)]
        return [role for role, applies in roles if applies] or ["login host"]


async def examine(port: SlurmPort, node: str | None, settings_file: Path = config.DEFAULT_PATH) -> Host:
    """Gather the facts. node: this host's NodeName, where its host name does not tell. Never raises for what is wrong.

    Asks slurmctld three times and runs `criu --version` and `scontrol --version`.
    """
    settings, why_no_settings = _settings(settings_file)
    cluster: Cluster | None = None
    why_no_cluster = ""
    try:
        cluster = await _cluster(port, node)
    except SlurmError as error:
        why_no_cluster = str(error)
    installation: criu.Installation | None = None
    why_no_criu = ""
    try:
        installation = await asyncio.to_thread(criu.find, settings.capture.criu, settings.capture.real_id)
    except SlurmckptError as error:
        why_no_criu = str(error)
    daemons = _daemons()
    return Host(
        settings=settings,
        why_no_settings=why_no_settings,
        cluster=cluster,
        why_no_cluster=why_no_cluster,
        criu=installation,
        why_no_criu=why_no_criu,
        release=await asyncio.to_thread(installed_release),
        name=socket.gethostname(),
        slurmd=daemons.get("slurmd"),
        slurmctld=daemons.get("slurmctld"),
        root=os.geteuid() == 0,
        kernel=os.uname().release,
        settings_file=settings_file,
        etc=settings_file.parent,
    )


def _settings(path: Path) -> tuple[Settings, str]:
    try:
        return config.load(path), ""
    except ConfigError as error:
        return Settings(), str(error)


async def _cluster(port: SlurmPort, node: str | None) -> Cluster:
    settings = await port.config()
    partitions = tuple(await port.partitions())
    try:
        name = node or os.environ.get("SLURMD_NODENAME") or await own_name(port)
        return Cluster(settings, await port.node(name), partitions=partitions)
    except SlurmError as error:
        return Cluster(settings, None, str(error), partitions)


def _daemons() -> dict[str, int]:
    """Pids of Slurm's daemons, by name. Those in containers are not this host's; only root can tell them apart."""
    found: dict[str, int] = {}
    for process in psutil.process_iter(["name"]):
        # Debian's are slurmd-wlm and slurmctld-wlm, and are called so once a reconfiguration has restarted them.
        name = (process.info["name"] or "").removesuffix("-wlm")
        if name in ("slurmd", "slurmctld") and _pid_namespace(process.pid) in ("", _pid_namespace(os.getpid())):
            found.setdefault(name, process.pid)
    return found


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
