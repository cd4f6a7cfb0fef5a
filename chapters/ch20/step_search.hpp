// SPDX-License-Identifier: Apache-2.0
// The search for a step's settings by the time of the whole step, each as a graph.
#pragma once
#include <aisp/generators.hpp>
#include <aisp/graph.hpp>
#include <aisp/libraries/fastest.hpp>

#include <memory>
#include <vector>

#include "step_kernels.cuh"

namespace aisp::ch20::step {

// The fastest of run(0) to run(count - 1).
template <class Run>
int best_of(cudaStream_t stream, std::size_t count, int otherwise, const Run& run) {
  const auto best = fastest(stream, count, [&](std::size_t i) { run(static_cast<int>(i)); });
  return best ? static_cast<int>(*best) : otherwise;
}

// queue(stream, settings) queues a step; of each product there are `counts` settings.
template <class Queue>
class Search {
 public:
  Search(cudaStream_t stream, const std::array<int, products>& counts, const Queue& queue)
      : stream_{stream}, counts_{counts}, queue_{queue} {}

  int measured() const { return measured_; }

  // The best of these; what the library refuses is out.
  Settings best(const std::vector<Settings>& all) {
    std::vector<std::unique_ptr<Graph>> graphs(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) try {
        queue_(stream_, all[i]);
        graphs[i] = std::make_unique<Graph>();
        graphs[i]->capture(stream_, [&](cudaStream_t stream) { queue_(stream, all[i]); });
      } catch (const CudaError&) {
        throw;
      } catch (const std::exception&) {
        graphs[i].reset();
      }
    measured_ += static_cast<int>(all.size());
    const int best = best_of(stream_, all.size(), 0, [&](int i) {
      if (!graphs[static_cast<std::size_t>(i)]) throw Unsupported{"the library refuses this setting"};
      graphs[static_cast<std::size_t>(i)]->launch(stream_);
    });
    check(cudaStreamSynchronize(stream_));
    return all[static_cast<std::size_t>(best)];
  }
  // Twice each coordinate in turn, the largest product first. The settings so far are the default, which others have to beat.
  Settings descend(Settings settings) {
    for (int round = 0; round < 2; ++round) {
      for (const Kind product : {of_gate_up, of_down, of_qkv, of_o}) {
        std::vector<Settings> all{settings};
        for (int i = 0; i < counts_[product]; ++i) {
          if (i == settings.product[product]) continue;
          all.push_back(settings);
          all.back().product[product] = i;
        }
        settings = best(all);
      }
      std::vector<Settings> all{settings};
      for (const int splits : split_choices) {
        if (splits == settings.splits) continue;
        all.push_back(settings);
        all.back().splits = splits;
      }
      settings = best(all);
    }
    return settings;
  }
  // With dependent launches other products are best than without, so that the descent begins on both sides; residuals with their
  // norms or apart.
  Settings joint(Settings settings) {
    std::vector<Settings> all;
    for (const bool early : {false, true}) {
      settings.is_fused = true, settings.begins_early = early;
      all.push_back(descend(settings));
      all.push_back(all.back());
      all.back().is_fused = false;
    }
    return best(all);
  }
  // The best of so many at random.
  Settings drawn(int count) {
    std::vector<Settings> all(static_cast<std::size_t>(count));
    std::uint64_t turn = 0;
    const auto draw = [&](int below) {
      return static_cast<int>(random_bits(0x5EED, turn++) % static_cast<std::uint64_t>(below));
    };
    for (Settings& settings : all) {
      for (std::size_t p = 0; p < products; ++p) settings.product[p] = draw(counts_[p]);
      settings.splits = split_choices[static_cast<std::size_t>(draw(split_choices.size()))];
      settings.is_fused = draw(2) == 1, settings.begins_early = draw(2) == 1;
    }
    return best(all);
  }

 private:
  cudaStream_t stream_;
  std::array<int, products> counts_;
  Queue queue_;
  int measured_ = 0;
};

}  // namespace aisp::ch20::step
