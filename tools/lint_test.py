"""Each check of tools/lint fails on a made-up tree that breaks it, and says where; a clean tree passes."""
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent


def lint(tmp_path, files):
    (tmp_path / "tools").mkdir(exist_ok=True)
    shutil.copy(TOOLS / "arrows", tmp_path / "tools" / "arrows")
    shutil.copy(TOOLS.parent / ".clang-format", tmp_path)
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if path.is_relative_to(tmp_path / "src") and len(path.relative_to(tmp_path / "src").parts) > 1:
            (path.parent / "README.md").touch()
    p = subprocess.run([TOOLS / "lint", "--root", tmp_path], capture_output=True, text=True)
    assert not p.stderr
    return p.returncode, p.stdout


CLEAN = {
    "src/base/list.h": "#pragma once\n\nint list_len(void);\n",
    "src/wire/frame.h": '#pragma once\n\n#include <assert.h>\n\n#include "base/list.h"\n\n'
                        "struct frame_rec {\n\tle32 magic;\n};\nstatic_assert(sizeof(struct frame_rec) == 4);\n",
    "src/pool/pool.c": '#include "base/list.h"\n#include "wire/frame.h"\n\n/* strcpy( in a comment */\n'
                       'int pool(void)\n{\n\tputs("system(");\n\treturn ops->rand();\n}\n',
    "src/pool/pool_test.c": '#include "sim/world.h"\n',
    "src/sim/world.h": '#include "pool/pool.h"\n',
    "src/pool/pool.h": "#pragma once\n",
    "include/forebay/forebay.h": "#pragma once\n\n/* Never waits. */\nint forebay_abi(void);\n",
}


def test_a_clean_tree_passes(tmp_path):
    assert lint(tmp_path, CLEAN) == (0, "")


def body(lines):
    return "int f(void)\n{\n" + "\tg();\n" * (lines - 2) + "}\n"


BROKEN = {
    "includes_a_room_to_the_right": ({"src/base/a.c": '#include "wire/frame.h"\n'}, "src/base/a.c:1: base must not include wire"),
    "includes_a_room_of_its_own_level": ({"src/pool/a.c": '#include <a.h>\n#include "meta/m.h"\n', "src/meta/m.h": ""},
                                         "src/pool/a.c:2: pool must not include meta"),
    "plan_uses_more_than_base": ({"src/plan/a.c": '#include "wire/frame.h"\n'}, "src/plan/a.c:1: plan must not include wire"),
    "client_uses_net": ({"src/client/a.c": '#include "net/n.h"\n', "src/net/n.h": ""}, "src/client/a.c:1: client must not include net"),
    "code_includes_the_simulator": ({"src/pool/a.c": '#include "sim/world.h"\n'}, "src/pool/a.c:1: pool must not include sim"),
    "base_uses_the_public_header": ({"src/base/a.c": '#include "forebay/forebay.h"\n'}, "base must not include forebay"),
    "a_room_without_an_arrow": ({"src/utils/a.c": "\n"}, "src/utils/a.c:1: room utils has no line"),
    "an_include_that_leads_nowhere": ({"src/base/a.c": '#include "base/no.h"\n'}, 'src/base/a.c:1: "base/no.h" is no file'),
    "headers_in_a_circle": ({"src/base/a.h": '#include "base/b.h"\n', "src/base/b.h": '#include "base/a.h"\n'},
                            "files include each other in a circle: base/a.h -> base/b.h -> base/a.h"),
    "a_function_of_121_lines": ({"src/base/a.c": body(121)}, "src/base/a.c:2: function of 121 lines"),
    "a_python_function_of_121_lines": ({"python/a.py": "def f():\n" + "    g()\n" * 120}, "python/a.py:1: function of 121 lines"),
    "a_file_of_1201_lines": ({"src/base/a.c": "int a;\n" * 1201}, "src/base/a.c:1201: file of 1201 lines"),
    "a_simulator_of_2500_lines": ({"src/sim/a.c": "int a;\n" * 1200, "src/sim/b.c": "int a;\n" * 1199,
                                   "src/sim/c.c": "int a;\n" * 100, "src/sim/c_test.c": "int a;\n" * 500},
                                  "src/sim:1: 2500 lines"),
    "an_adapter_of_286_lines": ({"python/forebay/torch.py": "a = 1\n" * 286}, "python/forebay/torch.py:286: 286 lines"),
    "a_banned_call": ({"src/base/a.c": "void f(void)\n{\n\tstrcpy(a, b);\n}\n"}, "src/base/a.c:3: strcpy "),
    "a_wait_forever": ({"src/pool/a.c": "void f(void)\n{\n\twait_at(p, FOREVER);\n}\n"}, "src/pool/a.c:3: wait without a deadline"),
    "a_wait_of_600_years": ({"src/pool/a.c": "void f(void)\n{\n\twait_at(p, UINT64_MAX);\n}\n"}, "src/pool/a.c:3: wait without"),
    "a_record_without_an_asserted_size": ({"src/wire/a.h": "struct pack_rec {\n\tuint8_t a;\n};\n"}, "src/wire/a.h:1: record struct pack_rec"),
    "little_endian_members_without_an_asserted_size": ({"src/wire/a.h": "struct pack {\n\tle16 a;\n};\n"}, "record struct pack "),
    "a_public_call_without_a_comment": ({"include/forebay/forebay.h": "/* Yes. */\nint forebay_a(void);\nint forebay_b(void);\n"},
                                        "include/forebay/forebay.h:3: forebay_b has no comment"),
    "a_file_not_formatted": ({"src/base/a.c": "int f( void )\n{\n}\n"}, "src/base/a.c:1: not as .clang-format has it"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_lint_finds(tmp_path, name):
    files, expected = BROKEN[name]
    status, output = lint(tmp_path, {**CLEAN, **files})
    assert status == 1
    assert expected in output
    assert output.endswith("lint: 1 to mend\n"), output


def test_lint_finds_a_folder_without_a_readme(tmp_path):
    (tmp_path / "src" / "meta").mkdir(parents=True)
    status, output = lint(tmp_path, CLEAN)
    assert status == 1 and output.startswith("src/meta:1: no README.md")


def test_lint_finds_arrows_in_a_circle(tmp_path):
    arrows = (TOOLS / "arrows").read_text() + "also base: pool\n"
    status, output = lint(tmp_path, {**CLEAN, "tools/arrows": arrows})
    assert status == 1 and "tools/arrows:1: rooms may include each other in a circle: base -> pool -> base" in output
