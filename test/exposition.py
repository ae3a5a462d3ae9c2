"""A strict reader of Prometheus' text format 0.0.4, and what to ask a daemon's HTTP door."""
import math
import re
import urllib.error
import urllib.request
from pathlib import Path

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{NAME}="(?:[^"\\\n]|\\[\\n"])*",?)*)\}})? (\S+)')


class Exposition:
    """Series by their text (`name{label="value"}`); kinds and helps by family. Whatever breaks a rule of the format is an error."""

    def __init__(self, text: str) -> None:
        self.series: dict[str, float] = {}
        self.kinds: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        assert text.endswith("\n")
        family = ""
        for line in text[:-1].split("\n"):
            if line.startswith("# HELP "):
                _, _, family, words = line.split(" ", 3)
                assert family not in self.helps and words.strip(), line
                self.helps[family] = words
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                assert name == family and name not in self.kinds, line
                assert kind in ("counter", "gauge", "histogram"), line
                self.kinds[name] = kind
            else:
                self.take(line, family)
        assert set(self.kinds) == set(self.helps)
        for name, kind in self.kinds.items():
            if kind == "histogram":
                self.check_histogram(name)

    def take(self, line: str, family: str) -> None:
        match = SAMPLE.fullmatch(line)
        assert match, f"not a sample: {line!r}"
        name, labels, value = match.groups()
        suffix = name.removeprefix(family)
        assert name.startswith(family) and family in self.kinds, f"{line!r} in family {family}"
        assert suffix in (("_bucket", "_sum", "_count") if self.kinds[family] == "histogram" else ("",)), line
        key = name + ("{" + labels + "}" if labels is not None else "")
        assert key not in self.series, f"twice: {key}"
        number = float(value)
        assert math.isfinite(number) and number >= 0, line
        self.series[key] = number

    def check_histogram(self, name: str) -> None:
        """Buckets rise, and the last of them is the count."""
        series: dict[str, list[tuple[float, float]]] = {}
        for key, value in self.series.items():
            match = re.fullmatch(rf'{name}_bucket\{{(?:(.*),)?le="([^"]+)"\}}', key)
            if match:
                series.setdefault(match[1] or "", []).append((float(match[2]), value))
        assert series, name
        for labels, buckets in series.items():
            braces = "{" + labels + "}" if labels else ""
            assert buckets == sorted(buckets) and [v for _, v in buckets] == sorted(v for _, v in buckets), (name, labels)
            assert buckets[-1] == (math.inf, self.series[f"{name}_count{braces}"]) and f"{name}_sum{braces}" in self.series

    def __getitem__(self, key: str) -> float:
        return self.series["forebay_" + key]


def fetch(address: str, path: str) -> tuple[int, str]:
    """Status and text."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def address(folder: Path, node: int) -> str:
    return (folder / f"node-{node}" / "http").read_text().strip()


def scrape(folder: Path, node: int) -> Exposition:
    status, text = fetch(address(folder, node), "/metrics")
    assert status == 200, text
    return Exposition(text)
