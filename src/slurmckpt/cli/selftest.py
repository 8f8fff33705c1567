"""`slurmckpt selftest`: try on this node what a checkpoint needs, instead of looking at versions."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import click

from slurmckpt import config
from slurmckpt.capture.cuda import selftest
from slurmckpt.capture.cuda.client import CudaClient
from slurmckpt.coordinator import gpu_answer
from slurmckpt.errors import SlurmckptError
from slurmckpt.fingerprint.gpu import gpu
from slurmckpt.fingerprint.host import host
from slurmckpt.fingerprint.obstacles import obstacles
from slurmckpt.units import format_bytes, parse_size


@click.command()
@click.option("--gpu", "on_gpu", is_flag=True, required=True, help="Capture a small CUDA program and compare.")
@click.option("--size", default="16M", metavar="SIZE", help="How much GPU memory it has (default 16M).")
@click.option(
    "--once", is_flag=True, help="Only where it has not been tried since the boot, and nothing where there is no GPU."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(on_gpu: bool, size: str, once: bool, as_json: bool) -> None:
    """Find out whether GPU state can be captured on this node. Run it as root on a node whose first GPU is free.

    A tiny CUDA program is locked, checkpointed, restored, unlocked and compared. The answer is kept until the next
    boot: when it is no, GPU jobs run here without checkpoints, and their output has the reason. Exit status 1: it is
    no. slurmckpt-selftest.service does it once a boot, before slurmd starts.
    """
    assert on_gpu
    if os.geteuid() != 0:
        raise SlurmckptError("selftest --gpu needs root: the CUDA driver lets nobody else capture")
    try:
        amount = parse_size(size)
    except ValueError as error:
        raise SlurmckptError(f"--size {error}") from error
    settings = config.load()
    facts = gpu() | {key: value for key, value in host("").items() if key == "host.arch"}
    if "gpu.driver" not in facts and "gpu.error" not in facts:
        if once:
            return
        raise SlurmckptError("there is no NVIDIA GPU on this node")
    if once and (told := gpu_answer.known(settings, facts)) is not None:
        click.echo(f"{_verdict(told)} (found since this node was booted)")
        sys.exit(1 if told else 0)
    known = obstacles(facts)
    answer = asyncio.run(_try(settings, amount))
    if answer.conclusive:
        gpu_answer.keep(settings, facts, answer.failure)
    if as_json:
        click.echo(json.dumps({**vars(answer), "obstacles": known, "driver": facts.get("gpu.driver", "")}, indent=2))
    else:
        click.echo(f"{answer.gpu or 'GPU'}, driver {facts.get('gpu.driver', 'unknown')}, {format_bytes(amount)}")
        for name, seconds in answer.seconds.items():
            click.echo(f"  {name:10}  {seconds:7.3f} s  {format_bytes(int(amount / max(seconds, 1e-6)))}/s")
        for sentence in known:
            click.echo(f"  known: {sentence}")
        click.echo(_verdict(answer.failure) if answer.conclusive else f"it was not tried: {answer.failure}")
    sys.exit(1 if answer.failure else 0)


def _verdict(failure: str) -> str:
    return f"GPU state cannot be captured: {failure}" if failure else "GPU state can be captured"


async def _try(settings: config.Settings, amount: int) -> selftest.Answer:
    client = CudaClient()
    try:
        passed_on = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        return await selftest.run(client, settings.paths.libexec / "gpu-probe", amount, passed_on)
    finally:
        await client.close()
