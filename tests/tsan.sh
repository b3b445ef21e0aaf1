#!/usr/bin/env bash
# Tests under ThreadSanitizer: tests/tsan.sh [what pytest shall run].  For GCC, on Linux.
#
# Without arguments the locks, and what threads do to one buffer at the same time. There are no
# suppressions: where readers take no lock, loads and stores are atomic in this build (_atomic.h),
# so what is reported is a race. What processes do to one buffer it cannot see, so their tests are
# left out; and those of whole copies, whose bytes Python reads while they change, have none of
# threads.
#
# Nothing of the checkout's own build is touched. CPython and NumPy are not instrumented, and need
# not be: accesses by theirs are not seen, but the mutex behind the GIL is, so what it orders is no
# race. Python's allocator has to make room for malloc, whose calls are seen; it would hand freed
# memory from thread to thread without a word. Where it says "unexpected memory mapping", run it by
# `setarch -R`.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$(realpath --no-symlinks "$(command -v "${PYTHON:-python3}")")
CC=${CC:-gcc}
BUILD=$PWD/build/tsan
TESTS=$PWD/tests
export TSAN_OPTIONS="exitcode=66 die_after_fork=0 history_size=4 ${TSAN_OPTIONS:-}"

# A sanitizer that sees nothing would be content too: it must report the race without the lock.
mkdir -p "$BUILD"
"$CC" -O1 -g -fsanitize=thread -Wno-tsan -pthread -Ikary_replay tests/lock_race.c -o "$BUILD/race"
"$BUILD/race"
if "$BUILD/race" without-lock >"$BUILD/race.log" 2>&1 ||
    ! grep --quiet "ThreadSanitizer: data race" "$BUILD/race.log"; then
    echo "ThreadSanitizer does not report a race that is there" >&2
    exit 1
fi

KARY_REPLAY_TSAN=1 "$PYTHON" setup.py --quiet build \
    --build-lib "$BUILD/package" --build-temp "$BUILD/objects"
if [ $# -eq 0 ]; then
    set -- "$TESTS/test_lock.py" "$TESTS/test_races.py" -k "not process"
else
    set -- "${@/#tests\//$TESTS/}"
fi
cd "$BUILD/package" # before the checkout on the path of imports
LD_PRELOAD=$("$CC" -print-file-name=libtsan.so) PYTHONMALLOC=malloc OMP_NUM_THREADS=1 \
    "$PYTHON" -m pytest -p no:cacheprovider --capture=no --rootdir "$TESTS/.." "$@"
