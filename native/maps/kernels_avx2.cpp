#include "loops.h"

namespace nngk::maps {

const Kernels& avx2_kernels() {
    static const Kernels set{"avx2", product<8, 6, 1>, depthwise<8>};
    return set;
}

}  // namespace nngk::maps
