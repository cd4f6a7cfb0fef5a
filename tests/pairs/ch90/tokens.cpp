// SPDX-License-Identifier: Apache-2.0
// Marks tokens: two requests with a first token and three later ones each.
#include "../doubling.hpp"

namespace aisp::ch90 {
namespace {

class Tokens final : public fixtures::Doubling {
 public:
  explicit Tokens(Setup& setup) : Doubling{setup} {}
  void baseline(Launch& launch) { generate(launch, 8); }
  void optimized(Launch& launch) { generate(launch, 1); }

 private:
  void generate(Launch& launch, int passes) {
    const Range range{launch, "generate"};
    for (int token = 0; token < 4; ++token)
      for (int request = 0; request < 2; ++request) {
        for (int pass = 0; pass < passes; ++pass) fill_doubled();
        launch.token(request);
      }
    launch.mark("generated");
  }
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
};

}  // namespace aisp::ch90
