// A file read into memory. It is not mapped: a file that somebody cuts short or overwrites later would end the process,
// or change what was checked.
#pragma once

#include "memory.h"

#include <string>

namespace nngk {

class Contents {
public:
    explicit Contents(const std::string& path);
    char* data() { return bytes_.data(); }
    size_t size() const { return bytes_.size(); }

private:
    Array<char> bytes_;
};

}  // namespace nngk
