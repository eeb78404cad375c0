// Which kernels this processor runs.
#include "kernels.h"
#include "../processor.h"

namespace nngk::maps {

const Kernels* kernels_named(const char* name) {
    if (!processor_runs(name)) return nullptr;
#ifdef NNGK_X86
    if (!std::strcmp(name, "avx2")) return &avx2_kernels();
    if (!std::strcmp(name, "avx512")) return &avx512_kernels();
#endif
    return &plain_kernels();
}

const Kernels& kernels() {
    static const Kernels& chosen = *kernels_named(chosen_set());
    return chosen;
}

}  // namespace nngk::maps
