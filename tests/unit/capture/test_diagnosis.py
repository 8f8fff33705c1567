from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmckpt.capture import diagnosis
from slurmckpt.capture.diagnosis import explain_dump, explain_restore, is_moment, tables

NOISE = """(00.000045) Unable to get $HOME directory, local configuration file will not be used.
(00.001342) Warn  (criu/kerndat.c:1236): Can't keep kdat cache on non-tempfs
(00.002000) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted
"""


def log(*errors: str, pid: str = "") -> str:
    return NOISE + "".join(f"(00.0{i:05}) {pid}Error (criu/some-file.c:{i + 10}): {e}\n" for i, e in enumerate(errors))


DUMP = [
    (
        "Can't dump file 7 of that type [600] (anon anon_inode:[io_uring])",
        "a process uses io_uring, which cannot be captured: set USE_LIBUV=0 for PyTorch, or let slurmckpt deny it"
        ' (capture.io_uring = "deny")',
    ),
    (
        "Can't handle non-regular mapping on 107's map 7f0000000000",
        "process 107 has a device mapped, as InfiniBand does: set NCCL_IB_DISABLE=1 so that the ranks talk over TCP",
    ),
    (
        "Can't dump file 5 of that type [20666] (chr 1:11)",
        "a process has a device (number 1:11) open as descriptor 5, which cannot be captured:"
        " close it before a checkpoint",
    ),
    (
        "Can't lookup mount=55 for fd=3 path=/home/u/{0}.log",
        "a process holds /home/u/{0}.log (descriptor 3), which was opened outside the pod:"
        " close it, or open it in the program",
    ),
    (
        "Can't lookup mount=55 for fd=-3 path=/usr/bin/python3",
        "a process runs a program (/usr/bin/python3) that was started outside the pod: start it inside",
    ),
    (
        "Can't dump half of stream unix connection. name: (null); peer name: /run/dbus",
        "a process is connected by a unix socket (/run/dbus) to a process outside the pod: do not use that service",
    ),
    (
        "External socket is used. Consider using --ext-unix-sk option.",
        "a process is connected by a unix socket to one outside the pod: close the connection before a checkpoint",
    ),
    (
        "In-flight connection (l) for 1f2e",
        "a process was just making a connection, or being connected with: the next checkpoint will do",
    ),
    (
        "Unsupported proto 262 for socket 1f2e",
        "a process has a multipath TCP socket open: for a Go program set GODEBUG=multipathtcp=0",
    ),
    (
        "Can't dump ghost file /tmp/a b of 2147483648 size, increase limit",
        "a process has the deleted file /tmp/a b of 2147483648 bytes open: delete it later, or raise"
        " capture.ghost_limit",
    ),
    (
        "Can't link remap to /data/x: File exists",
        "a process uses /data/x, which was deleted, and a link of an earlier checkpoint is in its way: remove the stale"
        " link_remap.* beside it",
    ),
    (
        "Can't create link remap for /data/x. Use --link-remap option.",
        "a process uses /data/x, a file or directory that was deleted or replaced since and cannot be kept: close it,"
        " leave the directory, or do not delete what is in use",
    ),
    (
        "Can't dump nested mnt namespace for 120",
        "process 120 is in a mnt namespace of its own: start it without a container or sandbox inside the job",
    ),
    (
        "Can't get rlimit 0: Operation not permitted",
        "root may not read the limits of the job's processes (no CAP_SYS_RESOURCE): set capture.real_id to auto",
    ),
    (
        "Can't get 1:16 opt: Protocol not available",
        "this CRIU does not know a socket option of the running kernel (1:16): install CRIU 4.2 or newer",
    ),
    (
        "page-pipe: write: No space left on device",
        "the staging disk is full: free some space, or let staging.path point to a larger disk",
    ),
    (
        "The criu itself is within dumped tree.",
        "the checkpoint was started from inside the job: this is a fault of slurmckpt",
    ),
    ("Timeout reached. Try to interrupt: 1", "the dump took longer than capture.timeout: raise it"),
    (
        "Iptables configuration failed",
        "the network could not be locked (iptables is missing): this is a fault of slurmckpt, which should not lock it",
    ),
]
RESTORE = [
    (
        "Can't fork for 107: File exists",
        "the process number 107 is in use in the new pod: this is a fault of slurmckpt",
    ),
    (
        "Can't fork for 40000: Invalid argument",
        "it has a process 40000, and kernel.pid_max is lower on this node: set it to 4194304",
    ),
    ("File out.log has bad size 20 (expect 10)", "the file /out.log has 20 bytes and had 10 at the checkpoint"),
    (
        "File out.log has bad mode 0100600 (expect 0100644)",
        "the file /out.log has mode 0100600 and had 0100644 at the checkpoint",
    ),
    (
        "File usr/lib/libc.so.6 has bad build-ID",
        "the program or library /usr/lib/libc.so.6 was updated since the checkpoint",
    ),
    (
        "Can't open file data/x: No such file or directory",
        "the file /data/x cannot be opened on this node (No such file or directory)",
    ),
    (
        "Can't open file data/x on restore: Permission denied",
        "the file /data/x cannot be opened on this node (Permission denied)",
    ),
    (
        "Can't bind inet socket (id 12): Cannot assign requested address",
        "a socket is bound to an address of the old node, which this pod does not have",
    ),
    ("Can't bind inet socket (id 12): Address already in use", "a port that the job listens on is in use on this node"),
    (
        "CPU capabilities do not match run time",
        "this node's CPU lacks features that the job uses: restore on a node with the same CPU",
    ),
]


