// Work shared among std::threads that live as long as one call: nothing outlives a fork, and no OpenMP runtime meets
// torch's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

namespace nngk {

// Readers that follow each other closely would keep a writer out for ever: whoever comes while one waits, waits behind it.
class FairMutex {
public:
    void lock() {
        const std::lock_guard<std::mutex> turn(gate_);
        inner_.lock();
    }
    void lock_shared() {
        const std::lock_guard<std::mutex> turn(gate_);
        inner_.lock_shared();
    }
    void unlock() { inner_.unlock(); }
    void unlock_shared() { inner_.unlock_shared(); }

private:
    std::mutex gate_;
    std::shared_mutex inner_;
};

// Calls work(begin, end, thread) for pieces of [0, n). Which thread gets which piece may vary; the pieces do not.
template <class Work>
void parallel(size_t n, size_t piece, int threads, Work&& work) {
    piece = std::max<size_t>(piece, 1);
    const size_t pieces = (n + piece - 1) / piece;
    const int used = int(std::min<size_t>(size_t(std::max(threads, 1)), pieces));
    if (used <= 1) {
        for (size_t p = 0; p < pieces; ++p) work(p * piece, std::min(n, (p + 1) * piece), 0);
        return;
    }
    std::atomic<size_t> next{0};
    std::exception_ptr failure;
    std::mutex failed;
    auto run = [&](int thread) {
        try {
            for (size_t p; (p = next.fetch_add(1)) < pieces;) work(p * piece, std::min(n, (p + 1) * piece), thread);
        } catch (...) {
            std::lock_guard<std::mutex> guard(failed);
            if (!failure) failure = std::current_exception();
            next.store(pieces);
        }
    };
    std::vector<std::thread> others;
    for (int t = 1; t < used; ++t) others.emplace_back(run, t);
    run(0);
    for (auto& thread : others) thread.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace nngk
