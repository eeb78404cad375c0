#!/bin/sh
# Is the compiled core free of memory errors and races? Runs the search and the network under AddressSanitizer (with
# UndefinedBehaviorSanitizer) and ThreadSanitizer. Needs g++ or clang++. Run from anywhere:
#     sh benchmarks/search/sanitize.sh [address|thread ...]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
flags="-std=c++17 -O2 -g -fno-omit-frame-pointer -pthread"
[ $# -gt 0 ] || set -- address thread

# program NAME WARNINGS FILE ...: compile and link the files that this processor can run
program() {
    made=$1 warnings=$2
    shift 2
    for file in "$@"; do
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
        "${CXX:-c++}" $flags $sanitize $warnings $extra -c "$file" -o "$build/$name.o"
    done
    # shellcheck disable=SC2086
    "${CXX:-c++}" $flags $sanitize "$build"/*.o -o "$build/$made"
    rm "$build"/*.o
}

for kind in "$@"; do
    sanitize="-fsanitize=$kind"
    [ "$kind" = address ] && sanitize="-fsanitize=address,undefined -fno-sanitize-recover=undefined"
    less=""
    [ "$kind" = thread ] && less=less
    program stress "" "$root"/native/*.cpp "$root/native/check/stress.cpp"
    program maps -Wno-psabi "$root"/native/maps/*.cpp "$root/native/check/maps.cpp"
    echo "$kind sanitizer:"
    "$build/maps" $less
    "$build/stress" $less
done
