// FANNG: fast approximate nearest neighbour graphs (Harwood and Drummond, CVPR 2016).
#pragma once

#include "lists.h"
#include "search.h"
#include "threads.h"
#include "tree.h"

#include <memory>
#include <random>
#include <shared_mutex>
#include <string>

namespace nngk {

// Places of a vertex beyond its degree, for the edges that walks add.
constexpr size_t SPARE = 8;

// Rounds of walks without a bound.
constexpr size_t AS_MANY = 1 << 20;

// Points up to which every pair is compared: nothing costs less.
constexpr size_t SMALL = 4096;

// Entries of a list that are read beyond k, since equally far points go by their ids.
constexpr size_t TIES = 8;

struct Settings {
    uint32_t dim = 0;
    uint32_t degree = 32;      // most edges of a vertex
    float alpha = 1.1f;        // edge p→q is dropped if a kept p→r has alpha·|r - q| < |p - q|
    uint32_t neighbours = 48;  // length of the neighbour lists that the graph is made from
    float success = 0.98f;     // share of random walks that should reach their target
    uint32_t walk_rounds = 40; // of such walks, at most
    float recall = 0.95f;      // share of the true neighbours that the lists should hold
    uint64_t seed = 0;
    Storage storage = Storage::f32;
    uint32_t codes = 1;        // walk on byte codes
};

// How long a walk goes on: a pool of ef candidates, or where it is not zero a budget of distance computations.
struct Effort {
    size_t ef = 0;
    uint64_t budget = 0;
};

struct Stats {
    uint64_t points = 0, removed = 0, edges = 0, min_degree = 0, min_in_degree = 0, max_degree = 0, bytes = 0, walks = 0;
    double walk_success = 0;
    uint64_t distances = 0, queries = 0;  // since the index was made
    bool codes = false;
};

// How neighbour lists were found: through cells, or by all pairs in fewer dimensions or in all of them.
enum class Way { none, cells, fewer, all };

class Contents;  // of a file

// Searches may run in several threads at once; what changes the index waits for them and they for it.
class Fanng {
public:
    explicit Fanng(const Settings& settings);
    ~Fanng();

    // The neighbour lists are found at once; the graph is made from them when it is first needed, or by `prepare`.
    void build(const float* x, size_t n, int threads);
    void prepare(int threads);  // 0: as many as were last given
    void add(const float* x, size_t n, int threads, int64_t* ids);
    void remove(const int64_t* ids, size_t n, int threads);
    void update(const float* x, size_t n, int threads);  // all points that are not removed, by id

    // distances (n, k) and indices (n, k); rows that come short end in infinity and -1.
    void search(const float* x, size_t n, size_t k, const Effort& effort, int threads, float* distances, int64_t* indices) const;
    // The neighbours of indexed points (ids null: of all ids in turn), themselves left out. from_own: the walk begins
    // at the point's own vertex; otherwise that vertex is avoided, as if the point were not indexed.
    void search_points(const int64_t* ids, size_t n, size_t k, const Effort& effort, bool from_own, int threads,
                       float* distances, int64_t* indices) const;
    // The same, exactly.
    void scan_points(const int64_t* ids, size_t n, size_t k, int threads, float* distances, int64_t* indices) const;
    // Makes the neighbour lists behind the graph long enough for k and up to date, and finds them anew where they do
    // not hold the share `wanted` of the true neighbours (n, k) of some points; returns the share.
    double complete_lists(size_t k, const int64_t* ids, const int64_t* truth, size_t n, double wanted, int threads);
    void from_lists(const int64_t* ids, size_t n, size_t k, int threads, float* distances, int64_t* indices) const;

    size_t size() const;      // points that are not removed
    size_t id_count() const;  // ids ever given
    bool alive(int64_t id) const;
    void vectors(const int64_t* ids, size_t n, float* out) const;
    Stats stats() const;
    Way found_by() const { return found_by_; }  // the last lists that were not improved ones
    const Settings& settings() const { return settings_; }

