// A program for the sanitizers: every path of the core, then adding, removing, moving and searching at once.
#include "../cells.h"
#include "../exact.h"
#include "../fanng.h"
#include "../reduced.h"

#include <cmath>
#include <cstdio>
#include <random>
#include <thread>

using namespace nngk;

namespace {

std::vector<float> normal(size_t n, size_t dim, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> draw;
    std::vector<float> x(n * dim);
    for (float& value : x) value = draw(random);
    return x;
}

void expect(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::exit(1);
}

float distance(const float* a, const float* b, size_t dim) {
    float sum = 0;
    for (size_t k = 0; k < dim; ++k) sum += (a[k] - b[k]) * (a[k] - b[k]);
    return sum;
}

void exact(size_t n, size_t dim, size_t k) {
    const std::vector<float> x = normal(n, dim, 1);
    const ExactIndex index(x.data(), n, dim, 3);
    std::vector<float> d(n * k);
    std::vector<int64_t> i(n * k);
    index.all_neighbours(k, 3, d.data(), i.data());
    for (size_t row = 0; row < n; ++row)
        for (size_t j = 0; j < k; ++j)
            if (i[row * k + j] >= 0)
                expect(std::fabs(d[row * k + j] - distance(&x[row * dim], &x[size_t(i[row * k + j]) * dim], dim)) < 1e-3f, "exact distance");
    for (size_t count : {size_t(1), size_t(5), size_t(100)}) index.search(x.data(), std::min(count, n), k, 3, d.data(), i.data());
}

// Lists through cells, in all dimensions and in half of them, with few probes and with as many as there are cells.
void cells(size_t n, size_t keep) {
    const size_t dim = 2 * PAD;
    const std::vector<float> x = normal(n, dim, 2);
    const Matrix rows{x.data(), dim};
    const Reduced less = reduced(rows, n, dim, dim / 2, 0, 3);
    for (const bool all : {true, false})
        for (size_t probes : {size_t(1), size_t(4), n}) {
            Cells parts(all ? rows : less.matrix(), all ? nullptr : less.rest.data(), n, all ? dim : dim / 2);
            parts.train(3);
            std::vector<size_t> found(n, 0);
            parts.neighbours(keep, probes, 3, [&](uint32_t v, const uint64_t* keys, size_t count) {
                for (size_t j = 0; j < count; ++j) expect(key_id(keys[j]) != v && key_id(keys[j]) < n, "neighbour");
                found[v] = count;
            });
            for (size_t v = 0; probes == n && v < n; ++v) expect(found[v] == std::min(keep, n - 1), "number of neighbours");
        }
}

void every_path(Storage storage, size_t n, size_t dim, const char* path) {
    Settings settings;
    settings.dim = uint32_t(dim), settings.storage = storage;
    Fanng index(settings);
    const std::vector<float> x = normal(n, dim, 2), more = normal(300, dim, 3);
    index.build(x.data(), n, 3);
    std::vector<float> d((n + 300) * 8);
    std::vector<int64_t> i((n + 300) * 8), ids(300), gone, truth(50 * 8);
    index.search(x.data(), 50, 8, Effort{20, 0}, 3, d.data(), i.data());
    index.search(x.data(), 50, 8, Effort{0, 200}, 3, d.data(), i.data());
    index.search_points(nullptr, n, 8, Effort{10, 0}, true, 3, d.data(), i.data());
    for (int64_t id = 0; id < 50; ++id) gone.push_back(id);
    index.scan_points(gone.data(), 50, 8, 3, d.data(), truth.data());
    index.search_points(gone.data(), 50, 8, Effort{10, 0}, false, 3, d.data(), i.data());
    index.complete_lists(8, gone.data(), truth.data(), 50, 1.0, 3);
    index.from_lists(gone.data(), 50, 8, 3, d.data(), i.data());
    index.add(more.data(), 300, 3, ids.data());
    for (int64_t id = 50; id < int64_t(n / 3); ++id) gone.push_back(id);
    index.remove(gone.data(), gone.size(), 3);
    index.search_points(nullptr, n, 8, Effort{10, 0}, true, 3, d.data(), i.data());
    index.save(path);
    const std::unique_ptr<Fanng> opened = Fanng::load(path, true);
    opened->search(x.data(), 50, 8, Effort{20, 0}, 3, d.data(), i.data());
    opened->scan_points(ids.data(), 50, 8, 3, d.data(), truth.data());
    const std::unique_ptr<Fanng> loaded = Fanng::load(path);
    const std::vector<float> moved = normal(loaded->size(), dim, 4);
    loaded->update(moved.data(), loaded->size(), 3);
    loaded->add(more.data(), 300, 3, ids.data());
    loaded->search(x.data(), 50, 8, Effort{20, 0}, 3, d.data(), i.data());
    std::remove(path);
}

void at_once(size_t n, size_t dim, int steps) {
    Settings settings;
    settings.dim = uint32_t(dim);
    Fanng index(settings);
    const std::vector<float> x = normal(n + 50 * size_t(steps), dim, 5), queries = normal(64, dim, 6);
    index.build(x.data(), n, 2);
    std::atomic<bool> done{false};
    std::vector<std::thread> readers;
    for (int reader = 0; reader < 3; ++reader)
        readers.emplace_back([&] {
            std::vector<float> d(64 * 5);
            std::vector<int64_t> i(64 * 5);
            while (!done) {
                index.search(queries.data(), 64, 5, Effort{20, 0}, 2, d.data(), i.data());
                for (size_t j = 0; j < i.size(); ++j) {
                    expect(i[j] >= 0 && size_t(i[j]) < x.size() / dim, "index");
                    expect(std::fabs(d[j] - distance(&queries[j / 5 * dim], &x[size_t(i[j]) * dim], dim)) < 1e-3f, "distance");
                }
                index.stats();
            }
        });
    std::vector<int64_t> ids(50);
    for (int step = 0; step < steps; ++step) {
        index.add(&x[(n + 50 * size_t(step)) * dim], 50, 2, ids.data());
        for (int64_t j = 0; j < 50; ++j) ids[size_t(j)] = 100 * step + j;
        index.remove(ids.data(), 50, 2);
    }
    done = true;
    for (std::thread& reader : readers) reader.join();
}

}  // namespace

// With an argument less of everything: the thread sanitizer makes each memory access many times as dear.
int main(int count, char** arguments) {
    const std::string path = std::string(arguments[0]) + ".fanng";
    const bool less = count > 1;
    for (size_t n : {size_t(1), size_t(2), size_t(49), size_t(less ? 200 : 700)})
        for (size_t dim : {size_t(1), size_t(33)}) exact(n, dim, 6);
    for (size_t n : {size_t(1), size_t(50), size_t(less ? 500 : 3000)}) cells(n, 20);
    for (Storage storage : {Storage::f32, Storage::bf16, Storage::f16})
        if (!less || storage == Storage::f32) every_path(storage, less ? 4200 : 4500, less ? 4 : 20, path.c_str());
    at_once(less ? 600 : 1500, less ? 8 : 24, less ? 4 : 8);
    std::puts("no wrong answer");
}
