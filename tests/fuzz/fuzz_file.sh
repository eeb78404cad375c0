#!/bin/sh
# A coverage-guided fuzz of the compiled reader of index files (native/file.cpp) under AddressSanitizer and
# UndefinedBehaviorSanitizer. Needs clang++ with libFuzzer (Debian: apt-get install clang libclang-rt-dev). New inputs go to the
# folder WORK; those in tests/fuzz/native are tried by the suite too. Run from anywhere:
#     sh tests/fuzz/fuzz_file.sh WORK [libFuzzer's options; -max_total_time=600 if there are none]
set -eu
[ $# -gt 0 ] || { echo "usage: $0 WORK [options]" >&2; exit 2; }
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$1
shift
[ $# -gt 0 ] || set -- -max_total_time=600
mkdir -p "$work"
build=$work.build # kept, so that a second run starts at once
mkdir -p "$build"
flags="-std=c++17 -O1 -g -fno-omit-frame-pointer -pthread -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined"
for file in "$root"/native/*.cpp "$root"/native/check/fuzz.cpp; do
    name=$(basename "$file" .cpp)
    case "$name" in
        bindings | file | kernels_avx*) continue ;; # fuzz.cpp includes file.cpp; the plain kernels are the portable ones
    esac
    [ -z "$(find "$root/native" -newer "$build/$name.o" -name '*.[ch]*' 2>&1)" ] && continue
    # shellcheck disable=SC2086
    "${CXX:-clang++}" $flags -c "$file" -o "$build/$name.o"
done
# shellcheck disable=SC2086
"${CXX:-clang++}" $flags "$build"/*.o -o "$build/fuzz"
"$build/fuzz" -timeout=10 -rss_limit_mb=2048 -max_len=16384 "$@" "$work" "$root/tests/fuzz/native"
