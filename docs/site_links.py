"""What the site needs besides the pages: mkdocs calls these hooks.

Pages link to the rest of the repository, which is not on the site: figures of results/ are brought along, and other
links become plain text.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_FIGURE = re.compile(r"(!\[[^\]]*\])\(\.\./(results/[^)]*\.png)\)")
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./[^)]*\)")
_ROOT = Path(__file__).parents[1]


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the figures of results/ that pages show."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in Path(config.docs_dir).glob("*.md"))
    for name in sorted({name for _, name in _FIGURE.findall(pages)}):
        files.append(File.generated(config, name, abs_src_path=str(_ROOT / name)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return a page whose links lead to what is on the site."""
    return _OUTSIDE.sub(r"\1", _FIGURE.sub(r"\1(\2)", markdown))
