"""`dtq new`: the project runs and passes its tests as it is; nothing is overwritten; names that would hurt are refused."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from cli.calls import Cli, clean_environment
from support.eventually import eventually
from support.processes import DTQ, Process

from dtq_core.errors import InvalidArgument
from dtq_local.project import make

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    ".dockerignore", ".gitignore", "Dockerfile", "README.md", "my_shop/__init__.py", "my_shop/tasks.py", "pyproject.toml",
    "taskqueue.yaml", "tests/test_tasks.py",
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> Cli:
    return Cli(tmp_path, clean_environment())


def test_a_project_runs_as_it_is(here: Cli) -> None:
    document = here.json("new", "my_shop")
    place = here.folder / "my_shop"
    assert {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} == FILES
    assert document["path"] == str(place) and len(document["files"]) == len(FILES)

    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=place, env=dict(here.env), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert tested.returncode == 0 and "5 passed" in tested.stdout, tested.stdout + tested.stderr

    inside = Cli(place, here.env)
    up = Process("up", [DTQ, "up", "--tasks", "my_shop.tasks", "--workers", "1"], here.env, place)
    try:
        eventually(lambda: "DTQ is up." in up.log(), 30, up.log)
        greeted = inside.wait(inside.submit("greet", '{"name": "Ann"}'), "succeeded")
        assert greeted["result"] == {"text": "Hello, Ann!"}
        assert inside.wait(inside.submit("greet", '{"name": ""}'), "dead_lettered")["attempt"] == 1
        inside.ok("down")
        assert not up.alive
    finally:
        up.kill()


def test_what_is_made_is_sound(here: Cli) -> None:
    """Nothing of a template is left, Python passes the linter, the manifest is a TaskQueue that a cluster would take."""
    shown = here.ok("new", "my_shop")
    assert "cd my_shop" in shown and "dtq up --tasks my_shop.tasks" in shown
    place = here.folder / "my_shop"
    for name in FILES:
        assert "PROJECT" not in (place / name).read_text(), name
    assert tomllib.loads((place / "pyproject.toml").read_text())["project"]["name"] == "my-shop"
    manifest = (place / "taskqueue.yaml").read_text()
    assert "apiVersion: dtq.dev/v1alpha1\nkind: TaskQueue\nmetadata:\n  name: my-shop\n" in manifest
    assert "taskModules: [my_shop.tasks]" in manifest
    assert re.search(r"^ARG DTQ_IMAGE\nFROM \$\{DTQ_IMAGE\}$", (place / "Dockerfile").read_text(), re.MULTILINE)
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E,F,I,B", "--line-length", "120", "."]
    checked = subprocess.run(ruff, cwd=place, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout


def test_nothing_is_overwritten(here: Cli) -> None:
    (here.folder / "shop").mkdir()
    (here.folder / "shop" / "precious").write_text("mine")
    assert "shop is here already" in here.refused("INVALID_ARGUMENT", "new", "shop", status=2)
    (here.folder / "cafe").symlink_to("nowhere")
    here.refused("INVALID_ARGUMENT", "new", "cafe", status=2)
    (here.folder / "deli").write_text("a file")
    here.refused("INVALID_ARGUMENT", "new", "deli", status=2)
    assert [path.name for path in (here.folder / "shop").iterdir()] == ["precious"]


@pytest.mark.parametrize(
    "name, words",
    [
        ("my-shop", "my_shop, perhaps"),
        ("My Shop", "my_shop, perhaps"),
        ("2shop", "; shop, perhaps"),
        ("_shop", "no name for a project"),
        ("shop_", "no name for a project"),
        ("", "no name for a project"),
        ("größe", "no name for a project"),
        ("../shop", "no name for a project"),
        ("a" * 41, "no name for a project"),
        ("shop\n", "no name for a project"),
        ("\x1b[31m", "no name for a project"),
        ("class", "a word of Python"),
        ("match", "a word of Python"),
        ("json", "hide Python's own module json"),
        ("tests", "a directory of the project"),
        ("dtq", "names with dtq"),
        ("dtq_core", "names with dtq"),
        ("redis", "an installed package"),
        ("pytest", "an installed package"),
    ],
)
def test_names_that_would_hurt_are_refused(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(name, tmp_path)
    assert words in caught.value.message and caught.value.message.isprintable()
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be made here"):
        make("shop", tmp_path / "nowhere")


def test_the_templates_are_in_the_wheel(tmp_path: Path) -> None:
    """What is installed elsewhere can make projects too."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    templates = ROOT / "runtime" / "dtq_local" / "templates"
    wanted = {f"dtq_local/{path.relative_to(templates.parent)}" for path in templates.rglob("*.tmpl")}
    assert len(wanted) == len(FILES) and wanted <= packed
