"""The documents: what they say is compared with the source, and what they tell a reader to type is typed."""
import errno
import os
import re

import pytest

from place import ROOT

DOCS = ROOT / "docs"
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "ms": 1, "s": 1000}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def rows(text: str, columns: int) -> list[list[str]]:
    """Rows of all tables in a page that have so many columns, headings left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if len(cells) == columns and not set(line) <= set("|- "):
            found.append(cells)
    return found


# ---- limits.md ------------------------------------------------------------------------------------------------------------------


def constant(name: str, path: str) -> int:
    """The value of a #define that is a number, or shifts, sums and products of numbers."""
    (value,) = re.findall(rf"^#define {name}\s+(.*?)\s*(?:/\*.*)?$", (ROOT / path).read_text(), re.M)
    value = re.sub(r"UINT64_C\((\d+)\)", r"\1", re.sub(r"\b(\d+)[uUlL]+\b", r"\1", value))
    assert re.fullmatch(r"[\d\s()<*+-]+", value), f"{name} in {path} is {value}"
    return eval(value)


LIMITS = [row for row in rows(page("limits.md"), 5) if row[0] != "limit"]


@pytest.mark.parametrize("row", LIMITS, ids=[f"{row[2].strip('`')}-{row[3].strip('`')}" for row in LIMITS])
def test_a_limit_is_what_the_page_says(row):
    _, value, name, path, why = row
    number, _, unit = value.partition(" ")
    base, _, power = number.partition("^")
    assert int(base) ** int(power or 1) * UNITS[unit] == constant(name.strip("`"), path.strip("`"))
    assert why


def test_the_page_of_limits_has_its_tables():
    assert len(LIMITS) > 50


# ---- troubleshooting.md ---------------------------------------------------------------------------------------------------------

TROUBLES = page("troubleshooting.md")
LITERAL = r'"((?:\\.|[^"\\\n])*)"'


def spoken() -> str:
    """All that the programs can say: the literals of the source, those that follow each other joined, conversions blanked."""
    texts = [os.strerror(code) for code in errno.errorcode]
    for path in sorted([*(ROOT / "src").rglob("*.[ch]"), ROOT / "python" / "forebay" / "_forebay.c"]):
        if not path.name.endswith(("_test.c", "_suite.c")):
            source = re.sub(r'"\s*PRI\w+\s*"', "u", path.read_text())  # as in "%" PRIu64 " bytes"
            texts.append(re.sub(r'"\s*"', "", source).replace('\\"', "'"))
    return re.sub(r"\s+", " ", re.sub(r"%[-.*\d]*[hlz]*[a-zX]", " ", "\n".join(texts)))


def test_each_error_code_is_explained_and_no_other():
    table = re.findall(r'^\tX\((E\w+), (\d+), "(.*?)"\)', (ROOT / "src" / "base" / "error.h").read_text(), re.M)
    told = [tuple(row[:3]) for row in rows(TROUBLES, 4) if row[0].startswith("FOREBAY_")]
    assert len(table) > 10
    assert told == [(f"FOREBAY_{name}", number, meaning) for name, number, meaning in table]
    assert not [row[0] for row in rows(TROUBLES, 4) if row[0].startswith("FOREBAY_") and len(row[3]) < 20]


def test_the_public_header_has_the_same_codes():
    (body,) = re.findall(r"enum forebay_code \{(.*?)\}", (ROOT / "include" / "forebay" / "forebay.h").read_text(), re.S)
    number, public = 0, []
    for name, given in re.findall(r"(FOREBAY_E\w+)(?: = (\d+))?", body):
        number = int(given) if given else number + 1
        public.append((name, str(number)))
    assert public == [tuple(row[:2]) for row in rows(TROUBLES, 4) if row[0].startswith("FOREBAY_")]


def test_codes_that_the_page_names_are_codes():
    own = set(re.findall(r"^\| (FOREBAY_E\w+)", TROUBLES, re.M))
    known = own | set(errno.errorcode.values())
    assert not {code for code in re.findall(r"\b(?:FOREBAY_)?E[A-Z0-9]{3,}\b", TROUBLES)} - known - {"ERROR_TABLE"}


def test_words_that_the_page_quotes_are_said_in_the_source():
    said = spoken()
    quoted = [words for n in (2, 3) for row in rows(TROUBLES, n) for words in re.findall(r"`([^`]+)`", row[0])]
    fragments = [f.strip(" ,:;") for text in quoted for f in re.split(r"\.\.\.|\b[A-Z0-9]+\b|[()\":]", text)]
    fragments = [f for f in fragments if len(f.split()) > 1]
    assert len(quoted) > 50 and len(fragments) > 50
    assert not [f for f in fragments if f not in said], [f for f in fragments if f not in said]