@pytest.mark.parametrize(("error", "sentence"), DUMP)
def test_dump(error: str, sentence: str) -> None:
    assert explain_dump(log(error, "Dump files (pid: 100) failed with -1", "Dumping FAILED.")) == sentence


@pytest.mark.parametrize(("error", "sentence"), RESTORE)
def test_restore(error: str, sentence: str) -> None:
    text = log(error, "107 exited, status=1", "Restoring FAILED.", pid="  107: ")
    assert explain_restore(text).removesuffix(" (process 107 needs it)") == sentence


# Sentences of dumps that concern no process more than another.
OF_THE_NODE = re.compile(
    r"staging|for CRIU beside the job|^root may not|^this CRIU|^CRIU could not|^the tasks ended|^the dump took"
    r"|^the checkpoint was started|^the network could|^the processes could not"
)


@pytest.mark.parametrize("sentence", [sentence for _, sentence in (*tables.DUMP, *tables.COMMON)])
def test_a_refusal_names_the_process_and_the_way_out(sentence: str) -> None:
    """And the thing, between the two."""
    what, colon, remedy = sentence.rpartition(": ")
    assert colon and remedy
    assert "{who}" in what or OF_THE_NODE.search(sentence), sentence


# From logs of CRIU 4.2.1 on Linux 6.18, each provoked by a program that holds the thing.
REAL_DUMPS = [
    (
        "(00.005313) pie: 100: Error (criu/pie/parasite.c:588): send_fds failed (-22)\n"
        "(00.005351) Error (criu/parasite-syscall.c:280): Can't retrieve FDs from socket\n"
        "(00.005353) Error (compel/src/lib/infect-rpc.c:44): Message reply from daemon is trimmed (12/0)\n",
        "uses io_uring, which cannot be captured: set USE_LIBUV=0 for PyTorch, or let slurmckpt deny it"
        ' (capture.io_uring = "deny")',
    ),
    (
        "(00.014381) Error (criu/pidfd.c:97): pidfd: pidfd pid 1 is not a part of process tree..\n",
        "holds a descriptor (a pidfd) of process 1, which is not captured: close it before a checkpoint",
    ),
    (
        "(00.014381) Error (criu/pidfd.c:88): pidfd: PIDFD_THREAD flag is currently not supported\n",
        "holds a descriptor of a single thread (a pidfd), which cannot be captured: close it before a checkpoint",
    ),
    (
        "(00.013381) Error (criu/proc_parse.c:502): Unknown shit 100600 (/secretmem (deleted))\n"
        "(00.013390) Error (criu/proc_parse.c:738): Can't open 100's mapfile link 7fac50375000: No such device\n"
        "(00.013395) Error (criu/cr-dump.c:1440): Collect mappings (pid: 100) failed with -1\n",
        "has secret memory (memfd_secret), which nobody but itself can read: release it before a checkpoint",
    ),
    (
        "(00.013381) Error (criu/files-reg.c:1790): Can't lookup mount=597 for fd=4 path=/q\n",
        "holds /q (descriptor 4), which was opened outside the pod: close it, or open it in the program",
    ),
    (
        "(00.013381) Error (criu/fsnotify.c:284): fsnotify: \tCan't dump that handle\n",
        "watches a file (inotify) that cannot be found again: it was deleted, or its file system knows no way back to"
        " it: end the watch before a checkpoint",
    ),
    (
        "(00.013381) Error (criu/sockets.c:767): sockets: BUG! Unknown socket collected (family 40)\n",
        "has a socket of an address family open that cannot be captured: close it before a checkpoint",
    ),
    (
        "(00.013381) Error (criu/sk-unix.c:351): unix: Unix socket 28600934 not found\n",
        "has a socket of another network namespace open: close it before a checkpoint",
    ),
    (
        "(00.013381) Error (criu/files-ext.c:94): Can't dump file 4 of that type [600] (anon anon_inode:[perf_event])"
        "\n",
        "has descriptor 4 open (anon_inode:[perf_event]), which cannot be captured: close it before a checkpoint",
    ),
    (
        "(00.013381) Error (criu/files-ext.c:94): Can't dump file 4 of that type [20644] (chr 10:229)\n",
        "serves a FUSE file system, which cannot be captured: unmount it before a checkpoint",
    ),
    (
        "(00.013381) Error (criu/tun.c:306): tun: Net namespace is required to dump tun link\n",
        "has a network device of its own (/dev/net/tun), which cannot be captured: close it before a checkpoint",
    ),
]
TASK = "(00.011682) Dumping task (pid: 100 comm: python3)\n(00.011708) Collecting mappings (pid: 100)\n"
END = (
    "(00.014396) Error (criu/cr-dump.c:1545): Dump files (pid: 100) failed with -1\n"
    "(00.014649) Error (criu/cr-dump.c:1975): Dumping FAILED.\n"
)


