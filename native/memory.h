// Arrays that begin on a cache line; large ones ask for large pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace nngk {

constexpr size_t HUGE_PAGE = size_t(2) << 20;

template <class T>
struct Aligned {
    using value_type = T;
    Aligned() = default;
    template <class U>
    Aligned(const Aligned<U>&) {}
    T* allocate(size_t n) {
        const size_t bytes = n * sizeof(T);
        void* at = ::operator new(bytes, std::align_val_t(alignment(bytes)));
#ifdef __linux__
        // A walk jumps through its arrays: with small pages most of its steps would look up another page first.
        if (bytes >= HUGE_PAGE) ::madvise(at, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
        return static_cast<T*>(at);
    }
    void deallocate(T* p, size_t n) { ::operator delete(p, std::align_val_t(alignment(n * sizeof(T)))); }
    static size_t alignment(size_t bytes) { return bytes >= HUGE_PAGE ? HUGE_PAGE : 64; }
    // Leaves plain values uninitialised on resize: large arrays are filled once, by the threads that need them.
    template <class U, class... Args>
    void construct(U* p, Args&&... args) {
        if constexpr (sizeof...(Args) == 0)
            ::new (static_cast<void*>(p)) U;
        else
            ::new (static_cast<void*>(p)) U(static_cast<Args&&>(args)...);
    }
    template <class U>
    bool operator==(const Aligned<U>&) const { return true; }
    template <class U>
    bool operator!=(const Aligned<U>&) const { return false; }
};

template <class T>
using Array = std::vector<T, Aligned<T>>;

// No vertex.
constexpr uint32_t NONE = 0xffffffffu;

inline size_t rounded(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace nngk
