"""What MkDocs lacks for this site: generated reference, repository files as pages, and llms.txt.

- A line `<!-- generated: NAME -->` becomes that part of the reference (`reference.py`).
- A link from a page to a repository file outside docs/ leads to a page that shows the file, since
  the site knows no address of the repository. Markdown files, such as model cards, become pages.
- Every page is also written as Markdown beside its HTML, and `llms.txt` lists them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from markdownify import markdownify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

from docs.hooks import reference

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?(?:\s+\"[^\"]*\")?\))")
GENERATED = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)
MAX_SHOWN_BYTES = 200_000
"""A larger repository file is offered as it is, not shown on a page."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".jsonl": "json"}
PUBLISHED = {
    "autoj_reward/models/default_judge/README.md": "judges/default_judge.md",
    "autoj_reward/models/default_scalar/README.md": "judges/default_scalar.md",
    "autoj_reward/models/scenario_classifier/README.md": "train/scenario_classifier.md",
    "CHANGELOG.md": "reference/changelog.md",
}
"""Repository files that are pages of the navigation: path in the repository, path in the site."""

_site_paths: dict[str, str] = {}
"""Path in the site of every repository file that is shown there."""
_markdown: dict[str, str] = {}
"""Final Markdown of each page, by its path in the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the published files, and a page for each other repository file that a page links to."""
    _site_paths.clear()
    _markdown.clear()
    _site_paths.update({f"docs/{file.src_uri}": file.src_uri for file in files})
    for path, site_path in PUBLISHED.items():
        _site_paths[path] = site_path
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, site_path, content=text))
    for file in list(files.documentation_pages()):
        own_path = repository_path(file.src_uri)
        for _, link, _ in LINK.findall(file.content_string):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(own_path), link))
            if path not in _site_paths and not path.startswith("../") and (ROOT / path).is_file():
                _site_paths[path] = add_repository_file(path, files, config)
    return files


def add_repository_file(path: str, files: Files, config: MkDocsConfig) -> str:
    """Add a repository file to the site and return its path there."""
    file = ROOT / path
    if file.suffix not in LANGUAGES or file.stat().st_size > MAX_SHOWN_BYTES:
        files.append(File.generated(config, f"files/{path}", abs_src_path=str(file)))
        return f"files/{path}"
    text = file.read_text(encoding="utf-8").rstrip()
    fence = "`" * 4
    page = f"# {file.name}\n\n`{path}`\n\n{fence}{LANGUAGES[file.suffix]}\n{text}\n{fence}\n"
    site_path = f"files/{path}.md"
    files.append(File.generated(config, site_path, content=page))
    return site_path


def repository_path(site_path: str) -> str:
    """Return the path in the repository of what the site has at this path."""
    for path, published in PUBLISHED.items():
        if published == site_path:
            return path
    return f"docs/{site_path}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the generated parts and lead links to repository files to their pages."""
    site_path = page.file.src_uri
    markdown = GENERATED.sub(lambda match: reference.PAGES[match[1]](), markdown)
    if not site_path.startswith("files/"):
        markdown = site_links(markdown, site_path)
    _markdown[site_path] = markdown
    return markdown


def site_links(markdown: str, site_path: str) -> str:
    """Return a page's text with its links to files outside docs/ as links within the site."""
    own_path = repository_path(site_path)

    def site_link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(own_path), match[2]))
        if path not in _site_paths:
            return match[0]  # MkDocs itself names a link that leads nowhere
        target = posixpath.relpath(_site_paths[path], posixpath.dirname(site_path) or ".")
        return f"{match[1]}{target}{match[3]}"

    return LINK.sub(site_link, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep the Markdown of a page whose text is made from docstrings: that of its HTML."""
    site_path = page.file.src_uri
    if re.search(r"^::: ", _markdown[site_path], re.MULTILINE):
        made = markdownify(html, heading_style="ATX", strip=["a"]).replace("¶", "")
        _markdown[site_path] = f"# {page.title}\n\n" * (not made.lstrip().startswith("#")) + made
    return html


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remember the navigation: llms.txt lists the pages in its order."""
    config.extra["autoj_nav"] = nav
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write every page as Markdown beside its HTML, and llms.txt."""
    site = Path(config.site_dir)
    for site_path, markdown in _markdown.items():
        file = site / site_path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(markdown.strip() + "\n", encoding="utf-8")
    nav: Navigation = config.extra.pop("autoj_nav")
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    sections = [(item.title, item.children) for item in nav.items if isinstance(item, Section)]
    for title, items in [("Start", nav.items), *sections]:
        lines += [f"## {title}", ""]
        for page in items:
            if not isinstance(page, Page):
                continue  # a section, or a page that is missing, which MkDocs has named
            about = first_sentence(_markdown[page.file.src_uri])
            link = f"- [{page.title}]({page.file.src_uri})"
            lines.append(f"{link}: {about}" if about else link)
        lines.append("")
    (site / "llms.txt").write_text("\n".join(lines), encoding="utf-8")


def first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's first paragraph, as plain text, or "" without one."""
    prose = re.sub(r"^(`{3,}).*?^\1`*$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    for block in re.split(r"\n\s*\n", prose):
        text = " ".join(block.split())
        if text and not re.match(r"[#|<!\[>:*-]|\d+\.", text):
            plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
            return re.split(r"(?<=[.!?])\s(?=[A-Z`])", plain, maxsplit=1)[0]
    return ""
