#!/bin/sh
# Is the search core free of memory errors and races? Runs it under AddressSanitizer (with UndefinedBehaviorSanitizer) and
# ThreadSanitizer. Needs g++ or clang++. Run from anywhere: sh benchmarks/search/sanitize.sh [address|thread ...]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c++17 -O2 -g -fno-omit-frame-pointer -pthread"
[ $# -gt 0 ] || set -- address thread
for kind in "$@"; do
    sanitize="-fsanitize=$kind"
    [ "$kind" = address ] && sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    for file in "$root"/native/*.cpp "$root"/native/check/stress.cpp; do
        name=$(basename "$file" .cpp)
        extra=""
        case "$name" in
            bindings) continue ;;
            kernels_avx2) extra="-mavx2 -mfma -mf16c" ;;
            kernels_avx512) extra="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c" ;;
        esac
        case "$(uname -m)" in
            x86_64) extra="$extra -DNNGK_X86" ;;
            *) case "$name" in kernels_avx*) continue ;; esac ;;
        esac
        # shellcheck disable=SC2086
        "${CXX:-c++}" $flags $sanitize $extra -c "$file" -o "$build/$name.o"
    done
    # shellcheck disable=SC2086
    "${CXX:-c++}" $flags $sanitize "$build"/*.o -o "$build/stress"
    echo "$kind sanitizer:"
    if [ "$kind" = thread ]; then "$build/stress" less; else "$build/stress"; fi
    rm "$build"/*.o
done
