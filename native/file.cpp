// One flat file: a header with the sizes and checksums of the sections, then the sections as they lie in memory.
#include "fanng.h"

#include "contents.h"

#include <cerrno>
#include <cmath>
#include <fcntl.h>
#include <mutex>
#include <stdexcept>
#include <unistd.h>
#include <utility>

namespace nngk {
namespace {

constexpr char MAGIC[8] = {'N', 'N', 'G', 'K', 'F', 'A', 'N', '2'};
constexpr size_t SECTIONS = 10;
constexpr size_t VECTORS = 0, HALVES = 1, LISTS = 5;  // sections that may stay in the file
constexpr uint64_t MOST = uint64_t(1) << 31;  // points: a pool's words have no room for more

struct Section {
    uint64_t offset, bytes, checksum;
};

struct Header {
    char magic[8];
    uint64_t header_bytes, file_bytes;
    Settings settings;
    uint64_t points, ids, dead_count, list_width, stride, walks;
    double walk_success;
    float step;
    uint32_t has_codes, lists_stale, medoid;
    Section sections[SECTIONS];
    uint64_t checksum;  // of all that stands before it
};

class File {
public:
    explicit File(const std::string& path) : descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
        if (descriptor_ < 0) refuse("cannot be written: " + std::string(std::strerror(errno)));
    }
    ~File() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    void write(const void* data, size_t bytes) {
        const char* from = static_cast<const char*>(data);
        while (bytes) {
            const ssize_t done = ::write(descriptor_, from, std::min<size_t>(bytes, 1 << 30));
            if (done < 0 && errno == EINTR) continue;
            if (done <= 0) refuse("cannot be written: " + std::string(std::strerror(errno)));
            from += done, bytes -= size_t(done), written_ += size_t(done);
        }
    }
    void pad_to(size_t offset) {
        static const char zeros[64] = {};
        write(zeros, offset - written_);
    }
    void finish() {
        if (::fsync(descriptor_) || ::close(std::exchange(descriptor_, -1))) refuse("cannot be written: " + std::string(std::strerror(errno)));
    }

private:
    int descriptor_;
    size_t written_ = 0;
};

// What the loops trust must hold whoever wrote the file: indices stay inside their arrays.
void check_below(const uint32_t* values, size_t n, size_t limit, bool none_allowed, const char* what) {
    uint32_t worst = 0;
    for (size_t i = 0; i < n; ++i) worst = std::max(worst, none_allowed && values[i] == NONE ? 0 : values[i]);
    require(n == 0 || worst < limit || (none_allowed && limit == 0 && worst == 0), what);
}

// The same bounds as where an index is made.
void check_settings(const Settings& s) {
    auto within = [](double value, double low, double high) { return value >= low && value <= high; };  // NaN is not
    require(within(s.dim, 1, 32768) && within(s.degree, 2, 4096) && within(s.neighbours, 2, 1 << 20) &&
                within(s.walk_rounds, 0, AS_MANY) && within(double(s.alpha), 1, 10) && within(double(s.success), 0, 1) &&
                within(double(s.recall), 0, 1) && uint32_t(s.storage) <= 2 && s.codes <= 1,
            "its settings are impossible");
}

}  // namespace

template <class Visit>
void Fanng::visit_sections(Visit&& visit) {
    points_.visit(visit);  // four sections
    visit(graph_.buffer()), visit(lists_), visit(label_);
}

// Whoever calls gives a temporary name and renames what is complete.
void Fanng::save(const std::string& path) const {
    const auto reading = reading_graph(0);
    Header h{};
    std::memcpy(h.magic, MAGIC, 8);
    h.header_bytes = sizeof(Header), h.settings = settings_;
    h.points = points_.size(), h.ids = place_.size(), h.dead_count = dead_count_, h.list_width = list_width_;
    h.stride = graph_.stride(), h.walks = walks_, h.walk_success = walk_success_, h.step = points_.code_step();
    h.has_codes = points_.has_codes(), h.lists_stale = lists_stale_, h.medoid = medoid_;
    std::vector<std::pair<const void*, size_t>> parts;
    const_cast<Fanng*>(this)->visit_sections([&](auto& buffer) {
        parts.emplace_back(buffer.data(), buffer.size() * sizeof(buffer[0]));
    });
    parts.emplace_back(place_.data(), place_.size() * 4);
    parts.emplace_back(dead_.data(), dead_.size());
    parts.emplace_back(tree_.data(), tree_.size() * sizeof(TreeNode));
    size_t at = rounded(sizeof(Header), 64);
    for (size_t s = 0; s < SECTIONS; ++s) {
        h.sections[s] = {at, parts[s].second, checksum(parts[s].first, parts[s].second)};
        at += rounded(parts[s].second, 64);
    }
    h.file_bytes = at;
    h.checksum = checksum(&h, offsetof(Header, checksum));
    File file(path);
    file.write(&h, sizeof h);
    for (size_t s = 0; s < SECTIONS; ++s) {
        file.pad_to(h.sections[s].offset);
        file.write(parts[s].first, parts[s].second);
    }
    file.pad_to(h.file_bytes);
    file.finish();
}

