"""The promises of CONTRIBUTING about who may import whom, read from the source."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from nngk import _HOMES as HOMES  # a public name counts as its module

SOURCE = Path(__file__).parents[1] / "src" / "nngk"
MODULES = sorted(SOURCE.rglob("*.py"))
FLAT = {"errors", "files", "progress", "device", "accel", "defaults", "ranks"}  # what is shared and has no room
# What each room may import besides itself and FLAT.
MAY_IMPORT = {
    "kernel": set(),
    "search": set(),
    "data": set(),
    "metrics": {"search"},
    "networks": {"data"},
    "bank": {"kernel", "search"},
    "losses": {"kernel", "bank", "search", "data"},
    "model": {"kernel", "bank", "search", "data", "networks", "metrics"},
    "sklearn": {"kernel", "search", "model"},
    "training": {"kernel", "bank", "losses", "search", "data", "networks", "metrics", "model"},
    "gallery": {"model", "kernel", "search", "data"},
    "web": {"gallery", "model", "networks", "data"},
    "report": {"model", "metrics", "data", "kernel"},
    "experiments": {"kernel", "bank", "losses", "search", "data", "networks", "metrics", "model", "training"},
}
SKINS = {"cli", "__init__", "__main__", "moved"}  # these may import everything
# A command line imports late so that its help is instant; everything else may import only these late.
HEAVY_OR_OPTIONAL = (
    "nngk.kernel.triton",
    "nngk.data.resample_triton",
    "nngk.networks.fused",
    "nngk.networks.backbones",
    "nngk.search.cuda",
    "nngk.search.adapters",
)


def room(module: Path) -> str:
    first = module.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported(node: ast.AST) -> list[str]:
    """The modules of the house that an import statement names, as dotted paths."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names if alias.name.split(".")[0] == "nngk"]
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "nngk":
        if node.module == "nngk":
            return [HOMES.get(alias.name, f"nngk.{alias.name}") for alias in node.names]
        return [str(node.module)]
    return []


def imports(module: Path) -> list[str]:
    return [name for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))) for name in imported(node)]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(SOURCE)))
@pytest.mark.thorough
def test_a_room_imports_only_what_it_may(module):
    home = room(module)
    if home in SKINS:
        return
    allowed = {home} | FLAT if home in FLAT else {home} | FLAT | MAY_IMPORT[home]
    wrong = [name for name in imports(module) if [*name.split("."), "__version__"][1] not in allowed | {"__version__"}]
    assert not wrong, f"{module.relative_to(SOURCE)} imports {wrong}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(SOURCE)))
def test_no_import_inside_a_function_hides_a_cycle(module):
    """Importing late is for optional and heavy packages; within the house it would hide a cycle."""
    if room(module) in SKINS:
        return
    tree = ast.parse(module.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {name for function in functions for node in ast.walk(function) for name in imported(node)}
    wrong = [name for name in late if not name.startswith(HEAVY_OR_OPTIONAL)]
    assert not wrong, f"{module.relative_to(SOURCE)} imports {wrong} inside a function"


def test_the_rooms_are_those_of_the_plan():
    assert {room(module) for module in MODULES} == FLAT | set(MAY_IMPORT) | SKINS


def test_only_the_command_line_imports_the_server():
    """Its packages are optional."""
    users = {room(module) for module in MODULES if any(name.startswith("nngk.web") for name in imports(module))}
    assert users == {"cli", "web"}


def test_no_two_modules_have_one_name():
    names = [m.stem for m in MODULES if room(m) != "__main__" and m.stem != "__init__"]
    doubled = [name for name, count in Counter(names).items() if count > 1]
    assert not doubled
