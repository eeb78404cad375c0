#include "team.h"

#include <cstring>
#include <exception>
#include <mutex>
#include <vector>

#ifdef __linux__
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#endif

namespace nngk::maps {
namespace {

struct Job {
    const std::function<void(const Member&)>& work;
    Barrier barrier{};
    std::mutex failed{};
    std::exception_ptr failure{};

    void run(size_t index, size_t count) {
        try {
            work({index, count, barrier});
        } catch (...) {
            const std::lock_guard<std::mutex> guard(failed);
            if (!failure) failure = std::current_exception();
        }
    }
};

#ifdef __linux__
std::atomic<bool> forked{false};  // the threads of the process before are not there

// The functions of libgomp by which programs of GCC start threads and ask for themselves.
struct Libgomp {
    void (*parallel)(void (*)(void*), void*, unsigned, unsigned) = nullptr;
    int (*index)() = nullptr;
    int (*count)() = nullptr;

    // The one that PyTorch has loaded, and no other.
    Libgomp() {
        const char* path = nullptr;
        ::dl_iterate_phdr([](dl_phdr_info* info, size_t, void* found) {
            const char* name = std::strrchr(info->dlpi_name, '/');
            const bool theirs = name && std::strstr(info->dlpi_name, "torch") && !std::strncmp(name, "/libgomp", 8);
            if (theirs) *static_cast<const char**>(found) = info->dlpi_name;
            return int(theirs);
        }, &path);
        void* library = path ? ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
        if (!library || ::pthread_atfork(nullptr, nullptr, [] { forked = true; })) return;
        const auto find = [&](auto& function, const char* name) { function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name)); };
        find(index, "omp_get_thread_num"), find(count, "omp_get_num_threads");
        if (index && count) find(parallel, "GOMP_parallel");
    }
};

bool with_torchs_threads(Job& job, int threads) {
    static const Libgomp library;
    if (!library.parallel || forked) return false;
    library.parallel([](void* job) { static_cast<Job*>(job)->run(size_t(library.index()), size_t(library.count())); }, &job,
                     unsigned(threads), 0);
    return true;
}
#else
bool with_torchs_threads(Job&, int) { return false; }
#endif

}  // namespace

void in_team(int threads, const std::function<void(const Member&)>& work) {
    Job job{work};
    if (threads <= 1) {
        job.run(0, 1);
    } else if (!with_torchs_threads(job, threads)) {
        std::vector<std::thread> others;
        std::atomic<size_t> count{0};  // known once all are there: until then they wait
        for (int t = 1; t < threads; ++t) {
            try {
                others.emplace_back([&job, &count, t] {
                    while (!count) std::this_thread::yield();
                    job.run(size_t(t), count);
                });
            } catch (const std::system_error&) {
                break;
            }
        }
        count = others.size() + 1;
        job.run(0, count);
        for (std::thread& other : others) other.join();
    }
    if (job.failure) std::rethrow_exception(job.failure);
}

}  // namespace nngk::maps
