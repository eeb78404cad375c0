// Threads that work on one call together: PyTorch's own, where they are libgomp's, and new ones elsewhere.
//
// PyTorch's threads go on looking for work for some milliseconds after each of its operations. Others beside them would
// have to share the processors with that, and a pass of one image takes no longer.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>

namespace nngk::maps {

// Who has come here waits for all others. They are expected soon.
class Barrier {
public:
    void wait(size_t count) {
        const size_t round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (size_t tries = 0; round_.load(std::memory_order_acquire) == round; ++tries)
            if (tries < SOON) pause();
            else std::this_thread::yield();
    }

private:
    static constexpr size_t SOON = 4000;
    static void pause() {
#if defined(__x86_64__) || defined(_M_X64)
        __builtin_ia32_pause();
#endif
    }
    std::atomic<size_t> arrived_{0}, round_{0};
};

struct Range {
    size_t begin, end;
};

struct Member {
    size_t index, count;
    Barrier& barrier;

    void wait() const { barrier.wait(count); }
    // Its part of n things.
    Range share(size_t n) const { return {n * index / count, n * (index + 1) / count}; }
};

// Lets so many members do the work, or fewer where the system does not give as many; an exception of one is thrown here.
// A member that fails must not be waited for.
void in_team(int threads, const std::function<void(const Member&)>& work);

}  // namespace nngk::maps
