// Which instruction sets this processor runs, and which of them is to be used.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace nngk {

// Of plain, avx2 and avx512, for which the kernels are compiled.
inline bool processor_runs(const char* set) {
    if (!std::strcmp(set, "plain")) return true;
#ifdef NNGK_X86
    __builtin_cpu_init();
    if (!std::strcmp(set, "avx2"))
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (!std::strcmp(set, "avx512"))
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq");
#endif
    return false;
}

// The best one; the environment variable NNGK_KERNELS overrules it where the processor runs what it names.
inline const char* chosen_set() {
    const char* wanted = std::getenv("NNGK_KERNELS");
    for (const char* set : {"plain", "avx2", "avx512"})
        if (wanted && !std::strcmp(wanted, set) && processor_runs(set)) return set;
    return processor_runs("avx512") ? "avx512" : processor_runs("avx2") ? "avx2" : "plain";
}

}  // namespace nngk
