// SPDX-License-Identifier: Apache-2.0
// An honest pair with sizes that can be set and cases to sweep.

#include <aisp/pair.hpp>

namespace aisp::ch89 {
namespace {

class Sized final : public Workload {
 public:
  explicit Sized(Setup& setup)
      : rows_{setup.size("rows")},
        columns_{setup.size("columns")},
        backwards_{setup.size("backwards") == 1},
        in_{setup.input<float>(rows_ * columns_, uniform(-1, 1))},
        out_{setup.output<float>(rows_ * columns_)} {}

  Cost cost() const override {
    const auto count = static_cast<double>(rows_ * columns_);
    return {.flops = count, .host_bytes = 8 * count};
  }
  double expected(std::size_t index) const override { return 2 * in_.host(backwards_ ? rows_ * columns_ - 1 - index : index); }

  void slow(Launch& launch) {
    for (int pass = 0; pass < 8; ++pass) doubled(launch);
  }
  void doubled(Launch&) {
    const std::size_t count = rows_ * columns_;
    for (std::size_t i = 0; i < count; ++i) {
      volatile float value = in_.get()[backwards_ ? count - 1 - i : i];
      out_[i] = value + value;
    }
  }

 private:
  std::size_t rows_, columns_;
  bool backwards_;
  Input<float> in_;
  Output<float> out_;
};

}  // namespace

extern constinit const Pair sized{
    .teaches = "a workload of several sizes is measured at each of them",
    .make = make<Sized>,
    .baseline = {"slow", call<&Sized::slow>},
    .optimized = variants({{"doubled", call<&Sized::doubled>}}),
    .device = Device::host,
    .bound = Bound::host,
    .tolerance = exact,
    .sizes = sizes({{.name = "rows", .full = 512, .multiple = 64},
                    {.name = "columns", .full = 256, .multiple = 2, .most = 4096, .scales = false},
                    option("backwards")}),
    .sweep = cases({{"small", "rows=64,columns=128"}, {"tall", "rows=4096,columns=64"}, {"full", "rows=512,columns=256"}}),
};

}  // namespace aisp::ch89