@pytest.mark.parametrize(("text", "sentence"), REAL_DUMPS)
def test_real_dumps_name_the_process(text: str, sentence: str) -> None:
    assert explain_dump(NOISE + TASK + text + END) == f"process 100 (python3) {sentence}"
    names = {100: "process 100 (python3) of rank 3"}
    assert explain_dump(NOISE + TASK + text + END, names) == f"{names[100]} {sentence}"
    # Without its first half, as of a log that was too long, the caller's names are all there is.
    assert explain_dump(text + END, {}).split(" ", 2)[2] in f"process 100 {sentence}"


def test_a_nested_namespace_is_told_of_the_process_that_has_it() -> None:
    text = TASK + "(00.01) Error (criu/namespaces.c:460): Can't dump nested uts namespace for 107\n" + END
    assert explain_dump(text, {107: "process 107 (sh) of rank 0"}) == (
        "process 107 (sh) of rank 0 is in a uts namespace of its own: start it without a container or sandbox inside"
        " the job"
    )


def test_real_restores_name_the_process() -> None:
    text = (
        "(00.012279)    100: Error (criu/files-reg.c:2353): Can't open file home/jane/b/f on restore: No such file\n"
        "(00.012281)    100: Error (criu/files-reg.c:2267): Can't open file home/jane/b/f: No such file or directory\n"
        "(00.012282)    100: Error (criu/files.c:1221): Unable to open fd=4 id=0xe\n"
        "(00.013033) Error (criu/cr-restore.c:2331): Restoring FAILED.\n"
    )
    assert explain_restore(text, {100: "process 100 (rank 1)"}) == (
        "the file /home/jane/b/f cannot be opened on this node (No such file) (process 100 (rank 1) needs it)"
    )
    text = "(00.01)    100: Error (criu/servicefd.c:282): sfd: Can't chose service_fd_base: 19968 19985\n"
    assert explain_restore(text) == (
        "process 100 has descriptors with numbers near 19985, and this node allows 19968: raise the limit of open files"
        " of slurmd (LimitNOFILE)"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "(00.01)    100: Error (criu/files-reg.c:2175): File home/jane/f has bad size 1 (expect 5)\n"
            "(00.01)    100: Error (criu/files.c:1221): Unable to open fd=4 id=0xe\n"
            "(00.01) Error (criu/cr-restore.c:1265): 100 exited, status=1\n",
            "the file /home/jane/f has 1 bytes and had 5 at the checkpoint (process 100 needs it)",
        ),
        (
            "(00.01)    101: Error (criu/files-reg.c:2294): File home/jane/f has bad mode 0100600 (expect 0100644)\n",
            "the file /home/jane/f has mode 0100600 and had 0100644 at the checkpoint (process 101 needs it)",
        ),
        (
            "(00.01)    100: Error (criu/files-reg.c:2353): Can't open file home/jane/l.so on restore: No such file\n"
            "(00.01)    100: Error (criu/mem.c:1467): `- Can't open vma\n",
            "the file /home/jane/l.so cannot be opened on this node (No such file) (process 100 needs it)",
        ),
        (
            "(00.01) Error (criu/protobuf.c:93): Read 8 bytes while 10 expected from /s/pstree.img: Not permitted\n",
            "the image is damaged",
        ),
        ("(00.01) Error (criu/protobuf.c:72): Unexpected EOF on (empty-image)\n", "the image is damaged"),
    ],
)
def test_real_restores(text: str, sentence: str) -> None:
    assert explain_restore(NOISE + text + "(00.01) Error (criu/cr-restore.c:2331): Restoring FAILED.\n") == sentence


