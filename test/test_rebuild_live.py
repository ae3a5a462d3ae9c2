"""The index is made again while a job saves and others delete: what was durable and had a reason to stay is there afterwards."""
import threading

import forebay
import job

PIECES = 8
VERSIONS = 40


def block(seed, bytes_=200_000):
    return bytes([seed % 251]) * bytes_


def save_one(cluster, bundle, step, items, **options):
    def body(group, rank):
        return job.save(group, bundle, step, [(name, data, {}) for name, data in items.items()], **options).version

    return job.good(job.ranks(cluster, 1, body))[0]


class Meanwhile:
    """Calls @action again and again from a thread until the block ends; which words it was refused with."""

    def __init__(self, action):
        self.words, self.done, self._over = set(), 0, threading.Event()
        self._thread = threading.Thread(target=self._live, args=(action,))

    def _live(self, action):
        while not self._over.is_set():
            try:
                action()
                self.done += 1
            except forebay.Error as error:
                self.words.add(str(error))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        self._over.set()
        self._thread.join()


def test_a_parent_that_is_deleted_in_a_rebuild_keeps_what_its_child_names(tmp_path):
    with job.Cluster(tmp_path, 1) as cluster:
        items = {f"i{k}": block(k) for k in range(PIECES)}
        assert save_one(cluster, "m", 1, items) == 1
        for step in range(2, VERSIONS):
            save_one(cluster, "m", step, {"w": block(step, 500)})
        child = save_one(cluster, "m", VERSIONS, {**items, "i0": block(99)}, parent=1)
        with cluster.connect() as fb, Meanwhile(lambda: fb.delete("m", 1)) as deleting:
            cluster.forebay("meta", "rebuild")
            job.until(lambda: deleting.done, lambda: f"it is deleted behind the rebuild: {deleting.words}")
        assert "the index is being rebuilt" in deleting.words
        assert "clean" in cluster.forebay("verify", f"m@{child}")


def test_labelled_versions_outlive_a_rule_a_save_and_a_rebuild_at_once(tmp_path):
    with job.Cluster(tmp_path, 2) as cluster:
        with cluster.connect() as fb:
            for step in range(1, VERSIONS + 1):
                save_one(cluster, "m", step, {"w": block(step, 500)})
                fb.label("m", f"l{step}", step)
            fb.retain("m", 3)
        steps = iter(range(VERSIONS + 1, 100_000))
        with Meanwhile(lambda: save_one(cluster, "m", next(steps), {"w": block(1, 500)})) as saving:
            job.until(lambda: saving.done, "it saves")
            cluster.forebay("meta", "rebuild", node=1)  # asked of a node that has not the index
            rebuilt = saving.done
            job.until(lambda: saving.done > rebuilt, lambda: f"saves go on: {saving.words}")
        with cluster.connect() as fb:
            assert fb.labels("m") == {f"l{step}": step for step in range(1, VERSIONS + 1)}
            for step in range(1, VERSIONS + 1):
                with fb.open("m", f"l{step}") as version:
                    assert version.read("w") == block(step, 500)


def test_after_a_rebuild_that_failed_nothing_is_listed_or_deleted(tmp_path):
    with job.Cluster(tmp_path, 2) as cluster:
        for bundle in ("a", "m", "z"):
            assert save_one(cluster, bundle, 1, {"w": block(1)}) == 1
            cluster.forebay("label", bundle, "prod", "1")
        move = cluster.store / "t/default/b/m/l/prod/00000000000000000001"
        kept = move.read_bytes()
        move.unlink()
        move.symlink_to(move.name)  # cannot be read, which is not damage
        failed = cluster.run("meta", "rebuild")
        assert failed.returncode == 1 and "half rebuilt: run forebay meta rebuild again on node-0" in failed.stderr
        for node in range(2):
            for words in (("ls",), ("rm", "z@1"), ("label", "a", "new", "1"), ("gc",)):
                refused = cluster.run(*words, node=node)
                assert refused.returncode == 1 and "the index is half rebuilt: run forebay meta" in refused.stderr
            with cluster.connect(node) as fb, fb.open("z") as version:
                assert version.read("w") == block(1)
        move.unlink()
        move.write_bytes(kept)
        with Meanwhile(lambda: save_one(cluster, "a", 2, {"w": block(2)})) as saving:  # waits for the index
            cluster.forebay("meta", "rebuild")
            job.until(lambda: saving.done, lambda: f"the save that waited is durable: {saving.words}")
        with cluster.connect() as fb:
            assert fb.labels("m") == {"prod": 1} and fb.labels("z") == {"prod": 1}
        assert "label prod" in cluster.run("rm", "z@1").stderr
        cluster.verify_all()