// on_disk: the vectors stay in the file, and the lists too, which only all_neighbours needs; what a walk needs is read.
std::unique_ptr<Fanng> Fanng::load(const std::string& path, bool on_disk) {
    auto contents = std::make_shared<Contents>(path);
    Header h;
    require(contents->size() >= sizeof h, "it ends before its header does");
    contents->read(0, &h, sizeof h);
    if (std::memcmp(h.magic, MAGIC, 8)) refuse("is not a FANNG index of this version: build it again from its points");
    require(h.header_bytes == sizeof h && h.checksum == checksum(&h, offsetof(Header, checksum)), "its header does not match its checksum");
    require(h.file_bytes == contents->size(), "its length is not what its header says");
    check_settings(h.settings);
    size_t end = sizeof h;  // sections follow each other: two that overlap would change together
    for (const Section& s : h.sections) {
        require(s.offset % 64 == 0 && s.offset >= end && s.offset <= h.file_bytes && s.bytes <= h.file_bytes - s.offset, "a section lies outside it");
        end = s.offset + s.bytes;
    }
    require(h.points < MOST && h.ids < NONE && h.list_width <= NONE && h.has_codes <= 1 && h.lists_stale <= 1, "its sizes are impossible");
    require(h.points == 0 || h.stride == Graph::stride_for(h.settings.degree + SPARE), "its graph has another degree than its settings");
    require(h.walk_success >= 0 && h.walk_success <= 1, "its share of walks is impossible");
    auto index = std::make_unique<Fanng>(h.settings);
    index->contents_ = contents;
    index->adopt_sections(h.sections, *contents, on_disk);
    index->points_.restore(h.points, h.has_codes, h.step);
    index->graph_.restore(h.points, h.stride);
    index->list_width_ = on_disk ? 0 : h.list_width;
    index->lists_stale_ = h.lists_stale, index->dead_count_ = h.dead_count;
    index->medoid_ = h.medoid, index->walks_ = h.walks, index->walk_success_ = h.walk_success;
    if (on_disk) {
        const Section& vectors = h.sections[h.settings.storage == Storage::f32 ? 0 : 1];
        require(vectors.bytes == h.points * index->points_.row_bytes(), "its vectors have the wrong length");
        index->points_.leave(StoredRows{contents, vectors.offset, index->points_.row_bytes()});
        index->check_rows(vectors.checksum);
    }
    index->check_loaded(h.ids);
    return index;
}

template <class Sections>
void Fanng::adopt_sections(const Sections& sections, Contents& contents, bool on_disk) {
    size_t s = 0;
    auto next = [&](size_t unit) {
        require(sections[s].bytes % unit == 0, "a section has an odd length");
        char* at = contents.keep(sections[s].offset, sections[s].bytes);
        require(sections[s].checksum == checksum(at, sections[s].bytes), "a section does not match its checksum");
        return std::make_pair(at, sections[s].bytes / unit);
    };
    visit_sections([&](auto& buffer) {
        using T = std::decay_t<decltype(buffer[0])>;
        if (!on_disk || (s != VECTORS && s != HALVES && s != LISTS)) {
            const auto [at, n] = next(sizeof(T));
            buffer.view(reinterpret_cast<T*>(at), n);
        }
        ++s;
    });
    auto copy = [&](auto& vector) {
        using T = std::decay_t<decltype(vector[0])>;
        const auto [at, n] = next(sizeof(T));
        vector.assign(reinterpret_cast<const T*>(at), reinterpret_cast<const T*>(at) + n);
        ++s;
    };
    copy(place_), copy(dead_), copy(tree_);
}

