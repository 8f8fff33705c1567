"""A host that is fit in every way, and small changes to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from slurmckpt.capture.criu import Installation
from slurmckpt.config import Log, Paths, Settings, Staging, Store
from slurmckpt.doctor.host import Cluster, Host
from slurmckpt.slurm.port import NodeInfo

# What slurmctld 26.05 says with etc/slurm.conf.example, as far as doctor looks.
CONFIG = {
    "ClusterName": "cluster",
    "Epilog[0]": "/usr/libexec/slurmckpt/epilog",
    "EpilogSlurmctld[0]": "/usr/libexec/slurmckpt/epilog-slurmctld",
    "JobRequeue": "1",
    "MaxNodeCount": "2",
    "MpiDefault": "",
    "PreemptMode": "OFF",
    "PrEpPlugins": "prep/script",
    "ProctrackType": "proctrack/cgroup",
    "Prolog[0]": "/usr/libexec/slurmckpt/prolog",
    "PrologFlags": "Alloc",
    "SchedulerParameters": "bf_interval=5,requeue_delay=2",
    "SlurmUser": "slurm(64030)",
    "SlurmctldHost[0]": "ctl(10.0.0.1)",
    "SLURM_VERSION": "26.05.5",
}
NODE = NodeInfo("n1", "n1", frozenset({"IDLE"}), ("gpu",), ("gpu",), frozenset({"debug"}))


@dataclass
class World:
    """Directories of a host below `top`. Change `settings` and `config`, then look with host()."""

    top: Path
    settings: Settings
    config: dict[str, str] = field(default_factory=lambda: dict(CONFIG))

    @classmethod
    def below(cls, top: Path) -> World:
        settings = Settings(
            store=Store(path=top / "store"),
            staging=Staging(path=top / "staging", reserve=0),
            log=Log(path=top / "log/slurmckpt.log"),
            paths=Paths(libexec=top / "libexec", site_key=top / "etc/site.key"),
        )
        world = cls(top, settings)
        world.config["SLURM_CONF"] = str(top / "slurm/slurm.conf")
        for name in ("Prolog", "Epilog", "EpilogSlurmctld"):
            world.config[f"{name}[0]"] = world.config[f"{name}[0]"].replace("/usr/libexec/slurmckpt", f"{top}/libexec")
        for name in ("store", "log", "libexec", "etc", "slurm"):
            (top / name).mkdir()
        world.write("slurm/slurm.conf", "")
        return world

    def host(self, **changes: object) -> Host:
        """A compute node, seen by root, with these fields changed."""
        host = Host(
            settings=self.settings,
            why_no_settings="",
            cluster=Cluster(self.config, NODE),
            why_no_cluster="",
            criu=Installation("/usr/sbin/criu", "4.2.1", False),
            why_no_criu="",
            release="26.05",
            name="n1",
            slurmd=1,
            slurmctld=None,
            root=True,
            kernel="6.18.44",
            settings_file=self.top / "etc/slurmckpt.toml",
            proc=self.top / "proc",
            etc=self.top / "etc",
        )
        return replace(host, **changes)  # type: ignore[arg-type]

    def login(self, **changes: object) -> Host:
        """A host on which no daemon of Slurm runs."""
        return self.host(
            **({"name": "login", "slurmd": None, "cluster": Cluster(self.config, None, "no node")} | changes)
        )

    def controller(self, **changes: object) -> Host:
        """The host of slurmctld, and of nothing else."""
        return self.login(**({"name": "ctl", "slurmctld": 1} | changes))

    def configured(self, **changes: str) -> Host:
        """A compute node of a cluster with these parameters."""
        return self.host(cluster=Cluster(self.config | changes, NODE))

    def without(self, parameter: str) -> Host:
        """A compute node of a cluster that lacks a parameter."""
        return self.host(cluster=Cluster({k: v for k, v in self.config.items() if not k.startswith(parameter)}, NODE))

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """A file below `top`."""
        path = self.top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path


Compile = Callable[[str, str, str], Path]
