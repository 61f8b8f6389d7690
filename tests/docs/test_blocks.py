"""Every block of code of the README and the documentation runs as it stands there.

The blocks of one page run in their order, those of Python in one namespace, in an empty folder beside links to what a
clone has. See :mod:`tests.docs.pages` for those that are marked as slow, or as needing what is not here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from typer.main import get_command

from roller.cli.main import app, main
from tests.docs.pages import LANGUAGES, PAGES, ROOT, RUN, Block, blocks_of, name_of, tokens_of
from tests.offenders import every

if sys.version_info >= (3, 11):
    import tomllib

pytest.importorskip("tvm")

BLOCKS = {page: blocks_of(page) for page in PAGES}
QUICK = [p for p in PAGES if any(b.language in RUN and not b.takes_long and not b.is_not_run for b in BLOCKS[p])]
LONG = [p for p in PAGES if any(b.language in RUN and b.takes_long for b in BLOCKS[p])]
NOT_RUN = [b for p in PAGES for b in BLOCKS[p] if b.is_not_run]
#: What of a clone the blocks name.
_LINKED = ("benchmarks", "examples", "hardware_specs", "docs", "microbench")
#: Words that set up a machine, and are checked instead of run.
_SET_UP = ("make", "pip", ".", "cd", "git")
#: Programs that run in a process of their own.
_RUN_APART = {"python": sys.executable, "python3": sys.executable, "cp": "cp"}
_ENVIRONMENT = re.compile(r"[A-Z_]+=\S*")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Return the cache that all pages of this process share: many compile the same kernel."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def clone(tmp_path, kernels, monkeypatch):
    """Return a folder to run blocks in; it stands for the clone."""
    for name in _LINKED:
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("ROLLER_CACHE_DIR", str(kernels))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(blocks):
    namespace = {"__name__": "__main__"}
    for block in blocks:
        if block.language == "python":
            # Line numbers of a failure are those of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), namespace)
        elif block.language == "sh":
            for words in block.commands():
                run_command(block, words)


def run_command(block, words):
    """Run one command line: `roller` within this process, others in their own, what sets up a machine not at all."""
    while _ENVIRONMENT.fullmatch(words[0]):
        words = words[1:]
    if words[0] in _SET_UP:
        check_set_up(block, words)
    elif words[0] == "roller":
        with pytest.raises(SystemExit) as done:
            main(words[1:])
        assert done.value.code == 0, f"{block.place}: {' '.join(words)}: exit code {done.value.code}"
    elif words[0] in _RUN_APART:
        program = _RUN_APART[words[0]]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run([program, *words[1:]], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{block.place}: {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    else:
        pytest.fail(f"{block.place}: {words[0]}: not known how to run it. Give its block the title 'Needs ...'.")


def check_set_up(block, words):
    """Hold `make TARGET` to the Makefile, and the extras of `pip install` to pyproject.toml."""
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), f"{block.place}: make {words[1:]}: no such target"
    if words[0] == "pip":
        project = (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]")[2]
        extras = re.findall(r"^([\w-]+) = \[", project.partition("\n[project.")[0], re.MULTILINE)
        asked = {e for w in words if (m := re.fullmatch(r"(?:\.|roller)\[([\w,-]+)\]", w)) for e in m[1].split(",")}
        assert asked <= set(extras), f"{block.place}: {' '.join(words)}: no such extra"


def check_form(block):
    """Check a block that is not run: its Python compiles, its commands have the verbs and options they name."""
    if block.language == "python":
        compile(block.text, block.place, "exec")
        return
    for words in block.commands():
        if words[0] in _SET_UP:
            check_set_up(block, words)
        elif words[0] == "roller":
            parse(words[1:])


def parse(words):
    """Parse the words of a `roller` command as running it would, and run nothing."""
    command = get_command(app)
    while hasattr(command, "commands"):
        assert words and words[0] in command.commands, f"roller {' '.join(words)}: no such verb"
        command, words = command.commands[words[0]], words[1:]
    command.make_context(command.name, list(words))


@pytest.mark.parametrize("page", QUICK, ids=name_of)
def test_the_blocks_of_a_page_run(page, clone):
    run(b for b in BLOCKS[page] if not b.takes_long and not b.is_not_run)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # a page shows how servers fork
@pytest.mark.parametrize("page", LONG, ids=name_of)
def test_the_blocks_of_a_page_run_with_those_that_take_long(page, clone):
    run(b for b in BLOCKS[page] if not b.is_not_run)


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.title == "Prints" for b in BLOCKS[p])], ids=name_of)
def test_what_a_page_says_that_its_blocks_print(page, clone):
    spec = importlib.util.spec_from_file_location("printed", ROOT / "docs" / "printed.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    text = page.read_text(encoding="utf-8")
    assert text == writer.with_printed(text), f"run `python docs/printed.py {name_of(page)}`"


@pytest.mark.parametrize("block", NOT_RUN, ids=lambda b: b.place)
def test_a_block_that_is_not_run_has_the_right_form(block):
    check_form(block)
    pytest.skip(f"its form is right; it is not run: {block.title}")


@every("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page):
    """A block without a language, or by indentation alone, would be shown and never run."""
    for block in BLOCKS[page]:
        assert block.language in LANGUAGES, f"{block.place}: expected one of {', '.join(LANGUAGES)}"
        if block.language == "yaml":
            list(yaml.safe_load_all(block.text))
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml" and sys.version_info >= (3, 11):
            tomllib.loads(block.text)
    indented = [t.map[0] + 1 for t in tokens_of(page.read_text(encoding="utf-8")) if t.type == "code_block"]
    assert indented == [], f"{name_of(page)}: blocks by indentation at these lines; fence them and name the language"


def test_a_wrong_block_is_found(clone):
    def block(text, language="sh", title=""):
        return Block(ROOT / "README.md", 7, language, title, text)

    for text, said in (
        ("frobnicate x", "not known how to run"),
        ("roller devices --show no-such-device", "exit code 1"),
        ("make no-such-target", "no such target"),
        ("pip install '.[no-such-extra]'", "no such extra"),
    ):
        with pytest.raises((AssertionError, pytest.fail.Exception), match=said):
            run([block(text)])
    with pytest.raises(ZeroDivisionError) as caught:
        run([block("x = 1\n", "python"), block("\nx / 0\n", "python")])
    assert caught.traceback[-1].lineno + 1 == 8  # as counted on the page
    with pytest.raises(AssertionError, match="no such verb"):
        check_form(block("roller fly --device x"))
    with pytest.raises(Exception, match="No such option"):
        check_form(block("roller devices --no-such-option"))
    with pytest.raises(SyntaxError):
        check_form(block("x = ", "python"))
