"""The command line, end to end on real daemons."""
import ctypes
import filecmp
import json
import os
import random
import re
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from place import FOREBAY, ROOT, Cluster, runs, wait_until

sys.path.insert(0, str(ROOT / "python"))
import forebay  # noqa: E402

VERBS = "up down status ls show put get export verify label rm meta".split()
MIB = 1 << 20


def listing(cluster: Cluster) -> str:
    return cluster.run("ls", "-r", "--json").stdout


def bundle_of(cluster: Cluster, name: str) -> dict:
    """What `ls` says of one bundle; {} if it is not listed."""
    found = [b for b in json.loads(listing(cluster))["bundles"] if b["name"] == name]
    return found[0] if found else {}


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def save_items(cluster: Cluster, bundle: str, items: dict[str, object], step: int = 1, **more: object) -> int:
    """Publishes a version by the Python package: bytes are blobs, others what torch and the like make."""
    with forebay.connect(str(cluster.socket())) as session:
        with session.join(f"test-{bundle}", run=os.urandom(8).hex(), rank=0, size=1) as group:
            with group.save(bundle, step=step, **more) as save:
                for name, value in items.items():
                    save.add(name, value)
            save.durable.wait(60)
            return save.version


def same_folders(a: Path, b: Path) -> bool:
    """Equal names, bytes and permissions, all the way down."""
    compared = filecmp.dircmp(a, b)
    pairs = [(a / name, b / name) for name in compared.common]
    return (
        not (compared.left_only or compared.right_only or compared.common_funny)
        and all(filecmp.cmp(a / name, b / name, shallow=False) for name in compared.common_files)
        and all(stat.S_IMODE(x.stat().st_mode) == stat.S_IMODE(y.stat().st_mode) for x, y in pairs)
        and all(same_folders(a / name, b / name) for name in compared.common_dirs)
    )


# ---- the program ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_has_help_and_a_page(cluster, verb):
    assert f"Usage: forebay {verb}" in cluster.run(verb, "--help").stdout
    assert verb in cluster.run("--help").stdout
    assert (ROOT / "docs" / "man" / f"forebay-{verb}.1").is_file()


@pytest.mark.parametrize(
    "words",
    [[], ["fly"], ["ls", "--fly"], ["ls", "a", "b"], ["put", "b"], ["up"], ["up", "--dir", "x", "--nodes", "0"], ["down"],
     ["up", "--dir", "x", "--pool", "much"], ["rm", "b"], ["rm", "b@prod"], ["label", "b", "prod", "one"],
     ["label", "b", "prod", "1", "--remove"], ["export", "b", "d", "--format", "zip"], ["meta", "burn"], ["verify"],
     ["put", "b", "x", "--attribute", "k"]],
)  # fmt: skip
def test_misuse_exits_with_2_and_words(cluster, words):
    assert cluster.run(*words, status=2).stderr


def test_without_a_daemon_the_socket_is_named(cluster):
    result = cluster.run("ls", "--socket", "/nowhere/socket", status=1)
    assert result.stderr.startswith("forebay: ls: ") and "/nowhere/socket" in result.stderr
    assert cluster.run("verify", "b", "--socket", "/nowhere/socket", status=2).stderr


