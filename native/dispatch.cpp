// Which kernels this processor runs.
#include "kernels.h"

#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace nngk {

const Kernels* kernels_named(const char* name) {
    if (!std::strcmp(name, "plain")) return &plain_kernels();
#ifdef NNGK_X86
    __builtin_cpu_init();
    if (!std::strcmp(name, "avx2")) {
        const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        return runs ? &avx2_kernels() : nullptr;
    }
    if (!std::strcmp(name, "avx512")) {
        const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
        return runs ? &avx512_kernels() : nullptr;
    }
#endif
    return nullptr;
}

const Kernels& kernels() {
    static const Kernels& chosen = [&]() -> const Kernels& {
        const char* wanted = std::getenv("NNGK_KERNELS");
        if (wanted)
            if (const Kernels* set = kernels_named(wanted)) return *set;
        for (const char* name : {"avx512", "avx2"})
            if (const Kernels* set = kernels_named(name)) return *set;
        return plain_kernels();
    }();
    return chosen;
}

}  // namespace nngk
