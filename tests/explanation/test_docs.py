"""The page on explanations shows what is printed today, and its Python runs."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("explain_example", DOCS / "explain_example.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (DOCS / "explain.md").read_text(encoding="utf-8")
    assert page.count("$ roller ") == 4 and page == module.page(), "run `python docs/explain_example.py`"


def test_its_python_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "explain.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code.replace('device="v100")', 'device="v100", cache=False)'), "explain.md", "exec"), {})
    assert "Under the roofline" in capsys.readouterr().out
