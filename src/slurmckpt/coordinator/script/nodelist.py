"""An srun that names the node on which its script was captured: `--nodelist=$(hostname)`.

Slurm refuses it on another node. Where the job has one node, now as then, there is only one that can be meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# srun's options (Slurm 23.11 to 26.05) whose value may be the next word, and those that have none or have it behind
# "=" only. An option that is in neither list ends the search: what follows it may be its value, or the program.
_VALUED = _words(
    "accel-bind account acctg-freq bb bbf bcast-exclude begin chdir checkpoint-dir checkpoint-interval checkpoint-keep"
    " checkpoint-model checkpoint-post checkpoint-pre checkpoint-recover checkpoint-restored cluster-constraint"
    " clusters comment constraint container container-id context"
    " core-spec cores-per-socket cpu-bind cpu-freq cpu_bind cpus-per-gpu cpus-per-task deadline delay-boot dependency"
    " distribution epilog error exclude export extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node"
    " gpus-per-socket gpus-per-task gres gres-flags het-group hint input job-name jobid licenses mail-type mail-user"
    " mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi msg-timeout network nodefile nodelist nodes ntasks"
    " ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output pack-group partition prefer"
    " priority profile prolog qos relative reservation signal slurmd-debug sockets-per-node switches task-epilog"
    " task-prolog tasks-per-node thread-spec threads threads-per-core time time-min tmp treewidth tres-bind"
    " tres-per-task uid wait wckey"
)
_FLAGS = _words(
    "bcast bell checkpoint-fresh compress contiguous debugger-test disable-status exact exclusive external-launcher"
    " hold immediate interactive kill-on-bad-exit label multi-prog nice no-allocate no-bell no-kill oom-kill-step"
    " overcommit overlap oversubscribe preserve-env propagate pty quiet quit-on-interrupt reboot resv-ports send-libs"
    " spread-job stepmgr test-only unbuffered use-min-nodes verbose wait-for-children whole x11"
)
_VALUED_LETTERS = "ABCDFGJLMNPSTUWabcdegijmnopqrtwx"
_OPTIONAL_LETTERS = "IKk"


def node_of_now(variables: Mapping[bytes, bytes]) -> bytes:
    """The only node of an allocation with these SLURM_*; empty when it has several."""
    return variables.get(b"SLURM_JOB_NODELIST", b"") if variables.get(b"SLURM_JOB_NUM_NODES") == b"1" else b""


def renamed(argv: Sequence[bytes], former: Collection[bytes], now: bytes) -> tuple[list[bytes], bytes]:
    """The command line with `now` where one of the nodes `former` is named; and which that was, empty for none."""
    words, found = list(argv), b""
    for index, prefix in _nodelists(argv):
        name = words[index].removeprefix(prefix)
        if name in former and name != now:
            words[index], found = prefix + now, name
    return words, found


def _nodelists(argv: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Where a list of nodes is named: the word, and what stands before the list in it."""
    index = 1
    while index < len(argv) and argv[index].startswith(b"-") and argv[index] not in (b"-", b"--"):
        word = argv[index]
        name, equals, _ = word[2:].decode("ascii", "replace").partition("=")
        if not word.startswith(b"--"):
            letter, rest = _letter_with_value(word)
            if letter == "w" and (rest or index + 1 < len(argv)):
                yield (index, word[: len(word) - len(rest)]) if rest else (index + 1, b"")
            index += 1 if rest or not letter else 2
        elif equals or name in _FLAGS:
            if name == "nodelist":
                yield index, b"--nodelist="
            index += 1
        elif name in _VALUED:
            if name == "nodelist" and index + 1 < len(argv):
                yield index + 1, b""
            index += 2
        else:
            return


def _letter_with_value(word: bytes) -> tuple[str, bytes]:
    """The option in a word like `-lwn1` that takes a value, and that as far as it stands in the word; none: empty."""
    for position, letter in enumerate(word[1:].decode("ascii", "replace"), 2):
        if letter in _OPTIONAL_LETTERS:
            break
        if letter in _VALUED_LETTERS:
            return letter, word[position:]
    return "", b""
