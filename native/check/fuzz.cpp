// A fuzz target for libFuzzer and the sanitizers: whatever is in an index file, loading it refuses it or gives an index
// that can be searched, changed and saved. The first byte of an input says whether checksums are made right.
#include "../file.cpp"

#include <cmath>
#include <cstdlib>
#include <sys/mman.h>

using namespace nngk;

namespace {

constexpr size_t MOST_WORK = 4096;  // points of an index that is used after loading

// Makes all checksums right, so that what lies behind them is reached.
void seal(char* data, size_t bytes) {
    Header h;
    if (bytes < sizeof h) return;
    std::memcpy(&h, data, sizeof h);
    for (Section& s : h.sections)
        if (s.offset <= bytes && s.bytes <= bytes - s.offset) s.checksum = checksum(data + s.offset, s.bytes);
    h.checksum = checksum(reinterpret_cast<const char*>(&h), offsetof(Header, checksum));
    std::memcpy(data, &h, sizeof h);
}

// A file in memory, with a name.
class Nameless {
public:
    Nameless(const char* data, size_t bytes) : descriptor_(::memfd_create("index", MFD_CLOEXEC)) {
        if (descriptor_ < 0 || ::write(descriptor_, data, bytes) != ssize_t(bytes)) std::abort();
    }
    ~Nameless() { ::close(descriptor_); }
    std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

private:
    int descriptor_;
};

void use(Fanng& index) {
    const size_t dim = index.settings().dim, n = index.id_count(), k = 3, rows = 2;
    if (n > MOST_WORK || dim > 256) return;
    std::vector<float> x(rows * dim), d(std::max(rows, n) * k);
    std::vector<int64_t> i(std::max(rows, n) * k), ids(rows);
    for (size_t j = 0; j < x.size(); ++j) x[j] = std::sin(float(j));
    auto expect_sound = [&](size_t count) {
        for (size_t j = 0; j < count * k; ++j)
            if (i[j] >= int64_t(index.id_count()) || i[j] < -1 || std::isnan(d[j])) std::abort();
    };
    index.search(x.data(), rows, k, Effort{8, 0}, 1, d.data(), i.data()), expect_sound(rows);
    index.search(x.data(), rows, k, Effort{0, 50}, 1, d.data(), i.data()), expect_sound(rows);
    index.search_points(nullptr, n, k, Effort{8, 0}, true, 1, d.data(), i.data()), expect_sound(n);
    index.stats();
    std::vector<int64_t> gone;
    for (int64_t id = 0; id < int64_t(n); ++id)
        if (!index.alive(id)) continue;
        else if (gone.size() * 2 < index.size()) gone.push_back(id);
    index.add(x.data(), rows, 1, ids.data());
    index.remove(gone.data(), gone.size(), 1);
    const std::vector<float> moved(index.size() * dim, 0.5f);
    index.update(moved.data(), index.size(), 1);
    index.search(x.data(), rows, k, Effort{8, 0}, 1, d.data(), i.data()), expect_sound(rows);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* input, size_t bytes) {
    if (bytes < 1) return 0;
    std::vector<char> data(input + 1, input + bytes);
    if (input[0] & 1) seal(data.data(), data.size());
    const Nameless file(data.data(), data.size());
    std::unique_ptr<Fanng> index;
    try {
        index = Fanng::load(file.path());
    } catch (const std::runtime_error&) {  // the only refusal that the Python side knows
        return 0;
    }
    use(*index);
    return 0;
}
