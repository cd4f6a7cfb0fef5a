// SPDX-License-Identifier: Apache-2.0
// Marks tokens: two requests, or as many as one likes, with a first token and three later ones each.
#include <numeric>
#include <vector>

#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class Tokens final : public fixtures::Doubling {
 public:
  explicit Tokens(Setup& setup) : Doubling{setup}, requests_(setup.size("requests")) {
    std::iota(requests_.begin(), requests_.end(), 0);
  }
  void baseline(Launch& launch) { generate(launch, 8); }
  void optimized(Launch& launch) { generate(launch, 1); }

 private:
  void generate(Launch& launch, int passes) {
    const Range range{launch, "generate"};
    for (int token = 0; token < 4; ++token) {
      for (int pass = 0; pass < 2 * passes; ++pass) fill_doubled();
      launch.tokens(requests_);
    }
    launch.mark("generated");
  }

  std::vector<int> requests_;
};

}  // namespace

extern constinit const Pair tokens{
    .teaches = "marks tokens: two requests with a first token and three later ones each",
    .make = make<Tokens>,
    .baseline = {"slow", call<&Tokens::baseline>},
    .optimized = variants({{"doubled", call<&Tokens::optimized>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .sizes = sizes({{.name = "requests", .full = 2, .scales = false}}),
};

}  // namespace aisp::ch90
