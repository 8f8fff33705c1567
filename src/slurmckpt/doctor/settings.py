"""The files below /etc/slurmckpt: settings, site key, and the marker for every job."""

from __future__ import annotations

from slurmckpt.doctor import trusted
from slurmckpt.doctor.finding import Finding, ok, problem, skipped, warning
from slurmckpt.doctor.host import Host
from slurmckpt.errors import StoreError
from slurmckpt.store.signature import load_site_key

MARKER = "every-job"


def settings_file(host: Host) -> Finding:
    """slurmckpt.toml is understood, and nobody but root can change it."""
    path = host.settings_file
    if host.why_no_settings:
        return problem(
            host.why_no_settings,
            "mend it: until then jobs run without checkpoints, and what follows is judged by defaults",
        )
    if not path.exists():
        return ok(f"{path} is not there: every setting has its default")
    if fault := trusted.fault(path):
        return problem(f"{path} {fault}", f"chown root:root {path}; chmod 0644 {path}")
    if fault := trusted.unreadable(path):
        return problem(
            f"{path} {fault}: the hook on the controller, which runs as SlurmUser, and users' commands need it",
            f"chmod 0644 {path}",
        )
    return ok(f"{path} is understood")


def site_key(host: Host) -> Finding:
    """The key that signs checkpoints can be used, and only root can read it."""
    path = host.settings.paths.site_key
    if not host.is_node:
        return skipped("only compute nodes need it")
    if not host.root:
        return skipped(f"only root can see {path}")
    try:
        load_site_key(path)
    except StoreError as error:
        remedy = (
            f"chown root:root {path}; chmod 0400 {path}" if path.exists() else f"copy it from another node to {path}"
        )
        return problem(str(error), f"{remedy}; it must be the same on all nodes, at least 16 bytes")
    if fault := trusted.directory_fault(path.parent):
        return problem(f"{path.parent} {fault}", f"chown root:root {path.parent}; chmod 0755 {path.parent}")
    return ok(f"{path} can be used; that it is the same on all nodes cannot be seen from here")


def every_job(host: Host) -> Finding:
    """The marker that switches checkpoints on for all jobs, and the interval that it needs, belong together."""
    marker = host.etc / MARKER
    interval = host.settings.schedule.interval
    if not (host.is_node or host.is_controller):
        return skipped("only compute nodes and the controller look for it")
    if marker.exists() and interval.kind == "off":
        return warning(
            f"{marker} switches checkpoints on for every job, but schedule.interval is off, so nothing is taken",
            f"set schedule.interval in {host.settings_file}, or rm {marker}",
        )
    if not marker.exists() and interval.kind != "off":
        return warning(
            f"schedule.interval = {interval} holds only for jobs that give another --checkpoint option: "
            f"there is no {marker}",
            f'touch {marker} on all nodes and the controller for every job, or set schedule.interval = "off"',
        )
    return ok(f"every job, each {interval}" if marker.exists() else "only jobs that ask for checkpoints get them")
