// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/system/terminal.hpp"
#include "machine/topology/topology.hpp"

namespace aisp::machine {

// Labels on the left, facts on the right, broken between words at the width of the page.
class TopologyText {
 public:
  TopologyText(const base::Painter& paint, std::size_t width) : paint_{paint}, width_{width} {}

  void heading(std::string_view text);
  void add(std::string_view label, std::string_view fact);  // an empty label continues the one above
  // Columns as wide as their longest cell, below a label; rows are not broken but at the last column.
  void table(std::string_view label, const std::vector<std::vector<std::string>>& rows);
  // The same across the page, without a label.
  void matrix(const std::vector<std::vector<std::string>>& rows);
  const std::string& text() const { return text_; }

 private:
  void line(std::string_view label, std::size_t indent, std::string_view words, std::size_t hanging);
  base::Painter paint_;
  std::size_t width_;
  std::string text_;
};

void describe_host(const Topology& topology, TopologyText& sheet);
void describe_gpu(const Topology& topology, std::size_t index, TopologyText& sheet);
void describe_links(const Topology& topology, TopologyText& sheet);

}  // namespace aisp::machine
