// A file mapped into memory with private pages: it is read as it is touched, and never written.
#pragma once

#include <cstddef>
#include <string>

namespace nngk {

class Mapping {
public:
    explicit Mapping(const std::string& path);
    ~Mapping();
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    char* data() const { return data_; }
    size_t size() const { return size_; }

private:
    char* data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace nngk
