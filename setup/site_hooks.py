"""What the site needs beyond the pages of docs/: README.md as home, links to files outside of docs/ as their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """README.md stands at the head of the site, with its links as they are seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8").replace('src="docs/', 'src="')

    def from_docs(link: re.Match[str]) -> str:
        where = link[1] if link[1].startswith(("docs/", "http", "#")) else f"../{link[1]}"
        return f"]({where.removeprefix('docs/')})"

    files.append(File.generated(config, "index.md", content=re.sub(r"\]\(([^)\s]+)\)", from_docs, text)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replace links to a folder, or a file outside of docs/, by its name: it is not a page."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def named(link: re.Match[str]) -> str:
        words, path = link[2], (folder / link[3].partition("#")[0]).resolve()
        if link[3].startswith(("http", "#")) or (path.is_relative_to(ROOT / "docs") and not path.is_dir()):
            return link[0]
        if path == ROOT / "README.md":
            return f"[{words}]({'../' * page.file.src_uri.count('/')}index.md{link[3].partition('README.md')[2]})"
        return f"{words} (`{path.relative_to(ROOT)}`)"

    return LINK.sub(named, markdown)
