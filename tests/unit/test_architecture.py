"""Who may know whom (docs/architecture.md, "The package"): imports go downwards, and in no circle.

cli, hooks -> coordinator -> capture, store, fingerprint, slurm -> config, identity, units, errors
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "slurmckpt"

BASE = {"errors", "units", "identity", "filerules", "hookcommands", "config", "logs", "faults"}
PARTS = {"capture", "store", "fingerprint", "slurm"}

# Part of the package -> the parts that it may import. A part may always import itself.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "units": {"errors"},
    "identity": {"errors"},
    "filerules": set(),
    "hookcommands": set(),
    "config": {"errors", "units", "filerules", "hookcommands"},
    "logs": {"errors"},
    "faults": {"errors"},
    # None of these knows another: capture no Slurm and no store, store no CRIU, fingerprint neither.
    "capture": BASE,
    "store": BASE,
    "fingerprint": BASE,
    "slurm": BASE,
    "coordinator": BASE | PARTS,
    "doctor": BASE | PARTS | {"coordinator"},
    "hooks": BASE | PARTS | {"coordinator"},
    "cli": BASE | PARTS | {"coordinator", "doctor"},
}

# (module, what it imports all the same): each with its reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def modules() -> dict[str, Path]:
    """Every module by its dotted name below the package, e.g. `coordinator.wire`; packages by their own name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


MODULES = modules()


def imports(name: str, at_import_only: bool = False) -> set[str]:
    """The modules of the package that a module imports. at_import_only: without those inside functions."""
    tree: ast.AST = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    if at_import_only:
        tree = _AtImport().visit(tree)
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(_known(alias.name) for alias in node.names if alias.name.split(".")[0] == "slurmckpt")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            if (node.module or "").split(".")[0] == "slurmckpt":
                # `from package import module` imports the module, `from module import name` the module before it.
                found.update(_known(f"{node.module}.{alias.name}") for alias in node.names)
    return found - {name}


class _AtImport(ast.NodeTransformer):
    """Leaves out what is not executed when a module is imported."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Executed when it is called."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Executed when it is called."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        """Never executed when it is for the type checker."""
        self.generic_visit(node)
        return None if ast.unparse(node.test).endswith("TYPE_CHECKING") else node


def _known(dotted: str) -> str:
    """The module of the package that a dotted name leads to; empty for the package itself."""
    words = dotted.split(".")[1:]
    while words and ".".join(words) not in MODULES:
        words.pop()
    return ".".join(words)


def part(name: str) -> str:
    return name.split(".")[0]


def test_every_part_has_its_place() -> None:
    assert {part(name) for name in MODULES if name} <= MAY_IMPORT.keys()
    # And the list names nothing that is gone.
    assert {module for module, _ in EXCEPTIONS} <= MODULES.keys()


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_imports_go_downwards(name: str) -> None:
    allowed = MAY_IMPORT[part(name)] | {part(name), ""}
    upwards = {other for other in imports(name) if part(other) not in allowed and (name, other) not in EXCEPTIONS}
    assert upwards == set()


def test_the_exceptions_are_needed() -> None:
    for (name, other), reason in EXCEPTIONS.items():
        assert other in imports(name) and reason


def test_there_is_no_circle() -> None:
    """Checked by taking away, again and again, every module whose imports are all taken away."""
    left = {name: imports(name, at_import_only=True) for name in MODULES}
    while ready := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in ready:
            del left[name]
    assert left == {}


def test_the_package_itself_imports_nothing_of_it() -> None:
    assert imports("") == set()


def test_the_light_side_of_the_prolog_stays_light() -> None:
    """What the prolog imports before it forks is paid for by every job that is checkpointed."""
    seen: set[str] = set()
    todo = ["hooks.prolog"]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += imports(name, at_import_only=True)
    assert not {part(name) for name in seen} & PARTS
    assert not seen & {"coordinator.daemon", "coordinator.job", "coordinator.group"}


def test_the_rule_finds_what_it_is_for() -> None:
    assert imports("coordinator.daemon") >= {"coordinator.job", "slurm.select"}
    assert "coordinator.daemon" in imports("hooks.prolog")
    assert "coordinator.daemon" not in imports("hooks.prolog", at_import_only=True)
