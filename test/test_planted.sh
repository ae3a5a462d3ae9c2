#!/bin/bash
# The simulator finds each bug of src/sim/planted: in a copy of the tree, with the patch, one of its first seeds fails; without it none
# does. A patch that does not apply any more is a failure, too: it is to be made anew. Prints TAP.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${FOREBAY_BUILD:-$PWD/build}
seeds=100
patches=(src/sim/planted/*.patch)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
n=0

result() { # STATUS TEXT
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

run_seeds() { # "none", or how the first seed failed
	"$copy/build/forebay-sim" --seeds $seeds >"$copy/sim.log" 2>&1
	grep -m 1 '^FAILED' "$copy/sim.log" || echo none
}

echo "1..$((${#patches[@]} + 1))"
# With its times, so that only what a patch changes is built again. Tests and the built programs of others are not needed.
tar -cf - --exclude='*_test' --exclude='*_test.p' --exclude='fuzz_*' src include tools fuzz bench docs python demo test meson.build \
	meson_options.txt Makefile 2>/dev/null | tar -xf - -C "$copy"
mkdir "$copy/build"
tar -cf - --exclude='*_test' --exclude='*_test.p' --exclude='fuzz_*' --exclude='.lock' -C "$build" . | tar -xf - -C "$copy/build"

make_sim() {
	ninja -C "$copy/build" forebay-sim >"$copy/ninja.log" 2>&1 || { sed 's/^/# /' "$copy/ninja.log"; return 1; }
}

make_sim
found=$(run_seeds)
[ "$found" = none ]
result $? "without a patch $seeds seeds find: $found"
for patch in "${patches[@]}"; do
	if git -C "$copy" apply "$PWD/$patch" >"$copy/patch.log" 2>&1 && make_sim; then
		found=$(run_seeds)
		[ "$found" != none ]
		result $? "$(basename "$patch" .patch): $seeds seeds find: $found"
	else
		sed 's/^/# /' "$copy/patch.log"
		result 1 "$(basename "$patch") does not apply or build any more"
	fi
	git -C "$copy" apply -R "$PWD/$patch" 2>"$copy/patch.log"
done
