#!/bin/bash
# test/test_planted.sh [all]: the simulator finds the bugs of src/sim/planted/README.md, each in a copy of the tree with its patch: a seed
# fails. Without a patch none does. Every patch must be in that table, and apply; one that does not any more is to be made anew. As a test:
# the bugs marked there for it, within 200 seeds each; `all`: all of them, within 5,000, and those marked `unit`, which make the unit test
# that the table names fail. Prints TAP, and how many seeds each took.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
build=${FOREBAY_BUILD:-$PWD/build}
planted=src/sim/planted
PIECE=25 # seeds at a time
seeds=200
wanted=test
if [ "${1:-}" = all ]; then seeds=5000 wanted=all; fi
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
n=0 bad=0

result() { # STATUS TEXT
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else bad=$((bad + 1)) && echo "not ok $n - $2"; fi
}

rows() { # the table: name and, if it is one of the test's, "test"
	sed -n 's/^| `\([a-z-]*\)` |.*| \([a-z]*\) *|$/\1 \2/p' $planted/README.md
}

make_sim() {
	ninja -C "$copy/build" forebay-sim >"$copy/ninja.log" 2>&1 || { sed 's/^/# /' "$copy/ninja.log"; return 1; }
}

run_seeds() { # N: "none", or how the first seed failed
	local from
	for ((from = 0; from < $1; from += PIECE)); do
		"$copy/build/forebay-sim" --from $from --seeds $PIECE >"$copy/sim.log" 2>&1
		grep -m 1 '^FAILED' "$copy/sim.log" && return
	done
	echo none
}

try() { # NAME
	local begin=$SECONDS found
	if ! { git -C "$copy" apply "$PWD/$planted/$1.patch" >"$copy/patch.log" 2>&1 && make_sim; }; then
		sed 's/^/# /' "$copy/patch.log"
		result 1 "$1 does not apply or build any more"
		return
	fi
	found=$(run_seeds $seeds)
	[ "$found" != none ]
	result $? "$1: $seeds seeds find, in $((SECONDS - begin)) s: $found"
	git -C "$copy" apply -R "$PWD/$planted/$1.patch" 2>"$copy/patch.log"
}

unit_of() { # NAME: the unit test that the table names
	sed -n "s/^| \`$1\` |.*| \`\([a-z_]*_test\)\` | unit *|$/\1/p" $planted/README.md
}

try_unit() { # NAME TEST
	local passed=1 failed=1
	ninja -C "$copy/build" "$2" >"$copy/ninja.log" 2>&1 && "$copy/build/$2" >"$copy/unit.log" 2>&1 && passed=0
	git -C "$copy" apply "$PWD/$planted/$1.patch" >"$copy/patch.log" 2>&1 &&
		ninja -C "$copy/build" "$2" >"$copy/ninja.log" 2>&1 && ! "$copy/build/$2" >"$copy/unit.log" 2>&1 && failed=0
	[ $passed$failed = 00 ]
	result $? "$1: $2 $([ $passed = 0 ] && echo passes || echo fails) without it, and $([ $failed = 0 ] && echo fails || echo passes) with it"
	git -C "$copy" apply -R "$PWD/$planted/$1.patch" 2>"$copy/patch.log"
}

# With its times, so that only what a patch changes is built again. Tests and the built programs of others are not needed.
tar -cf - --exclude='*_test' --exclude='*_test.p' --exclude='fuzz_*' src include tools fuzz bench docs python demo test meson.build \
	meson_options.txt Makefile 2>/dev/null | tar -xf - -C "$copy"
mkdir "$copy/build"
tar -cf - --exclude='*_test' --exclude='*_test.p' --exclude='fuzz_*' --exclude='.lock' -C "$build" . | tar -xf - -C "$copy/build"

mapfile -t bugs < <(rows | if [ $wanted = all ]; then cat; else grep ' test$'; fi | cut -d' ' -f1)
echo "1..$((${#bugs[@]} + 3))"
there=$(cd $planted && ls ./*.patch | sed 's|^\./||;s|\.patch$||')
named=$(rows | cut -d' ' -f1 | LC_ALL=C sort)
[ "$(echo "$there" | LC_ALL=C sort)" = "$named" ] && [ "$(echo "$named" | wc -l)" -ge 20 ]
result $? "each of the $(echo "$named" | wc -l) bugs of the table has its patch"
for name in $there; do
	git -C "$copy" apply --check "$PWD/$planted/$name.patch" >>"$copy/check.log" 2>&1 || echo "# $name" >>"$copy/check.log"
done
[ ! -s "$copy/check.log" ]
result $? "each patch applies"
[ ! -s "$copy/check.log" ] || sed 's/^/# /' "$copy/check.log"
make_sim
found=$(run_seeds 100)
[ "$found" = none ]
result $? "without a patch 100 seeds find: $found"
for name in "${bugs[@]}"; do
	unit=$(unit_of "$name")
	if [ -n "$unit" ]; then try_unit "$name" "$unit"; else try "$name"; fi
done
[ $bad = 0 ]
