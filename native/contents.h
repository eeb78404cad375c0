// A file that is read: parts of it into memory, or rows of it one by one where they are needed. It is never mapped: a file
// that somebody cuts short or overwrites later would end the process, or change what was checked.
#pragma once

#include "memory.h"

#include <memory>
#include <string>
#include <vector>

namespace nngk {

class Contents {
public:
    explicit Contents(const std::string& path);
    ~Contents();
    Contents(const Contents&) = delete;
    Contents& operator=(const Contents&) = delete;

    size_t size() const { return size_; }
    // Throws a sentence where the file has become shorter or cannot be read.
    void read(size_t offset, void* out, size_t bytes) const;
    // A part in memory, which lives as long as this.
    char* keep(size_t offset, size_t bytes);

private:
    int descriptor_;
    size_t size_ = 0;
    std::vector<Array<char>> kept_;
};

// StoredRows of equal length that stay in a file.
struct StoredRows {
    std::shared_ptr<const Contents> contents;
    size_t offset = 0, bytes = 0;  // of all before the first row, and of one row
    void read(size_t i, void* out, size_t count = 1) const { contents->read(offset + i * bytes, out, count * bytes); }
};

// Four lanes, so that checking costs little beside reading. Pieces but the last are multiples of 32 bytes.
class Checksum {
public:
    void add(const char* data, size_t bytes);
    uint64_t value() const;

private:
    uint64_t lanes_[4] = {1, 2, 3, 4};
    uint64_t total_ = 0;
    std::vector<char> rest_;
};

uint64_t checksum(const void* data, size_t bytes);

[[noreturn]] void refuse(const std::string& why);
void require(bool holds, const char* what);

}  // namespace nngk
