#include "contents.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <sys/stat.h>
#include <unistd.h>

namespace nngk {
namespace {

uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9e3779b97f4a7c15ull;
    return h ^ (h >> 29);
}

}  // namespace

void refuse(const std::string& why) { throw std::runtime_error(why); }

void require(bool holds, const char* what) {
    if (!holds) refuse(std::string("is damaged (") + what + ")");
}

Contents::Contents(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {  // a pipe must not make us wait
    if (descriptor_ < 0) refuse("cannot be opened: " + std::string(std::strerror(errno)));
    struct stat info;
    if (::fstat(descriptor_, &info) || !S_ISREG(info.st_mode) || info.st_size <= 0) {
        ::close(descriptor_);
        refuse("is empty or not a file");
    }
    size_ = size_t(info.st_size);
}

Contents::~Contents() { ::close(descriptor_); }

void Contents::read(size_t offset, void* out, size_t bytes) const {
    char* to = static_cast<char*>(out);
    while (bytes) {
        const ssize_t got = ::pread(descriptor_, to, std::min<size_t>(bytes, 1 << 30), off_t(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) refuse("cannot be read: " + std::string(std::strerror(errno)));
        require(got > 0, "it became shorter while it was read");
        to += got, offset += size_t(got), bytes -= size_t(got);
    }
}

char* Contents::keep(size_t offset, size_t bytes) {
    Array<char> part;
    try {
        part.resize(bytes);
    } catch (const std::exception&) {
        refuse("needs " + std::to_string(size_) + " bytes of memory, more than there are");
    }
    read(offset, part.data(), bytes);
    kept_.push_back(std::move(part));
    return kept_.back().data();
}

void Checksum::add(const char* data, size_t bytes) {
    total_ += bytes;
    size_t at = 0;
    for (; at + 32 <= bytes; at += 32)
        for (size_t l = 0; l < 4; ++l) {
            uint64_t word;
            std::memcpy(&word, data + at + 8 * l, 8);
            lanes_[l] = mix(lanes_[l], word);
        }
    rest_.assign(data + at, data + bytes);
}

uint64_t Checksum::value() const {
    uint64_t h = total_;
    for (const char c : rest_) h = mix(h, uint64_t(uint8_t(c)));
    for (const uint64_t lane : lanes_) h = mix(h, lane);
    return h;
}

uint64_t checksum(const void* data, size_t bytes) {
    Checksum sum;
    sum.add(static_cast<const char*>(data), bytes);
    return sum.value();
}

}  // namespace nngk
