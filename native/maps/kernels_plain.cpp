#include "loops.h"

namespace nngk::maps {

const Kernels& plain_kernels() {
    static const Kernels set{"plain", product<4, 3, 1>, depthwise<4>};
    return set;
}

}  // namespace nngk::maps
