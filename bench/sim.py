"""Histories that the simulator goes through in a second, one thread: best of three stretches of 100. Nothing to compare with."""
import subprocess
import time

SEEDS, ROUNDS = 100, 3

best = 0.0
for n in range(ROUNDS):
    begin = time.monotonic()
    subprocess.run(["build/forebay-sim", "--from", str(n * SEEDS), "--seeds", str(SEEDS)], check=False, stdout=subprocess.DEVNULL)
    best = max(best, SEEDS / (time.monotonic() - begin))
print(f"{'simulator, one thread':<58} {'1/s':>7} {best:>10.1f} {'-':>10} {'-':>6}")
