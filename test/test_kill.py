"""`make crash`: SIGKILL to random processes of a job and its cluster at random moments, and what was acknowledged is there.

Three daemons, copies=2, three ranks that save all the time (trainer.c). A round: some of daemons and ranks die, now and then some more
while the first are away; what died is started again; saves go on; then the job pauses and everything is checked (training.py).
FOREBAY_SEED and FOREBAY_ROUNDS choose; the seed that is printed replays the choices, though not the schedule of the machine.
"""
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import job
import sick
import training
from training import BUNDLE, KEEP, Checker, TorchTraining, Training

NODES, RANKS = 3, 3
LONG = bool(os.environ.get("FOREBAY_LONG"))
ROUNDS = int(os.environ.get("FOREBAY_ROUNDS") or (300 if LONG else 10))
SEED = int(os.environ.get("FOREBAY_SEED") or (random.randrange(1 << 32) if LONG else 3634))
LANES = 10 if LONG else 5  # clusters side by side: most of the time a round waits for leases to end
MOMENT_S = 0.7  # a save takes less
AWAY_S = 2.5


def choose(dice):
    """One round: [(seconds after the last kill, victims)], then how long they stay away. Victims: node or "rank", number."""
    everybody = [("node", n) for n in range(NODES)] + [("rank", r) for r in range(RANKS)]
    kind = dice.choice(["node", "node", "rank", "some", "nodes"])
    first = {
        "node": lambda: [dice.choice(everybody[:NODES])],
        "rank": lambda: [dice.choice(everybody[NODES:])],
        "some": lambda: dice.sample(everybody, dice.randint(2, 4)),
        "nodes": lambda: everybody[:NODES],
    }[kind]()
    kills = [(dice.random() * MOMENT_S, first)]
    if dice.random() < 0.3:
        kills.append((dice.random() * MOMENT_S, dice.sample(everybody, 1)))
    return kills, dice.choice([0, 0, dice.random() * AWAY_S])


def pass_by(seconds):
    """The random moment of a kill: nothing is waited for."""
    threading.Event().wait(seconds)


def kill(training, victims):
    """All at the same moment; who is dead already stays so."""
    processes = [(training.cluster.daemons if kind == "node" else training.ranks)[number] for kind, number in victims]
    for process in processes:
        process.kill()
    for process in processes:
        process.wait(job.LIMIT_S)


def live_round(training, dice):
    """Saves, deaths, restarts, saves. Gives what died, and in words."""
    kills, away_s = choose(dice)
    training.told["staged"].clear()
    training.wait_for(training.newest() + dice.randint(1, 3))
    for after_s, victims in kills:
        pass_by(after_s)
        kill(training, victims)
    pass_by(away_s)
    dead = [node for node in range(NODES) if not training.cluster.running(node)]
    dice.shuffle(dead)
    runs, begun = training.runs, training.newest("captured")
    if dead:
        training.cluster.launch(*dead)
    training.wait_for(begun + 2)
    victims = [f"{kind} {number}" for _, names in kills for kind, number in names]
    return dead, f"{', '.join(victims)}; away {away_s:.1f} s; {(training.runs - runs) // RANKS} runs"


def live(folder, seed, rounds, lane="", job_of=Training):
    """So many rounds on a cluster of its own. The last words are its figures."""
    began = time.monotonic()
    with job.Cluster(folder / f"kill{lane}", NODES) as cluster, job_of(cluster, RANKS, TRAINER_PACE_MS="20") as training:
        checker = Checker(training)
        retain(training)
        for number in range(rounds):
            dice, begin = random.Random(f"{seed} {number}"), time.monotonic()
            training.go_on()
            dead, words = live_round(training, dice)
            training.pause()
            listed = checker.check(store=LONG or number == rounds - 1)
            if len(dead) <= 1:  # whatever happened to ranks
                checker.check_told(listed, "staged")
            print(f"seed {seed} round {number}: {words}; {time.monotonic() - begin:.1f} s; {len(training.told['durable'])} steps durable, "
                  f"newest is {max(listed)} of step {listed[max(listed)]}", flush=True)
        return (f"seed {seed}: {rounds} rounds in {time.monotonic() - began:.0f} s; {len(training.told['durable'])} steps durable, "
                f"{training.runs // RANKS} runs; failures {dict(training.failures)}; store at most {checker.store_ratio:.2f} x live; a daemon at "
                f"most {checker.most.sockets} sockets, {checker.most.others} other descriptors, {checker.most.threads} threads")


def retain(training):
    training.wait_for(1)
    training.cluster.forebay("retain", BUNDLE, "--last", KEEP)


