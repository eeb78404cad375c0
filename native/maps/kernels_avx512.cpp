#include "loops.h"

namespace nngk::maps {

const Kernels& avx512_kernels() {
    static const Kernels set{"avx512", product<16, 8, 3>, depthwise<16>};
    return set;
}

}  // namespace nngk::maps
