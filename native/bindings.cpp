// What Python sees: arrays of torch or numpy in and out, the interpreter's lock released while the core works.
#include "cells.h"
#include "exact.h"
#include "fanng.h"
#include "reduced.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;
using namespace nngk;

namespace {

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Indices = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IndexRows = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutFloats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutIndices = nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutIds = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Free = nb::call_guard<nb::gil_scoped_release>;

// The Python side checks what users give; these catch its own mistakes before they become wild writes.
void same(size_t got, size_t wanted, const char* what) {
    if (got != wanted) throw std::invalid_argument(std::string(what) + ": expected " + std::to_string(wanted) + ", got " + std::to_string(got));
}
void check_out(const OutFloats& d, const OutIndices& i, size_t n, size_t k) {
    same(d.shape(0), n, "rows of distances"), same(i.shape(0), n, "rows of indices");
    same(d.shape(1), k, "columns of distances"), same(i.shape(1), k, "columns of indices");
}

Settings make_settings(nb::kwargs options) {
    Settings s;
    auto set = [&](const char* name, auto& field) {
        using T = std::decay_t<decltype(field)>;
        if (options.contains(name)) field = nb::cast<T>(options[name]);
    };
    set("dim", s.dim), set("degree", s.degree), set("alpha", s.alpha), set("neighbours", s.neighbours);
    set("success", s.success), set("walk_rounds", s.walk_rounds), set("recall", s.recall);
    set("seed", s.seed), set("codes", s.codes);
    uint32_t storage = 0;
    set("storage", storage);
    s.storage = Storage(storage);
    return s;
}

nb::dict settings_dict(const Fanng& index) {
    const Settings& s = index.settings();
    nb::dict d;
    d["dim"] = s.dim, d["degree"] = s.degree, d["alpha"] = s.alpha, d["neighbours"] = s.neighbours;
    d["success"] = s.success, d["walk_rounds"] = s.walk_rounds, d["recall"] = s.recall;
    d["seed"] = s.seed, d["codes"] = s.codes, d["storage"] = uint32_t(s.storage);
    return d;
}

nb::dict stats_dict(const Fanng& index) {
    const Stats s = index.stats();
    nb::dict d;
    d["points"] = s.points, d["removed"] = s.removed, d["edges"] = s.edges, d["min_degree"] = s.min_degree;
    d["min_in_degree"] = s.min_in_degree;
    d["max_degree"] = s.max_degree, d["bytes"] = s.bytes, d["walks"] = s.walks, d["walk_success"] = s.walk_success;
    d["distances"] = s.distances, d["queries"] = s.queries, d["codes"] = s.codes;
    return d;
}

void bind_exact(nb::module_& m) {
    nb::class_<ExactIndex>(m, "ExactIndex")
        .def("__init__", [](ExactIndex* self, Floats x, int threads) {
            nb::gil_scoped_release free;
            new (self) ExactIndex(x.data(), x.shape(0), x.shape(1), threads);
        }, "x"_a, "threads"_a, nb::keep_alive<1, 2>())
        .def("all_neighbours", [](const ExactIndex& self, size_t k, int threads, OutFloats d, OutIndices i) {
            check_out(d, i, self.size(), k);
            self.all_neighbours(k, threads, d.data(), i.data());
        }, Free())
        .def("search", [](const ExactIndex& self, Floats x, size_t k, int threads, OutFloats d, OutIndices i) {
            same(x.shape(1), self.dim(), "dimensions"), check_out(d, i, x.shape(0), k);
            self.search(x.data(), x.shape(0), k, threads, d.data(), i.data());
        }, Free());
}

void bind_fanng(nb::module_& m) {
    nb::class_<Fanng>(m, "Fanng")
        .def("__init__", [](Fanng* self, nb::kwargs options) { new (self) Fanng(make_settings(options)); })
        .def("build", [](Fanng& self, Floats x, int threads) {
            same(x.shape(1), self.settings().dim, "dimensions");
            self.build(x.data(), x.shape(0), threads);
        }, Free())
        .def("prepare", &Fanng::prepare, "threads"_a, Free())
        .def("add", [](Fanng& self, Floats x, int threads, OutIds ids) {
            same(x.shape(1), self.settings().dim, "dimensions"), same(ids.shape(0), x.shape(0), "ids");
            self.add(x.data(), x.shape(0), threads, ids.data());
        }, Free())
        .def("remove", [](Fanng& self, Indices ids, int threads) { self.remove(ids.data(), ids.shape(0), threads); }, Free())
        .def("update", [](Fanng& self, Floats x, int threads) {
            same(x.shape(1), self.settings().dim, "dimensions");
            self.update(x.data(), x.shape(0), threads);
        }, Free())
        .def("search", [](const Fanng& self, Floats x, size_t k, size_t ef, uint64_t budget, int threads, OutFloats d, OutIndices i) {
            same(x.shape(1), self.settings().dim, "dimensions"), check_out(d, i, x.shape(0), k);
            self.search(x.data(), x.shape(0), k, Effort{ef, budget}, threads, d.data(), i.data());
        }, Free())
        .def("search_points", [](const Fanng& self, Indices ids, size_t k, size_t ef, uint64_t budget, bool from_own, int threads, OutFloats d, OutIndices i) {
            check_out(d, i, ids.shape(0), k);
            self.search_points(ids.data(), ids.shape(0), k, Effort{ef, budget}, from_own, threads, d.data(), i.data());
        }, Free())
        .def("scan_points", [](const Fanng& self, Indices ids, size_t k, int threads, OutFloats d, OutIndices i) {
            check_out(d, i, ids.shape(0), k);
            self.scan_points(ids.data(), ids.shape(0), k, threads, d.data(), i.data());
        }, Free())
        .def("complete_lists", [](Fanng& self, Indices ids, IndexRows truth, double wanted, int threads) {
            same(truth.shape(0), ids.shape(0), "rows of truth");
            return self.complete_lists(truth.shape(1), ids.data(), truth.data(), ids.shape(0), wanted, threads);
        }, Free())
        .def("from_lists", [](const Fanng& self, Indices ids, size_t k, int threads, OutFloats d, OutIndices i) {
            check_out(d, i, ids.shape(0), k);
            self.from_lists(ids.data(), ids.shape(0), k, threads, d.data(), i.data());
        }, Free())
        .def("vectors", [](const Fanng& self, Indices ids, OutFloats out) {
            same(out.shape(0), ids.shape(0), "rows"), same(out.shape(1), self.settings().dim, "dimensions");
            self.vectors(ids.data(), ids.shape(0), out.data());
        }, Free())
        .def("alive", &Fanng::alive)
        .def("__len__", &Fanng::size)
        .def_prop_ro("id_count", &Fanng::id_count)
        .def_prop_ro("settings", &settings_dict)
        .def("stats", &stats_dict)
        .def_prop_ro("found_by", [](const Fanng& self) {
            return std::vector<std::string>{"none", "cells", "fewer", "all"}[size_t(self.found_by())];
        })
        .def("save", &Fanng::save, Free())
        .def_prop_ro("on_disk", &Fanng::on_disk)
        .def_static("load", &Fanng::load, "path"_a, "on_disk"_a = false, Free());
}

// For tests: every kernel of a set on given arrays, to be compared with the plain one.
void bind_kernels(nb::module_& m) {
    m.attr("kernels") = kernels().name;
    m.def("has_kernels", [](const std::string& name) { return kernels_named(name.c_str()) != nullptr; });
    m.def("kernel_distances", [](const std::string& name, const std::string& storage, Floats q, Floats rows, OutFloats out) {
        const Kernels* set = kernels_named(name.c_str());
        if (!set || rows.shape(1) % PAD || q.shape(1) != rows.shape(1)) throw std::invalid_argument("kernel or shape");
        const size_t n = rows.shape(0), dim = rows.shape(1);
        same(out.shape(0), q.shape(0), "rows"), same(out.shape(1), n, "columns");
        Array<uint16_t> half(n * dim);
        Array<int8_t> bytes(n * dim);
        Array<int16_t> query(dim);
        for (size_t i = 0; i < n * dim; ++i) {
            half[i] = storage == "bf16" ? to_bf16(rows.data()[i]) : to_f16(rows.data()[i]);
            bytes[i] = int8_t(rows.data()[i]);
        }
        for (size_t i = 0; i < q.shape(0); ++i)
            for (size_t j = 0; j < n; j += 4) {
                const float* x = q.data() + i * dim;
                float d[4];
                int32_t whole[4];
                const float* f[4];
                const uint16_t* h[4];
                const int8_t* b[4];
                for (size_t r = 0; r < 4; ++r) {
                    const size_t at = std::min(j + r, n - 1) * dim;
                    f[r] = rows.data() + at, h[r] = &half[at], b[r] = &bytes[at];
                }
                for (size_t k = 0; k < dim; ++k) query[k] = int16_t(x[k]);
                if (storage == "f32") set->f32(x, f, dim, d);
                if (storage == "bf16") set->bf16(x, h, dim, d);
                if (storage == "f16") set->f16(x, h, dim, d);
                if (storage == "i8") set->i8(query.data(), b, dim, whole);
                for (size_t r = 0; r < 4 && j + r < n; ++r) out.data()[i * n + j + r] = storage == "i8" ? float(whole[r]) : d[r];
            }
    });
    m.def("kernel_strip", [](const std::string& name, Floats panel, Indices columns, OutFloats out) {
        const Kernels* set = kernels_named(name.c_str());
        same(panel.shape(1), PANEL, "columns of the panel"), same(columns.shape(0), TILE_ROWS, "columns");
        same(out.shape(0), panel.shape(0), "rows"), same(out.shape(1), TILE_ROWS, "columns of the strip");
        uint32_t at[TILE_ROWS];
        for (size_t r = 0; r < TILE_ROWS; ++r) at[r] = uint32_t(columns.data()[r]) % PANEL;
        if (!set) throw std::invalid_argument("kernel");
        set->strip(panel.data(), panel.shape(0), at, out.data());
    });
    // The packed product of 8 rows against 48 as one tile gives it: -(squared distance)/2, and the hits.
    m.def("kernel_tile", [](const std::string& name, Floats a, Floats b, OutFloats c, float row_cut, float col_cut, OutIndices hits) {
        const Kernels* set = kernels_named(name.c_str());
        same(a.shape(0), TILE_ROWS, "rows"), same(b.shape(0), PANEL, "columns"), same(b.shape(1), a.shape(1), "dimensions");
        same(c.shape(0) * c.shape(1), TILE_ROWS * PANEL, "values"), same(hits.shape(0) * hits.shape(1), 2 * TILE_ROWS, "hits");
        if (!set || a.shape(1) % 16) throw std::invalid_argument("kernel or shape");
        const size_t dim = a.shape(1);
        Array<float> panel(dim * PANEL), strip(dim * TILE_ROWS);
        const float* rows[PANEL];
        float a_init[TILE_ROWS], b_init[PANEL], a_cut[TILE_ROWS], b_cut[PANEL];
        auto half_norm = [&](const float* x) {
            float sum = 0;
            for (size_t k = 0; k < dim; ++k) sum += x[k] * x[k];
            return -sum / 2;
        };
        for (size_t j = 0; j < PANEL; ++j) rows[j] = b.data() + j * dim, b_init[j] = half_norm(rows[j]), b_cut[j] = col_cut;
        set->pack(rows, PANEL, dim, panel.data());
        for (size_t r = 0; r < TILE_ROWS; ++r) {
            a_init[r] = half_norm(a.data() + r * dim), a_cut[r] = row_cut;
            for (size_t k = 0; k < dim; ++k) strip[k * TILE_ROWS + r] = a.data()[r * dim + k];
        }
        uint64_t row_hits[TILE_ROWS], col_hits[TILE_ROWS];
        const bool any = set->tile(Tile{strip.data(), panel.data(), dim, a_init, b_init, a_cut, b_cut, c.data(), row_hits, col_hits});
        for (size_t r = 0; r < TILE_ROWS; ++r) {
            hits.data()[r] = int64_t(row_hits[r]);
            hits.data()[TILE_ROWS + r] = int64_t(col_hits[r]);
        }
        return any;
    });
}

// For tests: the steps from which neighbour lists are made.
void bind_steps(nb::module_& m) {
    // Lists (n, keep) of all points through cells; returns the number of cells.
    m.def("cell_neighbours", [](Floats x, size_t probes, int threads, OutIndices out) {
        same(x.shape(1) % PAD, 0, "dimensions beyond a multiple of 32"), same(out.shape(0), x.shape(0), "rows");
        const size_t keep = out.shape(1);
        Cells cells(Matrix{x.data(), x.shape(1)}, nullptr, x.shape(0), x.shape(1));
        cells.train(threads);
        cells.neighbours(keep, probes, threads, [&](uint32_t v, const uint64_t* keys, size_t count) {
            for (size_t j = 0; j < keep; ++j) out.data()[v * keep + j] = j < count ? int64_t(key_id(keys[j])) : -1;
        });
        return cells.count();
    }, Free());
    // Estimated squared distances of all points to all in so many dimensions.
    m.def("reduced_distances", [](Floats x, size_t kept, int threads, OutFloats out) {
        const size_t n = x.shape(0);
        same(out.shape(0), n, "rows"), same(out.shape(1), n, "columns");
        const Reduced less = reduced(Matrix{x.data(), x.shape(1)}, n, x.shape(1), kept, 0, threads);
        for (size_t i = 0; i < n; ++i) less.estimate(i, n, out.data() + i * n);
    }, Free());
}

}  // namespace

NB_MODULE(_native, m) {
    bind_kernels(m);
    bind_steps(m);
    bind_exact(m);
    bind_fanng(m);
}