# As CRIU 4.2.1 says it of tasks that end while it stops them.
GONE = "(00.002) Error (compel/src/lib/infect.c:417): Unable to detach from 181273: No such process\n"
UNSEIZED = "(00.01) Error (compel/src/lib/infect.c:262): Unseizable non-zombie 101 found, state S, err -1/10\n"
IN_FLIGHT = (
    "(00.12) Error (criu/sk-inet.c:185): inet: In-flight connection (l) for 52c43bc\n"
    "(00.12) Error (criu/sk-inet.c:186): inet: In-flight connections can be ignored with the --skip-in-flight option.\n"
    "(00.12) Error (criu/cr-dump.c:1545): Dump files (pid: 385356) failed with -1\n"
)
DEVICE = "(00.01) Error (criu/files-ext.c:99): Can't dump file 5 of that type [20666] (chr 1:11)\n"


@pytest.mark.parametrize(
    "text, moment",
    [(GONE, True), (IN_FLIGHT, True), (UNSEIZED, False), (DEVICE, False), (UNSEIZED + GONE, True), ("", False)],
)
def test_what_is_over_a_moment_later(text: str, moment: bool) -> None:
    assert is_moment(NOISE + text + END) == moment


def test_one_that_ended_while_it_was_stopped_is_not_taken_for_the_reason() -> None:
    """CRIU says so of it, and goes on without it."""
    assert "has a device (number 1:11) open" in explain_dump(NOISE + UNSEIZED + DEVICE + END)


