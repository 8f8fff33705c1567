"""Which backend talks to Slurm on this machine."""

from __future__ import annotations

import logging
import re
import subprocess

from slurmckpt.slurm.port import SlurmPort
from slurmckpt.slurm.pyslurm import Pyslurm
from slurmckpt.slurm.scontrol import Scontrol, environment

log = logging.getLogger(__name__)


def select() -> SlurmPort:
    """pyslurm where it is installed and was built for the Slurm release of this machine, otherwise scontrol.

    Logs which and why. Never raises: scontrol is taken when in doubt, and its errors are clear.
    """
    scontrol = Scontrol()
    try:
        # Importing it loads libslurm, which fails in ways of its own when the two do not fit.
        pyslurm = Pyslurm(scontrol)
    except ModuleNotFoundError:
        log.debug("talking to Slurm through scontrol: pyslurm is not installed")
        return scontrol
    except Exception as error:
        log.info("talking to Slurm through scontrol: pyslurm cannot be loaded: %s", error)
        return scontrol
    here = installed_release(scontrol.program)
    if pyslurm.release != here:
        log.info("talking to Slurm through scontrol: pyslurm is for Slurm %s, here is %s", pyslurm.release, here)
        return scontrol
    log.info("talking to Slurm through pyslurm for Slurm %s", here)
    return pyslurm


def installed_release(program: str = "scontrol") -> str:
    """The release of Slurm's commands on this machine, as "26.05"; "unknown" when they do not say."""
    try:
        answer = subprocess.run(
            [program, "--version"], env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    match = re.search(rb" (\d+)\.(\d+)\.", answer.stdout)
    return f"{int(match[1])}.{int(match[2]):02d}" if match else "unknown"
