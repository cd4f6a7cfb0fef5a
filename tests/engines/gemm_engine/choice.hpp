// SPDX-License-Identifier: Apache-2.0
// The GEMM engine in several shapes, of which the clock chooses one for a product, as the tuning of a library does.
#pragma once
#include <aisp/libraries/fastest.hpp>
#include <aisp/pair.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gemm/gemm.hpp"

namespace aisp::gemm_engine {

using gemm::bf16, gemm::e4m3;

// With as many stages as fit into a block's shared memory beside what each of the consumers' warps needs to store; `scaled` ones
// bring a scale for each row along. A KiB is left for barriers.
constexpr gemm::Shape deepest(gemm::Shape shape, unsigned staging_bytes, bool scaled) {
  constexpr int row_bytes = 128, most_stages = 16, available = 226 * 1024, more_scales = 32;
  const int of_scales = scaled ? (shape.tile_m + more_scales) * static_cast<int>(sizeof(float)) : 0;
  const int stage = (shape.tile_m + shape.tile_n) * row_bytes + of_scales;
  shape.stages = std::min(most_stages, (available - shape.consumers * 4 * static_cast<int>(staging_bytes)) / stage);
  return shape;
}

template <class Element, class Mainloop, class Store, int tile_m, int tile_n, int consumers, bool pingpong, int cluster>
using Tile =
    gemm::Config<gemm::Operand<Element>, gemm::Operand<Element>, Mainloop,
                 deepest({.tile_m = tile_m, .tile_n = tile_n, .consumers = consumers, .pingpong = pingpong, .cluster = cluster},
                         Store::template staging_bytes<tile_n>, Mainloop::scaled)>;

// One way to compute a product. `parameter` is of its schedule: the height of bands, or the number of slices.
struct Candidate {
  gemm::Shape shape;
  int parameter;
  std::function<void(cudaStream_t)> run;
  bool last_in_ranges = false;  // the tiles of its last round
};

template <class C>
constexpr gemm::Shape shape_of() {
  return {C::tile_m, C::tile_n, C::stages, C::consumers, C::pingpong, C::cluster};
}

// The number of the one that `engine` runs, so that a list of them (--size candidate=0:13:+1) times each as samples are taken.
inline constexpr Size candidate{.name = "candidate", .full = 0, .most = 99, .scales = false};

class Choice {
 public:
  explicit Choice(Setup& setup) : reproducible_{setup.reproducible()}, usual_{setup.size(candidate.name)} {}

  void add(Candidate more) { candidates_.push_back(std::move(more)); }
  // The first that was added, unless a size says which.
  void run_usual(Launch& launch) const {
    if (usual_ >= candidates_.size()) throw Unsupported{"there are " + std::to_string(candidates_.size()) + " candidates"};
    candidates_[usual_].run(launch.stream);
  }
  // Once, in the prepare of what calls run_chosen().
  void choose(Launch& launch) {
    if (reproducible_) throw Unsupported{not_reproducible};
    if (chosen_) return;
    chosen_ = fastest(launch.stream, candidates_.size(), [&](std::size_t i) { candidates_[i].run(launch.stream); });
    if (!chosen_) throw Unsupported{"none of the engine's shapes runs on this GPU"};
  }
  void run_chosen(Launch& launch) const { candidates_[*chosen_].run(launch.stream); }

  void report(bool chosen, const char* parameter, Metrics& metrics) const {
    const Candidate& used = candidates_[chosen ? chosen_.value_or(0) : usual_];
    const auto number = [&](const char* name, int value, const char* unit) {
      metrics.report(name, value, unit, Metrics::Better::higher);
    };
    number("tile_m", used.shape.tile_m, "rows");
    number("tile_n", used.shape.tile_n, "columns");
    number("cluster", used.shape.cluster, "blocks");
    number("pingpong", used.shape.pingpong ? 1 : 0, "of 1");
    number(parameter, used.parameter, "");
    number("last_in_ranges", used.last_in_ranges ? 1 : 0, "of 1");
  }

 private:
  bool reproducible_;
  std::size_t usual_;
  std::vector<Candidate> candidates_;
  std::optional<std::size_t> chosen_;
};

}  // namespace aisp::gemm_engine