def test_what_is_durable_survives_any_kill(tmp_path):
    print(f"\nFOREBAY_SEED={SEED} FOREBAY_ROUNDS={ROUNDS}")
    with ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(live, tmp_path, SEED + lane, ROUNDS // LANES, lane) for lane in range(LANES)]
        for lane in lanes:
            print(lane.result(), flush=True)


if LONG:

    def test_what_torch_saved_survives_any_kill(tmp_path):
        print("\n" + live(tmp_path, SEED, 10, "torch", TorchTraining))


def test_a_successor_numbers_versions_in_the_order_of_steps(tmp_path):
    """Two saves are captured when their coordinator dies, which has a slot for the first: it has to be burned before there is another."""
    cluster = job.Cluster(tmp_path / "order", NODES)
    controls = [sick.Sick(tmp_path, f"node-{node}") for node in range(NODES)]
    for node, control in enumerate(controls):
        cluster.env[node] = control.env(**({"FOREBAY_DIE_AT": "pack-begun"} if node == 1 else {}))

    def slow(ms):
        for control in controls:
            control.slow("link", ms=ms, path=f"{cluster.store}/t/")

    def let_go():
        for control in controls:
            control.heal()
        job.until(lambda: list(cluster.store.glob("t/*/b/order/v/*/slot")), "there is a slot")
        slow(300)

    captured = threading.Barrier(RANKS, let_go, job.LIMIT_S)
    with cluster:
        slow(job.LIMIT_S * 1000)  # until both are captured there is no slot

        def body(group, rank):
            saves = []
            for step in (1, 2):
                with group.save("order", step=step, copies=2) as saving:
                    saving.add(f"own/{rank}", random.Random(f"{step} {rank}").randbytes(100_000))
                saves.append(saving)
                saving.captured.wait(job.LIMIT_S)
            captured.wait()
            for saving in saves:
                saving.durable.wait(job.LIMIT_S)
            return [saving.version for saving in saves]

        results = job.ranks(cluster, RANKS, body, coordinator=1)
        assert not cluster.running(1)
        first, second = results[0]
        assert first < second and results[2] == results[0]
        with cluster.connect() as fb:
            assert [(v.number, v.step) for v in fb.versions("order")] == [(first, 1), (second, 2)]


# ---- whether the checks above would find anything ---------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path):
    with job.Cluster(tmp_path / "lies", NODES) as cluster:
        yield cluster


@pytest.fixture
def checker(cluster):
    with Training(cluster, RANKS, job.unique()) as training:
        training.wait_for(3)
        training.pause()
        yield Checker(training)


def test_who_calls_captured_durable_is_found_out(cluster):
    cluster.kill()
    cluster.launch(die_at="root-next:3")
    with Training(cluster, RANKS, "lies/durable", TRAINER_LIES="durable") as training:
        job.until(lambda: not all(map(cluster.running, range(NODES))), "the coordinator dies")
        cluster.kill()
        training.hear()
    assert max(training.told["durable"]) >= 3
    cluster.start()
    checker = Checker(training)
    with pytest.raises(AssertionError, match="was durable and is lost"):
        checker.check_told(checker.listed())


def test_a_mix_of_two_steps_is_found_out(cluster):
    with Training(cluster, RANKS, "lies/mix", TRAINER_LIES="mix") as training:
        training.wait_for(2)
        training.pause()
        checker = Checker(training)
        with pytest.raises(AssertionError, match="a mix: step [0-9]+ has step [0-9]+ in shards"):
            checker.check_whole(checker.listed())


def test_packs_of_two_versions_in_each_other_s_place_are_found_out(cluster, checker):
    checker.check()
    packs = sorted((cluster.store / "t" / "default" / "b" / checker.training.bundle / "p").iterdir())
    one, other = next((a, b) for a in packs for b in packs if a.name[:16] != b.name[:16] and a.name[17:] == b.name[17:])
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)
    with pytest.raises(AssertionError, match="verify [0-9]+: .*it is the pack of another save"):
        checker.check_whole(checker.listed())


def test_what_nobody_needs_is_found_out(cluster, checker):
    checker.check_store()
    (cluster.store / "t" / "default" / "b" / checker.training.bundle / "p" / "mine").write_bytes(bytes(100))
    with pytest.raises(AssertionError, match="mine"):
        checker.check_store()


def test_sockets_that_stay_are_found_out(cluster, checker, monkeypatch):
    checker.check_daemons()
    monkeypatch.setattr(training, "QUIET_S", 0.1)
    sessions = [cluster.connect(1) for _ in range(20)]
    with pytest.raises(AssertionError, match="node-1 grew"):
        checker.check_daemons()
    for session in sessions:
        session.close()
