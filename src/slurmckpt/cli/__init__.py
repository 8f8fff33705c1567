"""The command `slurmckpt`: one verb a file, each loaded only when it is used."""

from __future__ import annotations

import importlib

import click

from slurmckpt import __version__
from slurmckpt.errors import SlurmckptError

# verb -> module and one line of help; the module's `command` is the verb.
VERBS = {
    "status": ("slurmckpt.cli.status", "What happened to a job: attempts, checkpoints, restores."),
    "checkpoint": ("slurmckpt.cli.checkpoint", "Take a group checkpoint of a running job now."),
    "fingerprint": ("slurmckpt.cli.fingerprint", "Show what a restore needs to find unchanged on this node."),
    "selftest": ("slurmckpt.cli.selftest", "Try whether GPU state can be captured on this node."),
    "doctor": ("slurmckpt.cli.doctor", "Check what keeps this host from taking and restoring checkpoints."),
    "prune": ("slurmckpt.cli.prune", "Remove checkpoints of jobs that will not need them any more."),
    "metrics": ("slurmckpt.cli.metrics", "Print the store and its jobs in numbers, for Prometheus."),
    "node": ("slurmckpt.cli.node", "Register this node with Slurm."),
}


class Verbs(click.Group):
    """Finds a verb by its name, so that `status` does not pay for the imports of the others."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order of VERBS."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb, loaded; None when there is none of this name."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(VERBS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs, without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb; an error of ours is one line and exit status 1."""
        try:
            return super().invoke(ctx)
        except SlurmckptError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="slurmckpt")
def main() -> None:
    """Checkpoints of Slurm jobs, below the framework and with no change to the script."""


__all__ = ["main"]
