"""Sentences of docstrings, comments, errors, help and pages, as far as a test can judge them.

It reads the packages and pages in `DONE`, which only ever grows.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST_WORDS = 30
DONE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "client/fedrec_client",
    "common/fedrec/*.py",
    "common/fedrec/algorithms",
    "common/fedrec/cli",
    "common/fedrec/data",
    "common/fedrec/evaluation",
    "common/fedrec/follower",
    "common/fedrec/identity",
    "common/fedrec/model",
    "common/fedrec/plan",
    "common/fedrec/privacy",
    "common/fedrec/protection",
    "common/fedrec/recommender",
    "common/fedrec/settings",
    "common/fedrec/training",
    "common/fedrec/updates",
    "common/fedrec/wire",
    "deploy",
    "deploy/README.md",
    "docs/*.md",
    "docs/*.py",
    "docs/*/*.md",
    "docs/how-to/runbook/*.md",
    "lab/fedrec_lab/*.py",
    "lab/fedrec_lab/audit",
    "lab/fedrec_lab/cli",
    "lab/fedrec_lab/comparison",
    "lab/fedrec_lab/demo",
    "lab/fedrec_lab/papers",
    "lab/fedrec_lab/reports",
    "lab/fedrec_lab/simulation",
    "lab/fedrec_lab/tuning",
    "server/fedrec_authority",
    "server/fedrec_server",
    "tools",
)
"""Folders with all below them, folders without (`/*.py`) and files."""
GENERATED = "v1"

_SECTION = re.compile(r"^ *(Args|Attributes|Raises|Returns|Yields|Examples?|Sources?):$")
_ENTRY = re.compile(r"^ *(?:[*`\w., ]+: |[-*] |\d+\. |\S.*\S {3,}\S|[a-z_]+  +)")
_END = re.compile(r"(?<!\b[A-Z])(?<!e\.g)(?<!i\.e)(?<! vs)(?<!Eq)(?<!Sec)[.!?:]['\")\]]*\s+|\n\n")
_MARKUP = re.compile(r"</|; \}")
_CODE = re.compile(r"`+[^`]*`+|\{[^{}]*\}|https?://\S+|\[[^\]]*\]\(|\$[^$]*\$")
TROUBLE = {
    "a party without a name": r"\b(?:nobody|somebody|anybody|everybody|who|whoever|whom)\b",
    "a turn of phrase": r"\b(?:so many|as much as is|go(?:es)? on|goes with|comes to|stands for|"
    r"held against|is good for|beside|at hand|for itself)\b",
    "says, for reports": r"\bsays\b(?! why)",
    "where, for if": r"^(?-i:Where)\b",
    "tell, for return": r"^(?:Tell (?:whether|which|what)|Return True)\b",
    "what, as a subject": r"^(?-i:Of what|What) [^?]*$",
    "a semicolon": r"; ",
}
_TROUBLE = {kind: re.compile(words, re.IGNORECASE) for kind, words in TROUBLE.items()}
_EMPTY = {
    "a",
    "an",
    "the",
    "this",
    "that",
    "its",
    "their",
    "of",
    "for",
    "in",
    "to",
    "from",
    "return",
    "yield",
    "tell",
    "whether",
    "is",
    "it",
    "one",
    "and",
    "with",
    "by",
    "as",
    "on",
}


def sentences(text: str) -> Iterable[str]:
    """Yield the sentences of a docstring, comment or message, without code in them."""
    blocks: list[str] = []
    section = False
    for line in text.splitlines():
        if _SECTION.match(line):
            section = True
            blocks.append("")
        elif not line.strip() or _ENTRY.match(line) or (section and not line.startswith(" " * 8)):
            blocks.append(line)
        elif blocks:
            blocks[-1] += " " + line.strip()
        else:
            blocks.append(line)
    for block in blocks:
        plain = _CODE.sub("code", block.strip())
        yield from (found.strip() for found in _END.split(plain) if found and found.strip())


def faults(text: str) -> list[str]:
    """Return what is wrong with the sentences of a text."""
    found = []
    for sentence in sentences(text):
        words = len(re.findall(r"[\w'-]*[A-Za-z][\w'-]*", sentence))
        if words > MOST_WORDS:
            found.append(f"{words} words: {sentence}")
        found += [f"{kind}: {sentence}" for kind, bad in _TROUBLE.items() if bad.search(sentence)]
    return found


def _doc(node: ast.AST) -> str | None:
    """Return a node's docstring if it is of a kind that has one."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return ast.get_docstring(node, clean=False) if isinstance(node, kinds) else None