    void save(const std::string& path) const;
    // on_disk: the vectors stay in the file and are read where answers are measured. Such an index is for searching only.
    static std::unique_ptr<Fanng> load(const std::string& path, bool on_disk = false);
    bool on_disk() const { return points_.on_disk(); }

private:
    using Ids = std::vector<uint32_t>;
    // neighbours.cpp
    void find_lists(size_t k, double wanted, int threads);
    void take_lists(size_t width);
    void compare_all(const Matrix& x, size_t width, int threads);
    void compare_pairs(const Matrix& x, const float* rest, size_t dim, size_t width, int threads);
    bool codes_agree() const;
    void refine(size_t width, size_t reach, int threads);
    void rescore_lists(int threads);
    // edges.cpp
    template <class Space>
    void relink(Space& space, uint32_t v, const Ids& offered, size_t limit);
    template <class Space>
    std::pair<uint32_t, uint32_t> descend(Space& space, uint32_t v) const;
    void make_graph(int threads);
    void link_back(int threads);
    struct Walk {
        uint32_t start, target, end;
        bool arrived;
    };
    double try_walks(std::vector<Walk>& walks, std::mt19937_64& random, int threads);
    void walk(size_t most_rounds, int threads);
    void connect();
    void force_edge(uint32_t from, uint32_t to);
    bool insert_edge(uint32_t from, uint32_t to);
    Ids in_degrees() const;
    void support(const Ids& which);
    void complete();
    // bridges.cpp
    void bridge(int threads);
    // fanng.cpp
    void build_unlocked(const float* x, size_t n, int threads);
    void link(int threads);
    std::shared_lock<FairMutex> reading_graph(int threads) const;
    void find_medoid();
    size_t kept_width(size_t k) const;
    double list_share(const int64_t* ids, const int64_t* truth, size_t n, size_t k) const;
    template <class Space>
    void enter(Space& space, uint32_t avoid, const Effort& effort, Scratch& s, Ids& entries) const;
    template <class Space>
    void explore(Space& space, uint32_t own, bool from_own, size_t k, const Effort& effort, Scratch& s) const;
    void answer(const Pool& pool, const float* query, size_t k, uint32_t own, float* distances, int64_t* indices) const;
    static void write_row(std::vector<uint64_t>& words, size_t k, float* distances, int64_t* indices);
    bool is_dead(uint32_t v) const { return !dead_.empty() && dead_[v]; }
    uint32_t vertex_of(int64_t id) const { return id < 0 || size_t(id) >= place_.size() ? NONE : place_[size_t(id)]; }
    // scan.cpp
    void scan_file(const Ids& all, const int64_t* ids, size_t n, size_t k, int threads, float* distances, int64_t* indices) const;
    // edit.cpp
    void insert(const float* x, size_t n, int threads);
    Ids link_to_new(size_t first, int threads);
    void consolidate(int threads);
    void renumber(const Ids& kept);
    // file.cpp
    template <class Visit>
    void visit_sections(Visit&& visit);
    template <class Sections>
    void adopt_sections(const Sections& sections, Contents& contents, bool on_disk);
    void check_rows(uint64_t expected) const;
    bool bounded(const float* x) const;
    void check_loaded(size_t ids) const;
    void check_names(size_t ids) const;
    void check_values() const;

    Settings settings_;
    Points points_;
    Graph graph_;
    Ids in_;                   // edges that lead to each vertex; empty after loading, until it is needed
    std::vector<TreeNode> tree_;
    Buffer<uint32_t> lists_;   // (vertices, list_width_) by increasing distance, NONE at the end
    size_t list_width_ = 0;
    bool lists_stale_ = false;
    Way found_by_ = Way::none;
    Buffer<uint32_t> label_;   // vertex → id
    Ids place_;                // id → vertex, NONE when removed
    std::vector<uint8_t> dead_; // by vertex; empty while nothing was removed
    size_t dead_count_ = 0;
    uint32_t medoid_ = 0;
    bool linked_ = true;       // the graph is that of the lists
    int threads_ = 1;          // that were last given
    uint64_t walks_ = 0;
    double walk_success_ = 0;
    mutable std::atomic<uint64_t> distances_{0}, queries_{0};
    mutable FairMutex lock_;
    std::shared_ptr<Contents> contents_;  // that loaded buffers are parts of
};

}  // namespace nngk
