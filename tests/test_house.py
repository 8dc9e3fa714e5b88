"""The rules of the house that no linter knows: where things live, what documents must agree, what code must not do."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dtq_api.access import KeySettings
from dtq_core import keys
from dtq_core.config import Settings

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = ROOT / "runtime"
LUA = RUNTIME / "dtq_core" / "store" / "lua"
HEADER = ("Does", "KEYS", "ARGV", "Returns", "Publishes")
MAX_SCRIPT_LINES, MAX_PRELUDE_LINES = 80, 150
NOT_OURS = {".git", ".venv", ".dtq", "__pycache__", "node_modules", "dist", "build"}


def tree(folder: Path = ROOT) -> Iterator[Path]:
    """Every file of the project, without what tools and environments put beside it."""
    for path in sorted(folder.iterdir()):
        if path.name in NOT_OURS or path.name.endswith(("_cache", ".egg-info")) or path.name == ".hypothesis":
            continue
        if path.is_dir():
            yield from tree(path)
        elif path.is_file():
            yield path


def python(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in tree(folder) if path.suffix == ".py"]


def scripts() -> list[Path]:
    return sorted(LUA.glob("*.lua"))


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# ------------------------------------------------------------------------------------------------ layout


def test_the_operator_folder_never_shadows_the_standard_library():
    assert not (ROOT / "operator" / "__init__.py").exists()
    assert not Path(str(importlib.import_module("operator").__file__)).is_relative_to(ROOT)


def test_no_file_points_out_of_the_project():
    outside = "../" + "shared"
    assert [short(path) for path in tree() if outside in path.read_text(errors="ignore")] == []


def test_tests_have_no_packages():
    assert [short(path) for path in tree(ROOT / "tests") if path.name == "__init__.py"] == []


@pytest.mark.parametrize("package", sorted(p.parent.name for p in RUNTIME.glob("*/__init__.py")))
def test_every_package_is_typed_for_its_users(package):
    assert (RUNTIME / package / "py.typed").exists()


@pytest.mark.parametrize("path", python(RUNTIME, ROOT / "examples"), ids=short)
def test_every_module_says_what_it_is(path):
    source = path.read_text()
    assert not source.strip() or ast.get_docstring(ast.parse(source))


# ------------------------------------------------------------------------------------------------ scripts


def test_there_are_scripts():
    assert scripts()


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_every_script_has_its_header(path):
    head = []
    for line in path.read_text().splitlines():
        if not line.startswith("--"):
            break
        head.append(line)
    named = [match[1] for line in head if (match := re.match(r"-- (\w+): \S", line))]
    wanted = HEADER[:1] if path.stem.startswith("_") else HEADER
    assert [name for name in named if name in HEADER][: len(wanted)] == list(wanted)


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_every_script_is_short(path):
    code = [line for line in path.read_text().splitlines() if line.strip() and not line.strip().startswith("--")]
    assert len(code) <= (MAX_PRELUDE_LINES if path.stem.startswith("_") else MAX_SCRIPT_LINES)


# ------------------------------------------------------------------------------------------------ documents


@pytest.mark.contract("C2.20")
def test_the_page_of_keys_is_the_docstring_of_keys():
    assert (ROOT / "docs" / "redis-schema.md").read_text().strip() == str(keys.__doc__).strip()


@pytest.mark.contract("C2.20", "D19")
def test_every_key_that_code_can_name_is_in_the_table():
    names = {name for name in vars(keys.Keys) if not name.startswith("_") and name != "prefix"}
    sample = keys.Keys("dtq")
    placeholders = {
        "stream": ("<queue>", "<0-9>"),
        "idempotency": ("<queue>", "<key>"),
        "fetch": ("<worker_id>", "<lane>"),
    }
    for name in names:
        value = getattr(sample, name)
        if callable(value):
            arguments = placeholders.get(name) or (
                "<worker_id>"
                if name in ("worker", "nudge")
                else "<task_id>"
                if name in ("task", "result")
                else "<queue>",
            )
            value = value(*arguments)
        assert f"`{value}`" in str(keys.__doc__), value


@pytest.mark.contract(*[f"C10.{n:02}" for n in range(1, 26)])
@pytest.mark.parametrize("name", list(Settings.model_fields))
def test_every_setting_is_described_and_documented(name):
    assert Settings.model_fields[name].description
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert re.search(rf"\bDTQ_{name.upper()}\b", page), f"docs/configuration.md does not name DTQ_{name.upper()}"


def test_the_page_of_settings_names_no_variable_that_does_not_exist():
    known = {f"DTQ_{name.upper()}" for name in (*Settings.model_fields, *KeySettings.model_fields)}
    named = set(re.findall(r"^\| `(DTQ_[A-Z_]+)`", (ROOT / "docs" / "configuration.md").read_text(), re.MULTILINE))
    assert named and named <= known


@pytest.mark.parametrize("page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=short)
def test_links_between_pages_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


# ------------------------------------------------------------------------------------------------ security

GUARDED = [RUNTIME / name for name in ("dtq_tasks", "dtq_core", "dtq_scheduler", "dtq_worker")] + [ROOT / "examples"]
MODULES = {
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "subprocess",
    "pty",
    "code",
    "codeop",
    "ctypes",
    "runpy",
}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
OS_CALLS = re.compile(r"(system|popen|exec[lv]\w*|spawn\w*|fork\w*|posix_spawn\w*)")


@pytest.mark.contract("C13.01", "C13.02", "C13.03", "C14.08")
@pytest.mark.parametrize("path", python(*GUARDED), ids=short)
def test_nothing_that_runs_tasks_can_run_text(path):
    """No eval, exec, pickle, subprocess or shell; modules are imported by name in one place, from the configuration."""
    for node in ast.walk(ast.parse(path.read_text())):
        where = f"{short(path)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & MODULES, where
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in MODULES, where
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in CALLS, where
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert not (node.value.id == "os" and OS_CALLS.fullmatch(node.attr)), where
            if (node.value.id, node.attr) == ("importlib", "import_module"):
                assert path.name == "registry.py", where
        elif isinstance(node, ast.keyword):
            assert node.arg != "shell", where


@pytest.mark.parametrize("path", [p for p in python(ROOT / "tests") if p.name.startswith("test_")], ids=short)
def test_no_test_sleeps(path):
    """A test that sleeps is slow on a fast machine and wrong on a slow one; handlers that a test runs may."""
    for test in ast.walk(ast.parse(path.read_text())):
        if isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef)) and test.name.startswith("test_"):
            calls = [ast.unparse(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)]
            assert "time.sleep" not in calls, f"{short(path)}:{test.lineno}"
