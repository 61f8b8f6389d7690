"""Files of the live page: files shared with reports, its own scripts and styles, and the bundled editor."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

#: Scripts in loading order; later ones use definitions of earlier ones.
_SHARED = ("dom.js", "icicle.js", "table.js", "charts.js")
_OWN = (
    "connection.js", "live_state.js", "source_text.js", "source_editor.js", "source_panel.js", "where_panel.js",
    "batch_dial.js", "device_panel.js", "change_panel.js", "difference_panel.js", "messages.js", "live_page.js",
)  # fmt: skip
#: CodeMirror, bundled by ``make page`` from ``page/``; it defines ``CodeMirror``.
_BUNDLE = "codemirror.js"
_JAVASCRIPT, _CSS, _HTML = "text/javascript", "text/css", "text/html"


def page_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the content and MIME type of each file of the page, by URL path."""
    scripts = [_report_file(name) for name in _SHARED] + [_own_file(name) for name in _OWN]
    return {
        "/": (_own_file("page.html").encode(), _HTML),
        "/page.js": ("\n".join(scripts).encode(), _JAVASCRIPT),
        "/page.css": ((_report_file("page.css") + _own_file("live_page.css")).encode(), _CSS),
        "/codemirror.js": (_own_file(_BUNDLE).encode(), _JAVASCRIPT),
    }


def _report_file(name: str) -> str:
    return resources.files("roller.page").joinpath(name).read_text("utf-8")


def _own_file(name: str) -> str:
    return resources.files("roller.server").joinpath("page", name).read_text("utf-8")
