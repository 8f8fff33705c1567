"""The map of the sources, docs/modules.md: each file with the first sentence that it says of itself.

Brought up to date by `make docs`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/modules.md"
PACKAGE = ROOT / "src/slurmckpt"

# Directories of programs in C, each with what it is.
PROGRAMS = {
    "spank": "the plugin that Slurm loads",
    "pod": "the programs around and in a pod, and CRIU's plugin",
    "gate": "the boundary gate, a plugin of NCCL's",
    "gpu": "the probe of `slurmckpt selftest --gpu`",
}

# How the comment of a program begins: its name, or its place among Slurm's, and its arguments.
_SYNOPSIS = r"(?:slurmckpt-|gpu-|/proc/self/fd/N slurmckpt-)?{}(?:\.so)?(?: |$)"

HEAD = """\
# The sources, file by file
Each line is the first sentence of the file itself; `make docs` collects them. Which part does what, and why, is in
[architecture.md](architecture.md).
"""


def first_sentence(text: str) -> str:
    """The first sentence of a docstring or comment, on one line; empty when it has none."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    sentence = re.match(r".*?(?<!\.)\.(?= |$)|.*", paragraph)
    assert sentence is not None
    return sentence[0].removesuffix(".")


def of_python(path: Path) -> str:
    """What a module says of itself."""
    return first_sentence(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")


def of_c(path: Path) -> str:
    """What a file of C says of itself in the comment that it begins with; of a program without its arguments."""
    comment = re.match(r"/\*(.*?)\*/", path.read_text(encoding="utf-8"), re.DOTALL)
    text = " ".join(re.sub(r"^ \*", "", comment[1], flags=re.MULTILINE).split()) if comment else ""
    called, colon, rest = text.partition(": ")
    return first_sentence(rest if colon and re.match(_SYNOPSIS.format(path.stem.replace("_", "-")), called) else text)


def units_of_c(directory: Path) -> list[tuple[str, Path]]:
    """Each unit of a directory with the file that says what it is: its header, where it has one."""
    files = {path.stem: path for path in sorted(directory.glob("*.c"))}
    files |= {path.stem: path for path in sorted(directory.glob("*.h"))}
    return sorted(files.items())


def _section(title: str, what: str, lines: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"* `{name}` {said}\n" for name, said in lines)
    return f"\n## {title}\n{what}\n" + (f"\n{rows}" if rows else "")


def document() -> str:
    """The whole text of docs/modules.md."""
    parts = [HEAD]
    for directory in [PACKAGE, *sorted(path for path in PACKAGE.rglob("*") if (path / "__init__.py").is_file())]:
        modules = [path for path in sorted(directory.glob("*.py")) if not path.stem.endswith(("__", "_pb2"))]
        title = str(directory.relative_to(PACKAGE.parent))
        what = of_python(directory / "__init__.py")
        parts.append(_section(title, what, [(path.stem, of_python(path)) for path in modules]))
    for name, what in PROGRAMS.items():
        units = units_of_c(ROOT / name)
        parts.append(_section(name, f"In C: {what}", [(unit, of_c(path)) for unit, path in units]))
    return "".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