def test_real_dumps_of_no_certain_process() -> None:
    text = "(00.01) Error (compel/src/lib/infect.c:262): Unseizable non-zombie 101 found, state S, err -1/10\n" * 3
    assert explain_dump(NOISE + text + END, {101: "process 101 (gdb) of rank 0"}) == (
        "process 101 (gdb) of rank 0 is being traced: detach the debugger or tracer first"
    )
    text = (
        "(00.01) Error (criu/page-xfer.c:263): page-xfer: Unable to spice data: No space left on device\n"
        "(00.01) Error (criu/bfd.c:131): bfd: Error flushing image: No space left on device\n"
    )
    assert explain_dump(NOISE + TASK + text + END).startswith("the staging disk is full: ")


def test_an_unknown_error_names_the_process_too() -> None:
    assert explain_dump(TASK + log("Something new") + END) == "CRIU: Something new (process 100 (python3))"


def test_an_unknown_error_is_quoted_without_its_prefix() -> None:
    assert explain_dump(log("Something new: 42", "Dumping FAILED.")) == "CRIU: Something new: 42"
    assert explain_restore(log("Something new: 42", "100 killed by signal 11: Segfault")) == "CRIU: Something new: 42"


def test_the_restorers_own_lines_are_read() -> None:
    assert explain_restore("(00.1) pie: 101: Error (criu/pie/restorer.c:1804): Boom -22\n") == "CRIU: Boom -22"


def test_a_known_error_goes_before_an_unknown_one() -> None:
    assert explain_restore(log("Can't open: -2", "File a has bad size 1 (expect 2)")).startswith(
        "the file /a has 1 bytes"
    )


def test_a_consequence_is_told_when_there_is_nothing_else() -> None:
    assert explain_restore(log("107 exited, status=1")) == "CRIU: 107 exited, status=1"


def test_harmless_errors_and_warnings_are_no_reason() -> None:
    assert explain_dump(log("Dumping FAILED.")) == ""
    assert explain_restore(NOISE) == ""
    assert explain_dump("") == ""


def test_only_the_end_of_a_long_log_is_read() -> None:
    filler = "(00.1) nothing of interest\n" * (diagnosis.LOG_TAIL // 20)
    assert explain_dump(log("Something old") + filler + log("Something new")) == "CRIU: Something new"


def test_hostile_names_stay_on_one_line() -> None:
    assert explain_dump(log("Can't lookup mount=5 for fd=3 path=/\x1b[31mred")).isprintable()


lines = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=80)
known = st.sampled_from([error for error, _ in DUMP + RESTORE])


@given(st.lists(st.one_of(lines, known, st.builds("{}{}".format, known, lines)), max_size=6))
def test_any_log_gives_one_printable_line(errors: list[str]) -> None:
    for explain in (explain_dump, explain_restore):
        sentence = explain(log(*errors))
        assert sentence == "" or sentence.isprintable()


@pytest.mark.parametrize("table", [tables.DUMP, tables.RESTORE, tables.COMMON])
def test_every_sentence_uses_only_groups_that_its_pattern_always_has(table: tables.Table) -> None:
    """Alternatives of one pattern must all fill the same number of groups that the sentence asks for."""
    for pattern, sentence in table:
        asked = max((int(n) + 1 for n in "0123456789" if f"{{{n}}}" in sentence), default=0)
        for alternative in split_alternatives(pattern.pattern):
            assert alternative.count("(") - alternative.count("(?:") - alternative.count(r"\(") >= asked, (
                pattern.pattern
            )


def split_alternatives(pattern: str) -> list[str]:
    """The alternatives of a pattern at its top level."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(pattern):
        escaped = i > 0 and pattern[i - 1] == "\\"
        if c in "([" and not escaped:
            depth += 1
        elif c in ")]" and not escaped:
            depth -= 1
        elif c == "|" and depth == 0:
            parts.append(pattern[start:i])
            start = i + 1
    return [*parts, pattern[start:]]
