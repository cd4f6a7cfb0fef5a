// SPDX-License-Identifier: Apache-2.0
// From values to places in a picture. Private to report.
#pragma once
#include <cstddef>
#include <vector>

namespace aisp::report {

class Scale {
 public:
  // Over `low` to `high`, both above 0 where it is logarithmic; `from` and `to` are the places of the two.
  Scale(bool logarithmic, double low, double high, double from, double to);
  double at(double value) const;
  double low() const { return low_; }
  double high() const { return high_; }
  // Round values inside of the range: of 1, 2 and 5 times the powers of ten, or fewer, so that `most` are not exceeded.
  std::vector<double> ticks(std::size_t most) const;

 private:
  double position(double value) const;

  bool logarithmic_;
  double low_, high_, from_, to_;
};

}  // namespace aisp::report
