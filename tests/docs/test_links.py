"""Links of the pages lead somewhere: to files of the repository and headings of pages; no network is asked."""

from __future__ import annotations

from urllib.parse import unquote

from tests.docs.pages import DOCS, PAGES, ROOT, anchors_of, links_of, name_of
from tests.offenders import every

LINKS = [(page, link) for page in PAGES for link in dict.fromkeys(links_of(page))]


def problem(page, link):
    """Return what is wrong with a link, nothing where it is right or leads out of the repository."""
    if link.startswith(("https://", "mailto:")):
        return None
    path, _, anchor = unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists():
        return "no such file"
    if not target.is_relative_to(ROOT):
        return "outside of the repository"
    if page.is_relative_to(DOCS) and not target.is_relative_to(DOCS):
        return "the site has the pages below docs/ alone: name the file, without a link"
    if anchor and target.suffix == ".md" and anchor not in anchors_of(target):
        return f"no such heading; there are {', '.join(sorted(anchors_of(target)))}"
    return None


def test_links_were_found():
    assert len(LINKS) > 40 and {name_of(page) for page, _ in LINKS} >= {"README.md", "docs/index.md"}


@every("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page):
    wrong = [f"{link}: {what}" for link in links_of(page) if (what := problem(page, link))]
    assert wrong == []


@every(
    ("link", "said"),
    [
        ("docs/absent.md", "no such file"),
        ("docs/architecture.md#no-such-heading", "no such heading"),
        ("#two-commands-and-more", "no such heading"),
        ("../outside", "no such file"),
        ("/etc", "outside"),
    ],
)
def test_a_wrong_link_is_found(link, said):
    assert said in problem(ROOT / "README.md", link)


def test_a_page_of_the_site_does_not_link_out_of_it():
    assert "name the file" in problem(DOCS / "architecture.md", "../README.md")
    assert problem(DOCS / "architecture.md", "https://example.org/#x") is None
