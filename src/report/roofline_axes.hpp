// SPDX-License-Identifier: Apache-2.0
// The logarithmic axes of a roofline picture. Private to report.
#pragma once
#include <string>
#include <vector>

#include "report/label_places.hpp"
#include "report/roofline.hpp"

namespace aisp::report {

// From values to places in the picture.
class Axis {
 public:
  // `from` and `to`: places of the lowest and the highest value. The range is that of `values`, widened to powers of ten.
  Axis(const std::vector<double>& values, double from, double to);
  double at(double value) const;
  double low() const;
  double high() const;
  std::vector<double> ticks() const;  // powers of ten, a dozen at most

 private:
  double low_exponent_, high_exponent_;
  double from_, to_;
};

struct Axes {
  Box area;
  Axis x, y;
  explicit Axes(const Roofline& roofline, const Box& area);
};

// "10 TFLOP/s"
std::string rate_label(double flops_s);
// For text and attributes of XML: marks escaped, control characters, which XML has no way to say, left out.
std::string xml(const std::string& text);

}  // namespace aisp::report