// StoredRows that stay in the file are looked at once, some at a time.
void Fanng::check_rows(uint64_t expected) const {
    const size_t n = points_.size(), many = std::max<size_t>(1, (size_t(1) << 20) / points_.row_bytes());
    Array<char> rows(many * points_.row_bytes());
    Array<float> x(points_.padded());
    Checksum sum;
    bool sound = true;
    for (size_t first = 0; first < n; first += many) {
        const size_t count = std::min(many, n - first);
        points_.rows().read(first, rows.data(), count);
        sum.add(rows.data(), count * points_.row_bytes());
        for (size_t i = 0; i < count; ++i) points_.widen(&rows[i * points_.row_bytes()], x.data()), sound &= bounded(x.data());
    }
    require(sum.value() == expected, "a section does not match its checksum");
    require(sound, "its vectors are not finite");
}

void Fanng::check_loaded(size_t ids) const {
    const size_t n = points_.size(), row = n * points_.padded();  // both are bounded, so that nothing overflows
    const bool full = settings_.storage == Storage::f32;
    size_t sizes[4], s = 0;
    const_cast<Points&>(points_).visit([&](auto& buffer) { sizes[s++] = buffer.size(); });
    const size_t held = points_.on_disk() ? 0 : row;
    require(sizes[0] == (full ? held : 0) && sizes[1] == (full ? 0 : held), "its vectors have the wrong length");
    require(sizes[2] == (points_.has_codes() ? row : 0) && (!points_.has_codes() || sizes[3] == points_.padded()), "its codes have the wrong length");
    Fanng& self = const_cast<Fanng&>(*this);
    require(self.graph_.buffer().size() == n * graph_.stride(), "its graph has the wrong length");
    require(lists_.size() == n * list_width_ && (n == 0 || list_width_ > 0 || points_.on_disk()) && label_.size() == n && place_.size() == ids, "its lists have the wrong length");
    require(n == 0 || medoid_ < n, "its entry is not a vertex");
    for (size_t v = 0; v < n; ++v) {
        require(graph_.degree(v) <= graph_.capacity(), "a vertex has too many edges");
        check_below(graph_.edges(v), graph_.degree(v), n, false, "an edge leads nowhere");
    }
    check_below(lists_.data(), lists_.size(), n, true, "a list names no vertex");
    check_names(ids);
    check_values();
    for (size_t t = 0; t < tree_.size(); ++t) {
        const TreeNode& node = tree_[t];
        if (node.a == NONE)
            require(node.left <= node.right && node.right <= n, "a leaf lies outside the points");
        else  // children come after their parent, so that a descent ends
            require(node.a < n && node.b < n && node.left > t && node.left < tree_.size() && node.right > t && node.right < tree_.size(), "its tree is broken");
    }
}

// Ids and vertices name each other, and the marks of removed vertices agree with both.
void Fanng::check_names(size_t ids) const {
    const size_t n = points_.size();
    require(dead_.empty() || dead_.size() == n, "its marks have the wrong length");
    size_t dead = 0, placed = 0;
    for (const uint8_t mark : dead_) {
        require(mark <= 1, "a mark is neither set nor clear");
        dead += mark;
    }
    require(dead == dead_count_, "its marks do not agree with their number");
    check_below(label_.data(), n, ids, false, "a vertex has no id");
    check_below(place_.data(), ids, n, true, "an id has no vertex");
    for (size_t id = 0; id < ids; ++id) {
        if (place_[id] == NONE) continue;
        ++placed;
        require(label_[place_[id]] == id && !is_dead(place_[id]), "an id and its vertex do not agree");
    }
    require(placed == n - dead, "its ids do not agree with its vertices");
}

// A value whose distances are not numbers would break the orders that later loops rely on.
bool Fanng::bounded(const float* x) const {
    const double limit = std::sqrt(double(std::numeric_limits<float>::max()) / (4 * double(points_.dim())));
    bool sound = true;
    for (size_t k = 0; k < points_.dim(); ++k) sound &= std::fabs(double(x[k])) <= limit;
    for (size_t k = points_.dim(); k < points_.padded(); ++k) sound &= x[k] == 0.0f;
    return sound;
}

void Fanng::check_values() const {
    Array<float> x(points_.padded());
    bool sound = true;
    for (size_t i = 0; !points_.on_disk() && i < points_.size(); ++i) points_.get(i, x.data()), sound &= bounded(x.data());
    if (points_.has_codes()) {
        sound &= points_.code_step() > 0 && std::isfinite(points_.code_step());
        std::fill(x.begin(), x.end(), 0.0f);
        for (size_t k = 0; k < points_.padded(); ++k) x[std::min(k, points_.dim() - 1)] = points_.centre(k), sound &= bounded(x.data());
    }
    for (const TreeNode& node : tree_) sound &= node.a == NONE || std::isfinite(node.offset);
    require(sound, "its vectors are not finite");
}

}  // namespace nngk
