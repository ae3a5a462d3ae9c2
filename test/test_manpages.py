"""The manual: every command, option, setting and public call has its place, and the generator refuses what has not."""
import re
import subprocess

import pytest

from place import FOREBAY, ROOT

MAN = ROOT / "docs" / "man"
VERBS = re.findall(r"^\tX\((\w+),", (ROOT / "src" / "cli" / "verbs.h").read_text(), re.M)
SETTINGS = re.findall(r"^\tX\((\w+),", (ROOT / "src" / "daemon" / "config.h").read_text(), re.M)
CALLS = re.findall(r"^[a-z].*\b(forebay_\w+)\(", (ROOT / "include" / "forebay" / "forebay.h").read_text(), re.M)


def bare(text: str) -> str:
    return re.sub(r"\\f[BIPR]|\\&", "", text).replace("\\-", "-")


def page(name: str) -> str:
    """A page's text without the marks of roff."""
    return bare((MAN / name).read_text())


def generate(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([ROOT / "tools" / "manpages", *words], capture_output=True, text=True)


@pytest.mark.parametrize("verb", VERBS)
def test_each_option_of_a_verb_is_in_its_page(verb):
    shown = subprocess.run([FOREBAY, verb, "--help"], capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"^ .*?(--[a-z]+)", shown, re.M)) - {"--usage"}
    text = page(f"forebay-{verb}.1")
    assert options and not [option for option in options if option not in text]
    assert f"forebay-{verb} (1)" in page("forebay.1")


def test_each_setting_is_in_its_page():
    assert len(SETTINGS) > 5
    assert not [name for name in SETTINGS if f"\n.TP\n.B {name}\n" not in page("forebayd.conf.5")]


def test_each_public_call_gets_a_page(tmp_path):
    assert generate(tmp_path).returncode == 0
    assert len(CALLS) > 30
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["forebay.3", *(f"{call}.3" for call in CALLS)])
    text = (tmp_path / "forebay_save_begin.3").read_text()
    assert "struct forebay_save_options {" in text and "struct forebay_attribute {" in text and ".SH DESCRIPTION" in text
    assert "FOREBAY_EREBUILD" in (tmp_path / "forebay.3").read_text()


def test_a_call_without_a_comment_is_refused(tmp_path):
    header = tmp_path / "h"
    header.write_text("/* forebay.h: words. */\n/* Does it. */\nint forebay_a(void);\n\nint forebay_b(void);\n")
    result = generate(tmp_path / "out", "--header", header)
    assert result.returncode == 1 and "h:5: forebay_b has no comment" in result.stderr


def test_what_is_not_understood_is_refused(tmp_path):
    header = tmp_path / "h"
    header.write_text("/* forebay.h: words. */\nextern int forebay_odd;\n")
    assert "h:2: not understood" in generate(tmp_path / "out", "--header", header).stderr


def test_pages_name_only_pages_that_are_there(tmp_path):
    generate(tmp_path)
    there = {path.name for folder in (MAN, tmp_path) for path in folder.iterdir()} | {"cp.1", "errno.3"}
    for folder in (MAN, tmp_path):
        for path in sorted(folder.iterdir()):
            named = re.findall(r"([a-z][\w.-]+) ?\(([1-8])\)", bare(path.read_text()))
            assert not [f"{name}.{section}" for name, section in named if f"{name}.{section}" not in there], path