def test_output_that_cannot_be_written_is_a_failure(running):
    with open("/dev/full", "w") as full:
        result = subprocess.run([FOREBAY, "ls"], env=running.environment(), stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1 and "standard output" in result.stderr


# ---- up and down ----------------------------------------------------------------------------------------------------------


def test_up_makes_a_cluster_that_a_shell_finds(make_folder):
    cluster = Cluster(make_folder() / "it's a 'clus ter'")
    try:
        assert "3 nodes are ready" in cluster.up(3).stdout
        status = subprocess.run(
            ["bash", "-c", '. "$1/env" && "$2" status --json', "-", cluster.folder, FOREBAY],
            env={k: v for k, v in os.environ.items() if k != "FOREBAY_SOCKET"}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        nodes = json.loads(status.stdout)["nodes"]
        assert [(n["name"], n["up"]) for n in nodes] == [(f"node-{i}", True) for i in range(3)]
        assert nodes[0]["pool_bytes"] == 64 * MIB  # the others' is known with their first heartbeats
        for node in range(3):
            seen = cluster.run("status", "--json", "--socket", cluster.socket(node))
            assert json.loads(seen.stdout)["node"] == f"node-{node}"
        assert "node-2" in cluster.run("status").stdout
    finally:
        cluster.end()


def test_a_relative_folder_is_made_absolute(make_folder):
    cluster = Cluster(make_folder() / "c")
    try:
        cluster.run("up", "--dir", "c", "--pool", "64M", cwd=cluster.folder.parent)
        assert str(cluster.socket()) in (cluster.folder / "env").read_text()
        assert f"store = dir:{cluster.folder}/store" in (cluster.folder / "node-0" / "config").read_text()
        cluster.run("down", "--dir", "c", cwd=cluster.folder.parent)
    finally:
        cluster.end()


def test_each_daemon_has_a_session_of_its_own(running):
    assert [os.getsid(pid) for pid in running.pids()] == running.pids()


def test_a_running_cluster_is_told_so_and_another_size_refused(running):
    before = running.pids()
    assert "run already" in running.up().stdout
    assert "run already" in running.up(2).stdout
    assert "a cluster of 2 nodes; it cannot be started with 3" in running.up(3, status=1).stderr
    assert "take another --dir" in running.up(None, "--store", "dir:/elsewhere", status=1).stderr
    assert running.pids() == before and sorted(running.daemons()) == sorted(before)


def test_another_pool_waits_for_the_next_start_and_up_says_so(cluster):
    cluster.up(1)
    assert "--pool" not in cluster.up().stderr  # as it is
    again = cluster.up(pool="80M")
    assert ": 1 node runs already" in again.stdout
    assert "--pool has no effect on nodes that run: node-0's pool stays 64.0 MiB until it is started anew" in again.stderr
    assert ": ended 1 daemon\n" in cluster.down().stdout
    assert "--pool" not in cluster.up(pool="80M").stderr
    (node,) = json.loads(cluster.run("status", "--json").stdout)["nodes"]
    assert node["pool_bytes"] == 80 * MIB


def test_what_is_one_is_not_many(cluster, tmp_path):
    cluster.up(1)
    (tmp_path / "f").write_bytes(b"x")
    cluster.run("put", "b", tmp_path / "f")
    assert cluster.run("get", "b", tmp_path / "out").stdout == "b@1: 1 file\n"
    assert cluster.run("why", "b@1").stdout.splitlines()[1].startswith("1 rank on 1 node, ")
    assert cluster.run("meta", "rebuild").stdout == "1 bundle, 1 version, 0 labels\n"


def test_a_refused_up_shows_what_its_own_start_said(cluster):
    cluster.up(1)
    cluster.down()
    with (cluster.folder / "node-0" / "log").open("a") as log:
        log.write("what an earlier start met\n")
    (cluster.folder / "node-0" / "socket").unlink(missing_ok=True)
    (cluster.folder / "node-0" / "socket").mkdir()
    refused = cluster.up(status=1).stderr
    assert "something else than a socket" in refused and "an earlier start" not in refused


def test_up_starts_only_what_is_missing(cluster):
    cluster.up(3)
    before = cluster.pids()
    cluster.kill(1)
    cluster.up()
    after = cluster.pids()
    assert (after[0], after[2]) == (before[0], before[2]) and after[1] != before[1]
    assert len(cluster.daemons()) == 3


def test_after_sigkill_up_starts_again_with_what_is_there(cluster, tmp_path):
    (tmp_path / "f").write_bytes(noise(100000))
    cluster.up(2)
    cluster.run("put", "b", tmp_path / "f")
    cluster.run("label", "b", "prod", 1)
    before, config = listing(cluster), (cluster.folder / "node-1" / "config").read_text()
    cluster.kill()
    cluster.up(2)
    assert listing(cluster) == before
    assert (cluster.folder / "node-1" / "config").read_text() == config
    cluster.run("get", "b@prod", tmp_path / "out")
    assert (tmp_path / "out" / "f").read_bytes() == noise(100000)


def test_a_port_that_was_taken_meanwhile_is_replaced(cluster):
    cluster.up(2)
    cluster.down()
    state = json.loads((cluster.folder / "cluster.json").read_text())
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", state["port"]))
        taken.listen()
        cluster.up()
        assert json.loads((cluster.folder / "cluster.json").read_text())["port"] != state["port"]


def test_down_says_what_it_did_and_may_come_twice(cluster):
    cluster.up(2)
    pids = cluster.pids()
    assert "ended 2 daemons" in cluster.down().stdout
    assert not any(map(runs, pids)) and not cluster.daemons()
    assert not list(cluster.folder.glob("node-*/pid"))
    assert "nothing was running" in cluster.down().stdout


def test_down_ends_only_what_it_started(cluster):
    cluster.up(1)
    cluster.kill()
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        started = cluster.folder / "node-0" / "started"
        _, *rest = started.read_text().split()
        (cluster.folder / "node-0" / "pid").write_text(f"{stranger.pid}\n")
        for text in (f"{stranger.pid} {' '.join(rest)}", f"{stranger.pid}", "", "-1 0 x", "1 1 1"):
            started.write_text(text)
            assert "nothing was running" in cluster.down().stdout
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_down_elsewhere_is_refused(cluster, tmp_path):
    assert "no cluster.json" in cluster.run("down", "--dir", tmp_path, status=1).stderr
    assert "No such file" in cluster.run("down", "--dir", tmp_path / "nothing", status=1).stderr


def test_a_daemon_that_cannot_start_ends_the_rest_and_shows_its_log(cluster):
    (cluster.folder / "node-1" / "socket").mkdir(parents=True)
    result = cluster.up(3, status=1)
    assert "node-1: the daemon has ended" in result.stderr
    assert str(cluster.folder / "node-1" / "log") in result.stderr and "forebayd: " in result.stderr
    assert not cluster.daemons() and not list(cluster.folder.glob("node-*/pid"))
    (cluster.folder / "node-1" / "socket").rmdir()
    cluster.up(3)


def test_up_ends_what_it_started_on_ctrl_c(cluster):
    command = [FOREBAY, "up", "--dir", cluster.folder, "--pool", "64M", "--meta", "tcp:127.0.0.1:1"]
    up = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # never ready: there is no such engine
    wait_until(cluster.daemons, 30, "a daemon")
    up.send_signal(signal.SIGINT)
    _, error = up.communicate(timeout=40)
    assert up.returncode == 1 and "interrupted" in error
    assert not cluster.daemons()


def test_up_before_a_store_that_is_not_mounted_ends_as_soon_as_the_daemon_has_said_so(cluster):
    cluster.up(2)
    cluster.down()
    (cluster.folder / "store").rename(cluster.folder / "disk")
    (cluster.folder / "store").mkdir()
    begun = time.monotonic()
    error = cluster.up(status=1).stderr
    assert time.monotonic() - begun < 30  # some 4, of which 3 are for names that a store shows late; before, 60
    assert "has no object g/1: is it mounted?" in error and "not ready after" not in error
    assert not cluster.daemons()
    (cluster.folder / "store").rmdir()
    (cluster.folder / "disk").rename(cluster.folder / "store")
    cluster.up()


def test_a_path_too_long_for_a_socket_is_refused(cluster):
    deep = cluster.folder / ("d" * 60) / ("e" * 60)
    deep.parent.mkdir(parents=True)
    result = cluster.run("up", "--dir", deep, status=1)
    assert "a socket's path has at most 107" in result.stderr and str(deep) in result.stderr
    assert not cluster.daemons()


def test_a_refused_first_up_is_none(make_folder):
    cluster = Cluster(make_folder() / "cluster")
    nowhere = cluster.folder.parent / "nowhere"
    try:
        assert str(nowhere) in cluster.up(3, "--store", f"dir:{nowhere}", pool="80M", status=1).stderr
        assert not [name for name in ("cluster.json", "key", "env", "node-0/config", "store") if (cluster.folder / name).exists()]
        assert str(nowhere) in (cluster.folder / "node-0" / "log").read_text()  # for whoever looks for the cause
        assert ": 1 node is ready" in cluster.run("up", "--dir", cluster.folder, "--pool", "64M").stdout
        kept = json.loads((cluster.folder / "cluster.json").read_text())
        assert (kept["nodes"], kept["store"], kept["pool_bytes"]) == (1, f"dir:{cluster.folder}/store", 64 * MIB)
    finally:
        cluster.end()
    deep = make_folder() / ("d" * 100)
    assert "at most 107" in cluster.run("up", "--dir", deep, status=1).stderr and not deep.exists()
    deep.mkdir()
    (deep / "mine").touch()
    assert "at most 107" in cluster.run("up", "--dir", deep, status=1).stderr
    assert [path.name for path in deep.iterdir() if path.name != "lock"] == ["mine"]


def test_a_refused_first_up_leaves_no_index_and_no_store(cluster):
    """Node 0 opens both, and ends since it finds a folder where its socket should be. What was there before is not this one's."""
    folder = cluster.folder
    (folder / "node-0" / "socket").mkdir(parents=True)
    (folder / "store" / ".tmp").mkdir(parents=True)
    assert "something else than a socket" in cluster.up(1, status=1).stderr
    assert {path.name for path in folder.iterdir()} == {"lock", "node-0"}
    (folder / "meta").mkdir()
    (folder / "meta" / "mine").touch()
    cluster.up(1, status=1)
    assert (folder / "meta" / "mine").exists()


def test_a_first_up_that_has_begun_a_cluster_says_what_stays(cluster):
    (cluster.folder / "node-1" / "socket").mkdir(parents=True)
    (cluster.folder / "store" / "g").mkdir(parents=True)  # as if node 0 had joined: how far it comes is a matter of time
    begun = f"{cluster.folder} has what was begun: the same `up` goes on with it; remove it, and {cluster.folder}/store/g, to"
    assert begun in cluster.up(2, status=1).stderr
    assert json.loads((cluster.folder / "cluster.json").read_text())["nodes"] == 2


# ---- put and get ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path) -> Path:
    """All that a folder may hold."""
    top = tmp_path / "folder"
    (top / "sub" / "deeper").mkdir(parents=True)
    (top / "sub" / "nothing in it").mkdir()
    (top / "sub" / "big").write_bytes(noise(3 * MIB + 17))
    (top / "sub" / "deeper" / "tool").write_bytes(b"#!/bin/sh\n")
    (top / "empty").touch()
    (top / "~files").write_bytes(b"a name that looks internal")
    (top / "~=").write_bytes(b"another")
    (top / "with \n \"odd\" \\ ünïcode").write_bytes(b"x")
    (top / "link").symlink_to("sub/big")
    (top / "linked").symlink_to("sub/deeper")
    (top / "sub" / "deeper" / "tool").chmod(0o755)
    (top / "empty").chmod(0o600)
    (top / "sub" / "deeper").chmod(0o700)
    return top


def test_a_folder_comes_back_as_it_was(running, folder, tmp_path):
    assert running.run("put", "put/folder", folder).stdout == "1\n"
    assert running.run("put", "put/folder", folder, "--step", 7, "-a", "by=me", "--json").stdout == '{"version": 2}\n'
    latest = bundle_of(running, "put/folder")["versions"][-1]
    assert (latest["number"], latest["step"], latest["attributes"]) == (2, 7, {"by": "me"})
    running.run("get", "put/folder@2", tmp_path / "out" / "below")
    assert same_folders(folder, tmp_path / "out" / "below")
    assert not [path for path in (tmp_path / "out").rglob(".forebay-*")]
    assert (tmp_path / "out" / "below" / "linked" / "tool").is_file() and not (tmp_path / "out" / "below" / "link").is_symlink()
    assert "clean" in running.run("verify", "put/folder").stdout


def test_large_and_small_files_are_written_side_by_side(running, tmp_path):
    top = tmp_path / "mixed"
    top.mkdir()
    sizes = [17 * MIB + 5, 0, 5 * MIB, 1, 2 * MIB - 1, *(100 * i for i in range(200))]  # the first in two batches, the last in one
    for i, size in enumerate(sizes):
        (top / f"{i:03}").write_bytes(noise(size, i))
        (top / f"{i:03}").chmod(0o600 + i % 0o100)
    running.run("put", "put/mixed", top)
    running.run("get", "put/mixed", tmp_path / "out")
    assert same_folders(top, tmp_path / "out")


def test_equal_files_are_stored_once(running, tmp_path):
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_bytes(noise(2 * MIB))
    running.run("put", "put/equal", tmp_path / "in")
    version = bundle_of(running, "put/equal")["versions"][0]
    assert version["bytes"] > 6 * MIB and version["stored_bytes"] < 2.5 * MIB


def test_zeros_are_not_stored_and_come_back_as_holes(running, tmp_path):
    size = 24 * MIB
    with open(tmp_path / "sparse", "wb") as file:
        file.write(b"begin")
        file.seek(size - 3)
        file.write(b"end")
    (tmp_path / "zeros").write_bytes(bytes(5000))
    running.run("put", "put/sparse", tmp_path / "sparse", tmp_path / "zeros")
    assert bundle_of(running, "put/sparse")["versions"][0]["stored_bytes"] < 17 * MIB  # two blocks of three
    running.run("get", "put/sparse", tmp_path / "out")
    out = tmp_path / "out" / "sparse"
    assert filecmp.cmp(tmp_path / "sparse", out, shallow=False)
    assert out.stat().st_blocks * 512 <= MIB
    assert (tmp_path / "out" / "zeros").read_bytes() == bytes(5000)
    assert (tmp_path / "out" / "zeros").stat().st_blocks == 0


def test_several_paths_keep_the_last_part_of_their_names(running, folder, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    running.run("put", "put/several", f"{folder}/", tmp_path / "file", cwd=tmp_path)
    running.run("get", "put/several", tmp_path / "out")
    assert same_folders(folder, tmp_path / "out" / "folder") and (tmp_path / "out" / "file").read_text() == "x"
    running.run("put", "put/dot", ".", tmp_path / "file", cwd=folder / "sub")
    running.run("get", "put/dot", tmp_path / "dot")
    assert sorted(path.name for path in (tmp_path / "dot").iterdir()) == ["file", "sub"]


def test_an_empty_folder_is_a_version(running, tmp_path):
    (tmp_path / "in").mkdir()
    running.run("put", "put/empty", tmp_path / "in")
    running.run("get", "put/empty", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_many_small_files(running, tmp_path):
    top = tmp_path / "many"
    for i in range(3000):
        path = top / f"d{i % 30}" / f"f{i}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(noise(i % 700, i))
    running.run("put", "put/many", top)
    running.run("get", "put/many", tmp_path / "out")
    assert same_folders(top, tmp_path / "out")


def make_odd(top: Path, kind: str) -> Path:
    odd = top / "sub" / "odd"
    if kind == "a FIFO":
        os.mkfifo(odd)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(odd))
    elif kind == "a device":
        odd.symlink_to("/dev/null")
    elif kind == "leads nowhere":
        odd.symlink_to("not-there")
    elif kind == "a loop of links":
        odd.symlink_to("odd")
    elif kind == "leads back":
        odd.symlink_to("..")
    return odd


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device", "leads nowhere", "a loop of links", "leads back"])
def test_what_cannot_be_stored_is_named_and_nothing_published(running, make_folder, kind):
    top = make_folder()
    (top / "sub").mkdir()
    (top / "good").write_text("x")
    odd = make_odd(top, kind)
    result = running.run("put", "put/odd", top, status=1)
    assert result.stderr.startswith(f"forebay: put: {odd}: ") and kind in result.stderr
    assert result.stdout == "" and not bundle_of(running, "put/odd")


def test_a_name_that_is_not_utf_8_is_refused(running, tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff", "w"):
        pass
    assert "not UTF-8" in running.run("put", "put/odd", tmp_path, status=1, errors="replace").stderr


def test_two_files_of_one_name_are_refused(running, tmp_path):
    for name in ("a/x", "b/x", "c/a/x"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    assert "x: two files" in running.run("put", "put/odd", tmp_path / "a" / "x", tmp_path / "b" / "x", status=1).stderr
    assert "a/x: two files" in running.run("put", "put/odd", tmp_path / "a", tmp_path / "c" / "a", status=1).stderr
    assert "No such file" in running.run("put", "put/odd", tmp_path / "gone", status=1).stderr
    assert not bundle_of(running, "put/odd")


CHANGES = {
    "shrinks": (lambda path: os.truncate(path, 4096), "it became shorter"),
    "grows": (lambda path: path.open("ab").write(b"more"), "it changed while"),
    "vanishes": (lambda path: path.unlink(), "it vanished while"),
    "is written to": (lambda path: path.open("r+b").write(b"other"), "it changed while"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_meanwhile_is_named_and_nothing_kept(cluster, tmp_path, change):
    act, words = CHANGES[change]
    cluster.up(1)
    path = tmp_path / "big"
    path.write_bytes(noise(8 * MIB))
    daemon = cluster.pids()[0]
    os.kill(daemon, signal.SIGSTOP)  # so that `put` has the file open, and waits
    put = subprocess.Popen([FOREBAY, "put", "b", path], env=cluster.environment(), stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: str(path) in Path(f"/proc/{put.pid}/maps").read_text(), 30, "the file mapped")
        act(path)
    finally:
        os.kill(daemon, signal.SIGCONT)
    _, error = put.communicate(timeout=60)
    assert put.returncode == 1 and error.startswith(f"forebay: put: {path}: ") and words in error
    wait_until(lambda: not bundle_of(cluster, "b"), 60, "nothing of it")
    (tmp_path / "good").write_text("x")
    cluster.run("put", "b", tmp_path / "good")
    cluster.run("verify", "b")


def test_more_than_a_pool_holds_goes_through_and_copies_of_it_are_refused_in_words(running, tmp_path):
    with open(tmp_path / "huge", "wb") as file:
        for i in range(100):
            file.write(noise(MIB, i))
    result = running.run("put", "--copies", "2", "put/huge", tmp_path / "huge", status=1)
    assert result.stderr.startswith("forebay: put: ") and "its pool has" in result.stderr
    assert not bundle_of(running, "put/huge")
    running.run("put", "put/huge", tmp_path / "huge")
    running.run("get", "put/huge", tmp_path / "back")
    assert filecmp.cmp(tmp_path / "back" / "huge", tmp_path / "huge", shallow=False)


def test_get_does_not_touch_files_that_are_there(running, tmp_path):
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text(f"new {name}")
    running.run("put", "get/there", tmp_path / "in")
    out = tmp_path / "out"
    out.mkdir()
    (out / "b").write_text("old")
    (out / "other").write_text("mine")
    assert f"{out}/b: the file exists" in running.run("get", "get/there", out, status=1).stderr
    assert sorted(path.name for path in out.iterdir()) == ["b", "other"] and (out / "b").read_text() == "old"
    running.run("get", "get/there", out, "--force")
    assert (out / "b").read_text() == "new b" and (out / "other").read_text() == "mine"
    (out / "a").unlink()
    (out / "a").mkdir()
    assert "folder of that name" in running.run("get", "get/there", out, "--force", status=1).stderr


def test_get_does_not_follow_links_out_of_the_folder(running, tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "f").write_text("x")
    running.run("put", "get/links", tmp_path / "in")
    (tmp_path / "outside").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sub").symlink_to(tmp_path / "outside")
    assert "no folder" in running.run("get", "get/links", tmp_path / "out", "--force", status=1).stderr
    assert list((tmp_path / "outside").iterdir()) == []


def test_get_refuses_names_that_lead_outside(running, tmp_path):
    for name in ("../evil", "/tmp/evil", "a/../../evil", "a//b", "."):
        files = json.dumps({"format": 1, "files": {name: 0o644}, "folders": {}}).encode()
        save_items(running, "get/evil", {"~files": files, name: b"x"}, step=random.getrandbits(40))
        assert "not a path" in running.run("get", "get/evil", tmp_path / "deep" / "out", status=1).stderr
    files = json.dumps({"format": 1, "files": {"not there": 0o644}, "folders": {}}).encode()
    save_items(running, "get/evil", {"~files": files, "f": b"x"}, step=random.getrandbits(40))
    assert "not there: listed" in running.run("get", "get/evil", tmp_path / "deep" / "out", status=1).stderr
    assert list(tmp_path.iterdir()) == []


def test_get_without_room_leaves_nothing(running, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_text("small")
    (tmp_path / "in" / "b").write_bytes(noise(2 * MIB))
    running.run("put", "get/room", tmp_path / "in")

    def no_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))

    result = running.run("get", "get/room", tmp_path / "new" / "out", status=1, preexec_fn=no_room)
    assert f"{tmp_path}/new/out/b: File too large" in result.stderr
    assert not (tmp_path / "new").exists()


def test_get_of_what_is_not_there(running, tmp_path):
    assert "forebay: get: get/none" in running.run("get", "get/none", tmp_path / "out", status=1).stderr
    save_items(running, "get/tensors", {"w": b"1234"})
    assert "forebay export" in running.run("get", "get/tensors", tmp_path / "out", status=1).stderr
    assert "get/tensors@9" in running.run("get", "get/tensors@9", tmp_path / "out", status=1).stderr
    assert not (tmp_path / "out").exists()


# ---- lists, labels, deletion ----------------------------------------------------------------------------------------------


def test_labels_move_only_from_where_they_are_expected(running, tmp_path):
    (tmp_path / "f").write_text("x")
    for _ in range(2):
        running.run("put", "label/b", tmp_path / "f")
    assert "no label" in running.run("label", "label/b", "prod", status=1).stderr
    running.run("label", "label/b", "prod", 1, "--expect", 0)
    assert running.run("label", "label/b", "prod").stdout == "1\n"
    running.run("label", "label/b", "prod", 2, "--expect", 2, status=1)
    running.run("label", "label/b", "prod", 2, "--expect", 1)
    assert bundle_of(running, "label/b")["labels"] == {"prod": 2}
    assert "prod" in running.run("ls", "label/b").stdout
    running.run("label", "label/b", "prod", 9, status=1)
    assert "prod" in running.run("rm", "label/b@2", status=1).stderr
    running.run("label", "label/b", "prod", "--remove")
    running.run("rm", "label/b@2")
    assert [version["number"] for version in bundle_of(running, "label/b")["versions"]] == [1]
    running.run("rm", "label/b@9", status=1)
    assert bundle_of(running, "label/b")["latest"] == 1


def test_show_lists_all_items_page_after_page(running):
    items = {f"item-{i:05}": b"x" * (i % 5) for i in range(1500)}
    save_items(running, "show/many", items, attributes={"k": "v \u00e4"})
    shown = json.loads(running.run("show", "show/many", "--json").stdout)
    assert [(i["name"], i["bytes"], i["shape"], i["dtype"]) for i in shown["items"]] == [
        (name, len(value), [len(value)], "blob") for name, value in items.items()
    ]
    assert (shown["bundle"], shown["number"], shown["attributes"]) == ("show/many", 1, {"k": "v \u00e4"})
    text = running.run("show", "show/many@latest").stdout
    assert "show/many@1  step 1" in text and "k = v \u00e4" in text and len(text.splitlines()) == 1500 + 4


def test_names_cannot_command_the_terminal(running):
    save_items(running, "show/escape", {"a\033[31mred\n": b"x"})
    text = running.run("show", "show/escape").stdout
    assert "\033" not in text and "a\\x1b[31mred\\x0a" in text


def test_a_rebuilt_index_lists_byte_for_byte_the_same(cluster, folder, tmp_path):
    cluster.up(2)
    for i in range(3):
        cluster.run("put", "models/a", folder, "--step", i)
    cluster.run("put", "models/b", folder / "sub" / "big")
    cluster.run("label", "models/a", "prod", 2)
    cluster.run("label", "models/a", "old", 1)
    cluster.run("label", "models/a", "old", "--remove")
    cluster.run("rm", "models/a@1")
    cluster.run("put", "models/gone", folder / "empty")
    cluster.run("rm", "models/gone@1")
    before = listing(cluster)
    assert [b["name"] for b in json.loads(before)["bundles"]] == ["models/a", "models/b"]
    cluster.down()
    for path in (cluster.folder / "meta").iterdir():
        path.unlink()
    (cluster.folder / "meta").rmdir()
    assert "forebay meta rebuild" in cluster.up(status=1).stderr
    assert len(cluster.daemons()) == 2
    assert cluster.run("ls", status=1).stderr
    assert "2 versions" not in cluster.run("meta", "rebuild").stdout
    cluster.up()
    assert listing(cluster) == before
    cluster.run("get", "models/a@prod", tmp_path / "out")
    assert same_folders(folder, tmp_path / "out")
    cluster.run("put", "models/a", folder / "empty")
    assert bundle_of(cluster, "models/a")["latest"] == 4


def test_up_rebuilds_on_request(cluster, tmp_path):
    (tmp_path / "f").write_text("x")
    cluster.up(1)
    cluster.run("put", "b", tmp_path / "f")
    before = listing(cluster)
    cluster.down()
    for path in (cluster.folder / "meta").iterdir():
        path.unlink()
    cluster.up(None, "--rebuild")
    assert listing(cluster) == before


# ---- verify ---------------------------------------------------------------------------------------------------------------


def test_verify_finds_a_flipped_bit(cluster, tmp_path):
    (tmp_path / "weights").write_bytes(noise(3 * MIB))
    cluster.up(1)
    cluster.run("put", "b", tmp_path / "weights")
    assert "clean" in cluster.run("verify", "b@1").stdout
    pack = max((path for path in (cluster.folder / "store").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    pack.chmod(0o644)
    with pack.open("r+b") as file:
        file.seek(MIB)
        byte = file.read(1)[0]
        file.seek(MIB)
        file.write(bytes([byte ^ 1]))
    result = cluster.run("verify", "b@1", status=1)
    assert pack.name in result.stdout and "weights" in result.stdout
    found = json.loads(cluster.run("verify", "b", "--json", status=1).stdout)["damages"]
    assert [(d["item"], pack.name in d["object"]) for d in found] == [("weights", True)]

    (tmp_path / "one").write_text("1")
    for bundle in ("a/x", "a/x", "c"):
        cluster.run("put", bundle, tmp_path / "one")
    result = cluster.run("verify", status=1)  # of everything: one bad version keeps the others from nothing
    *_, last = [line for line in result.stdout.splitlines() if not line.startswith("b@1:")]
    clean = re.findall(r"^(\S+): clean, ", result.stdout, re.M)
    assert clean == ["a/x@1", "a/x@2", "c@1"] and last.startswith("c@1: ") and "b@1: 1 damage in" in result.stdout
    told = json.loads(cluster.run("verify", "--json", status=1).stdout)["versions"]
    assert [(one["bundle"], one["number"], len(one["damages"])) for one in told] == [("a/x", 1, 0), ("a/x", 2, 0), ("b", 1, 1), ("c", 1, 0)]
    cluster.kill()
    cluster.up()  # nothing in memory any more
    assert "weights" in cluster.run("get", "b", tmp_path / "out", status=1).stderr
    cluster.run("rm", "b@1")
    assert len(cluster.run("verify").stdout.splitlines()) == 3
    cluster.kill()
    assert cluster.run("verify", status=2).stdout == ""
    cluster.up()
    assert not (tmp_path / "out").exists()
    assert cluster.run("verify", "b@7", status=2).stderr
    assert cluster.run("verify", "b@nolabel", status=2).stderr
    assert cluster.run("verify", "none", status=2).stderr


# ---- export ---------------------------------------------------------------------------------------------------------------


def torch_tensors() -> dict:
    import torch

    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name in ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64 "
                 "float8_e4m3fn float8_e5m2").split():  # fmt: skip
        dtype = getattr(torch, name)
        width = torch.empty(0, dtype=dtype).element_size()
        raw = torch.randint(0, 2 if dtype == torch.bool else 256, (3, 5 * width), dtype=torch.uint8, generator=generator)
        tensors[f"t.{name}"] = raw.view(dtype)
    tensors["odd"] = torch.arange(3, dtype=torch.uint8)
    tensors["scalar"] = torch.tensor(1.5)
    tensors["nothing"] = torch.empty(4, 0)
    tensors["large"] = torch.randn(3, 1000, 4000, generator=generator)  # 48 MB: more than is read at a time
    tensors["~=~mine"] = torch.ones(2)
    return tensors


def raw_bytes(tensor) -> bytes:
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes) if tensor.nbytes else b""


def test_safetensors_reads_what_export_writes(running, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file

    tensors = torch_tensors()
    save_items(running, "export/all", {**tensors, "~planner/0": b"internal", "loader": b"a blob"}, step=12)
    out = tmp_path / "out"
    assert "2 that are no tensors left out" in running.run("export", "export/all", out).stdout
    assert [path.name for path in out.iterdir()] == ["model.safetensors"]
    loaded = load_file(out / "model.safetensors")
    expect = {name.removeprefix("~="): tensor for name, tensor in tensors.items()}
    assert loaded.keys() == expect.keys()
    for name, tensor in expect.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape), name
        assert raw_bytes(loaded[name]) == raw_bytes(tensor), name
    with safe_open(out / "model.safetensors", "pt") as file:
        meta = {"format": "pt", "forebay.bundle": "export/all", "forebay.version": "1", "forebay.step": "12"}
        assert file.metadata() == meta
    with (out / "model.safetensors").open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    assert length % 8 == 0
    for name, entry in header.items():
        if name != "__metadata__" and entry["data_offsets"][0] != entry["data_offsets"][1]:
            assert entry["data_offsets"][0] % expect[name].element_size() == 0, name


def test_export_does_not_replace_files_unasked(running, tmp_path):
    import torch

    save_items(running, "export/twice", {"w": torch.ones(3)})
    running.run("export", "export/twice", tmp_path)
    assert "the file exists" in running.run("export", "export/twice", tmp_path, status=1).stderr
    running.run("export", "export/twice", tmp_path, "--force")


def test_an_unknown_dtype_is_refused_by_name_and_raw_takes_it(running, tmp_path):
    with forebay.connect(str(running.socket())) as session:
        with session.join("odd", run="1", rank=0, size=1) as group:
            with group.save("export/odd", step=1) as save:
                save.add("good", bytes(range(8)))
                save.add("../odd w", memoryview(bytes(range(24))), dtype="posit16", shape=(24,))
                save.add("~inner", b"i")
            save.durable.wait(60)
    result = running.run("export", "export/odd@1", tmp_path / "st", status=1)
    assert '../odd w: safetensors has no dtype for "posit16"' in result.stderr and "--format raw" in result.stderr
    assert not (tmp_path / "st").exists()
    running.run("export", "export/odd@1", tmp_path / "raw", "--format", "raw")
    manifest = json.loads((tmp_path / "raw" / "manifest.json").read_text())
    assert (manifest["bundle"], manifest["version"], manifest["step"]) == ("export/odd", 1, 1)
    items = {item["name"]: item for item in manifest["items"]}
    assert {name: (tmp_path / "raw" / item["file"]).read_bytes() for name, item in items.items()} == {
        "good": bytes(range(8)), "../odd w": bytes(range(24)), "~inner": b"i",
    }  # fmt: skip
    assert items["../odd w"]["dtype"] == "posit16" and items["../odd w"]["shape"] == [24]
    assert len(list((tmp_path / "raw").iterdir())) == 4


def test_nothing_but_blobs_gives_an_empty_file(running, tmp_path):
    from safetensors.torch import load_file

    save_items(running, "export/blobs", {"a": b"x"})
    running.run("export", "export/blobs", tmp_path)
    assert load_file(tmp_path / "model.safetensors") == {}


def test_ls_of_the_first_parts_of_names_lists_what_is_below(cluster, tmp_path):
    (tmp_path / "f").write_bytes(b"f")
    cluster.up(1)
    for bundle in ("ckpt/llama/1", "ckpt/llama/2", "ckpt/mistral", "ckpts", "ckpt/llama"):
        cluster.run("put", bundle, tmp_path / "f")

    def names(*words: str) -> list[str]:
        return [bundle["name"] for bundle in json.loads(cluster.run("ls", *words, "--json").stdout)["bundles"]]

    assert names("ckpt") == names("ckpt/") == ["ckpt/llama", "ckpt/llama/1", "ckpt/llama/2", "ckpt/mistral"]
    assert names("ckpt/llama") == ["ckpt/llama"] and names("ckpt/llama/") == ["ckpt/llama/1", "ckpt/llama/2"]
    assert "ckpt/mistral@1" in cluster.run("ls", "ckpt/mistral").stdout
    assert "VERSIONS" in cluster.run("ls", "ckpt").stdout and "ckpt/llama/2@1" in cluster.run("ls", "-r", "ckpt").stdout
    for what in ("ckp", "nothing", "ckpt/mistral/", "ckpt/llama/3"):
        assert f"there is no bundle {what}, and none below it" in cluster.run("ls", what, status=1).stderr