def documented(tree: ast.AST) -> Iterable[tuple[int, str, str]]:
    """Yield line, name and docstring of all nodes with one."""
    for node in ast.walk(tree):
        if doc := _doc(node):
            yield getattr(node, "lineno", 1), getattr(node, "name", ""), doc


def messages(tree: ast.AST) -> Iterable[tuple[int, str]]:
    """Yield line and text of every string that reads as prose, formatted values left out."""
    inside = {id(node.body[0].value) for node in ast.walk(tree) if _doc(node)}  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node)}
            parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
            text = "".join(str(part) for part in parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in inside else node.value
        else:
            continue
        if (
            len(text.split()) > 3
            and re.search(r"[a-z]{2} [a-z]", text)
            and not _MARKUP.search(text)
        ):
            yield node.lineno, text


def comments(source: str) -> Iterable[tuple[int, str]]:
    """Yield line and text of comments; those on neighbouring lines are one."""
    last, text, line = -1, "", 1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and text:
            yield line, text
            text = ""
        line = line if text else token.start[0]
        last, text = token.start[0], f"{text} {token.string.lstrip('# ')}"
    if text:
        yield line, text


def repeats(name: str, doc: str) -> bool:
    """Tell whether a docstring is only the name in other words."""
    if not name or "\n\n" in doc:
        return False
    stem = re.compile(r"(?:ing|es|ed|e|s|d)$")
    words = {
        stem.sub("", word) for word in re.findall(r"[a-z0-9]+", doc.lower()) if word not in _EMPTY
    }
    known = {stem.sub("", word) for word in re.findall(r"[A-Z]?[a-z0-9]+", name)}
    return words <= {word.lower() for word in known}


def faults_of(source: str) -> list[str]:
    """Return what is wrong with a module's sentences, each with its line."""
    tree = ast.parse(source)
    docs = list(documented(tree))
    found = [f"{line}: repeats its name: {doc}" for line, name, doc in docs if repeats(name, doc)]
    texts = [(line, doc) for line, _, doc in docs] + list(messages(tree)) + list(comments(source))
    return found + [f"{line}: {fault}" for line, text in texts for fault in faults(text)]


def prose(page: str) -> str:
    """Return a page without fenced blocks, each cell of its tables as a paragraph."""
    return re.sub(r" *\| *", "\n\n", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def held() -> list[Path]:
    found: list[Path] = []
    for name in DONE:
        path = ROOT / name
        found += (
            [path] if path.is_file() else ROOT.glob(name) if "*" in name else path.rglob("*.py")
        )
    return sorted(path for path in found if path.parent.name != GENERATED)


@pytest.mark.parametrize("path", held(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert (faults_of(text) if path.suffix == ".py" else faults(prose(text))) == []


def test_what_is_done_stays_done() -> None:
    assert all((ROOT / name).exists() or list(ROOT.glob(name)) for name in DONE)


def test_the_glossary_gives_each_word_one_meaning() -> None:
    text = (ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    tables = [re.findall(r"^\| ([^|]+) \| ", part, re.M) for part in text.split("\n## ")[1:]]
    words = [[word for word in table if word != "term"] for table in tables]
    assert [sorted(table) for table in words] == words
    every = [word for table in words for word in table]
    assert len(every) > 60 and len(every) == len(set(every))
