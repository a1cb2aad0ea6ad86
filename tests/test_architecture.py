"""The rules of ARCHITECTURE.md, read from its table and held against every import there is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from askew.detectors import DETECTORS

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src" / "askew"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = {
    path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()
}
ROOMS -= {"__init__", "__main__", "__pycache__"}
ROOT = "askew"


def table(header):
    """The rows of the table under that header, as lists of the words in backquotes."""
    lines = (REPOSITORY / "ARCHITECTURE.md").read_text().splitlines()
    start = lines.index(header) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        cells = line.strip().strip("|").split("|")
        rows.append([re.findall(r"`([^`]+)`", cell) for cell in cells])
    return rows


ALLOWED = {room: set(imports) for (room,), imports in table("| room | may import |")}


def dotted(path):
    """The name a file is imported by."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    """The room of `askew.geometry.labels` is `geometry`; that of `askew` itself is the root."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else ROOT


def imported_modules(tree):
    """All of askew that a file imports: at its top, in functions, for type checkers, and by name as text."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == ROOT)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written out from `askew`, so that they can be searched for"
            if node.module and node.module.split(".")[0] == ROOT:
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"askew(\.[a-z_]+)+", str(node.value)):
            yield node.value


def parsed(path):
    return ast.parse(path.read_text(), str(path))


def test_every_room_has_its_row_and_every_row_its_room():
    assert set(ALLOWED) == ROOMS
    described = {re.sub(r"\.py$|/$", "", names[0]) for names, *_ in table("| room | what it is for |")}
    assert described == ROOMS
    assert set().union(*ALLOWED.values()) <= ROOMS


def test_the_rooms_have_no_circle():
    done, waiting = set(), dict(ALLOWED)
    while waiting:
        ready = {room for room, imports in waiting.items() if imports - {room} <= done}
        assert ready, f"these import each other: {sorted(waiting)}"
        done |= ready
        waiting = {room: imports for room, imports in waiting.items() if room not in ready}


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_a_file_imports_only_what_its_room_may(path):
    room = room_of(dotted(path))
    reached = {room_of(module) for module in imported_modules(parsed(path))}
    if room == ROOT:
        # The public door leads anywhere; only `python -m askew` runs the command.
        assert path.stem == "__main__" or "cli" not in reached
        return
    assert room in ALLOWED, f"ARCHITECTURE.md has no row for {room}"
    assert reached <= ALLOWED[room] | {room, ROOT}, (
        f"{dotted(path)} may not import {reached - ALLOWED[room] - {room, ROOT}}"
    )


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_nobody_reaches_a_room_through_the_package_itself(path):
    if room_of(dotted(path)) in (ROOT, "cli"):
        return
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module == ROOT:
            assert {alias.name for alias in node.names} <= ROOMS | {"__version__"}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == ROOT:
            assert node.attr == "__version__"


def test_nobody_imports_the_command():
    assert not any("cli" in imports for imports in ALLOWED.values())


@pytest.mark.parametrize("kind", DETECTORS)
def test_no_detector_imports_another(kind):
    modules = {module for module, _ in DETECTORS.values()}
    mine = DETECTORS[kind][0]
    path = PACKAGE.parent / Path(*mine.split(".")).with_suffix(".py")
    for module in imported_modules(parsed(path)):
        assert not any(module == other or module.startswith(f"{other}.") for other in modules - {mine})


def test_what_detectors_share_knows_none_of_them():
    modules = {module for module, _ in DETECTORS.values()}
    for path in (PACKAGE / "detectors").glob("*.py"):
        if path.stem != "__init__" and dotted(path) not in modules:
            reached = set(imported_modules(parsed(path)))
            assert not any(module.startswith(tuple(modules)) for module in reached), dotted(path)


@pytest.mark.parametrize("path", FILES, ids=dotted)
def test_nothing_that_is_read_can_run_code(path):
    unsafe = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for node in ast.walk(parsed(path)):
        where = f"{dotted(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & unsafe, where
        elif isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")[0]
            assert module not in unsafe, where
            names = {alias.name for alias in node.names}
            assert module != "torch" or not names & {"load", "save"}, where
            assert module != "numpy" or "load" not in names, where
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            called = f"{node.value.id}.{node.attr}"
            assert called not in ("torch.load", "torch.save", "torch.jit.load"), where
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("np.load", "numpy.load"):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            assert given.get("allow_pickle") == "False", where
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert ast.unparse(node.value) == "False", where


def run_without(blocked, code):
    """Run the code in a fresh Python in which importing those packages fails."""
    block = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\n"
    return subprocess.run([sys.executable, "-c", block + code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("room", ["images", "threshold", "storage", "report"])
def test_these_rooms_work_without_torch_scipy_and_scikit_learn(room):
    modules = [dotted(path) for path in FILES if room_of(dotted(path)) == room]
    assert modules
    done = run_without(["torch", "scipy", "sklearn"], "\n".join(f"import {module}" for module in modules))
    assert done.returncode == 0, done.stderr


def test_importing_the_package_loads_no_torch_and_no_numpy():
    done = run_without(["torch", "numpy", "scipy", "sklearn"], "import askew; print(askew.__version__)")
    assert done.returncode == 0, done.stderr
