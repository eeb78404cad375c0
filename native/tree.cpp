#include "tree.h"

#include "kernels.h"
#include "threads.h"

#include <cstring>
#include <numeric>
#include <random>
#include <tuple>

namespace nngk {
namespace {

constexpr size_t SAMPLE = 48;       // points that decide where a node is cut
constexpr int ROUNDS = 3;           // of two-means on the sample
constexpr double SMALLER_SIDE = 0.2; // no cut is more uneven than this, so that the depth stays logarithmic

struct Part {
    size_t begin, end;
    uint32_t node;
    bool inside_coarse;
};

class Builder {
public:
    Builder(Tree& tree, const Matrix& x, size_t dim, uint64_t seed, int threads)
        : tree_(tree), x_(x), dim_(dim), random_(seed), threads_(threads) {}

    void run(size_t n, size_t leaf_size, size_t coarse_size) {
        tree_.order.resize(n);
        std::iota(tree_.order.begin(), tree_.order.end(), 0u);
        tree_.nodes.assign(1, TreeNode{});
        tree_.coarse.assign(1, 0u);
        std::vector<Part> todo{{0, n, 0, false}};
        while (!todo.empty()) {
            Part part = todo.back();
            todo.pop_back();
            const size_t size = part.end - part.begin;
            if (!part.inside_coarse && size <= coarse_size) {
                part.inside_coarse = true;
                tree_.coarse.push_back(uint32_t(part.end));
            }
            if (size <= leaf_size) {
                tree_.nodes[part.node] = TreeNode{NONE, NONE, 0, uint32_t(part.begin), uint32_t(part.end)};
                continue;
            }
            const size_t middle = split(part);
            const uint32_t left = uint32_t(tree_.nodes.size());
            tree_.nodes.resize(left + 2);
            tree_.nodes[part.node].left = left, tree_.nodes[part.node].right = left + 1;
            // The left part is popped first, so that the bounds of coarse parts come in order.
            todo.push_back({middle, part.end, left + 1, part.inside_coarse});
            todo.push_back({part.begin, middle, left, part.inside_coarse});
        }
    }

private:
    // Two means of a sample; the sample's points nearest to them stand for them, so that a node needs no vectors.
    std::pair<uint32_t, uint32_t> poles(const Part& part) {
        const size_t size = part.end - part.begin, m = std::min(size, SAMPLE);
        std::uniform_int_distribution<size_t> pick(part.begin, part.end - 1);
        std::vector<uint32_t> sample(m);
        for (size_t i = 0; i < m; ++i) sample[i] = tree_.order[m == size ? part.begin + i : pick(random_)];
        Array<float> means(2 * dim_);
        std::memcpy(means.data(), x_.row(sample[random_() % m]), dim_ * 4);
        std::memcpy(means.data() + dim_, x_.row(sample[random_() % m]), dim_ * 4);
        std::vector<float> to[2];
        for (int round = 0;; ++round) {
            for (int side = 0; side < 2; ++side) measure(means.data() + size_t(side) * dim_, sample, to[side]);
            if (round == ROUNDS) break;
            size_t counts[2] = {0, 0};
            Array<float> sums(2 * dim_);
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (size_t i = 0; i < m; ++i) {
                const size_t side = to[1][i] < to[0][i];
                ++counts[side];
                for (size_t k = 0; k < dim_; ++k) sums[side * dim_ + k] += x_.row(sample[i])[k];
            }
            if (!counts[0] || !counts[1]) break;
            for (size_t k = 0; k < 2 * dim_; ++k) means[k] = sums[k] / float(counts[k >= dim_]);
        }
        auto nearest = [&](int side) { return sample[size_t(std::min_element(to[side].begin(), to[side].end()) - to[side].begin())]; };
        const uint32_t a = nearest(0), b = nearest(1);
        if (a != b) return {a, b};
        return {a, tree_.order[part.begin] != a ? tree_.order[part.begin] : tree_.order[part.begin + 1]};
    }

    void measure(const float* q, const std::vector<uint32_t>& ids, std::vector<float>& out) {
        out.resize(rounded(ids.size(), 4));
        for (size_t i = 0; i < ids.size(); i += 4) {
            const float* rows[4];
            for (size_t r = 0; r < 4; ++r) rows[r] = x_.row(ids[std::min(i + r, ids.size() - 1)]);
            kernels().f32(q, rows, dim_, &out[i]);
        }
        out.resize(ids.size());
    }

    size_t split(const Part& part) {
        uint32_t a, b;  // no structured binding: a lambda must not capture one in C++17
        std::tie(a, b) = poles(part);
        const size_t size = part.end - part.begin;
        uint32_t* order = tree_.order.data() + part.begin;
        margins_.resize(size);
        parallel(size, 4096, size < 50000 ? 1 : threads_, [&](size_t begin, size_t end, int) {
            for (size_t i = begin; i < end; i += 4) {
                const float* rows[4];
                float da[4], db[4];
                for (size_t r = 0; r < 4; ++r) rows[r] = x_.row(order[std::min(i + r, end - 1)]);
                kernels().f32(x_.row(a), rows, dim_, da);
                kernels().f32(x_.row(b), rows, dim_, db);
                for (size_t r = 0; r < 4 && i + r < end; ++r) margins_[i + r] = {da[r] - db[r], order[i + r]};
            }
        });
        // The natural cut is where both are equally far; an uneven one moves to the bound, ties going by index.
        const size_t least = std::max<size_t>(1, size_t(SMALLER_SIDE * double(size)));
        size_t middle = size_t(std::partition(margins_.begin(), margins_.end(), [](const Margin& m) { return m.first < 0; }) - margins_.begin());
        float offset = 0;
        if (middle < least || middle > size - least) {
            middle = middle < least ? least : size - least;
            std::nth_element(margins_.begin(), margins_.begin() + long(middle), margins_.end());
            offset = margins_[middle].first;
        }
        for (size_t i = 0; i < size; ++i) order[i] = margins_[i].second;
        tree_.nodes[part.node].a = a, tree_.nodes[part.node].b = b, tree_.nodes[part.node].offset = offset;
        return part.begin + middle;
    }

    using Margin = std::pair<float, uint32_t>;
    Tree& tree_;
    const Matrix& x_;
    size_t dim_;
    std::mt19937_64 random_;
    int threads_;
    std::vector<Margin> margins_;
};

}  // namespace

void Tree::build(const Matrix& x, size_t n, size_t dim, size_t leaf_size, size_t coarse_size, uint64_t seed, int threads) {
    Builder(*this, x, dim, seed, threads).run(n, leaf_size, std::max(coarse_size, leaf_size));
}

}  // namespace nngk
